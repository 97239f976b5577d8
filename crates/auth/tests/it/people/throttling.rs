//! How much may be tried: by address, whether it has an account or not, and by place.

use super::served::{PASSWORD, Served};
use std::time::Duration;

#[tokio::test]
async fn past_ten_tries_even_the_right_password_is_refused_and_unknown_addresses_just_the_same() {
    let served = Served::start().await;
    served.account("maya@example.com").await;
    let mut browser = served.browser();
    for _ in 0..10 {
        for email in ["maya@example.com", "omar@example.com"] {
            browser.sign_in(email, "a wrong guess").await.assert_form_again("do not belong together");
        }
    }
    let right = browser.sign_in("maya@example.com", PASSWORD).await;
    let wrong = browser.sign_in("maya@example.com", "a wrong guess").await;
    let unknown = browser.sign_in("omar@example.com", "a wrong guess").await;
    let wait = right.assert_too_many();
    for other in [&wrong, &unknown] {
        assert_eq!((right.status, &right.body), (other.status, &other.body));
        assert_eq!(right.header("retry-after"), other.header("retry-after"));
    }
    served.browser_at("198.51.100.7").sign_in("maya@example.com", PASSWORD).await.leads_to();
    served.clock.advance(wait - Duration::from_secs(1));
    browser.sign_in("maya@example.com", PASSWORD).await.assert_too_many();
    served.clock.advance(Duration::from_secs(1));
    browser.sign_in("maya@example.com", PASSWORD).await.leads_to();
}

#[tokio::test]
async fn a_right_password_forgets_the_wrong_ones_before_it() {
    let served = Served::start().await;
    served.account("maya@example.com").await;
    let mut browser = served.browser();
    for _ in 0..2 {
        for _ in 0..9 {
            browser.sign_in("maya@example.com", "a wrong guess").await.assert_form_again("do not belong");
        }
        browser.sign_in("maya@example.com", PASSWORD).await.leads_to();
    }
}

#[tokio::test]
async fn however_many_race_no_more_than_ten_passwords_are_compared() {
    let served = Served::start().await;
    served.account("maya@example.com").await;
    let racing: Vec<_> = (0..25)
        .map(|number| {
            let mut browser = served.browser_at(&format!("2001:db8::{number}"));
            tokio::spawn(async move { browser.sign_in("maya@example.com", "a wrong guess").await.status })
        })
        .collect();
    let mut compared = 0;
    for status in racing {
        match status.await.unwrap() {
            422 => compared += 1,
            429 => {}
            other => panic!("{other}"),
        }
    }
    assert_eq!(compared, 10);
}

#[tokio::test]
async fn one_place_cannot_go_on_to_ever_more_addresses() {
    let served = Served::start().await;
    served.account("maya@example.com").await;
    let mut browser = served.browser_at("2001:db8::1");
    for number in 0..100 {
        let status = browser.sign_in(&format!("person{number}@example.com"), "a wrong guess").await.status;
        assert_eq!(status, 422, "{number}");
    }
    let mut neighbour = served.browser_at("2001:db8::2");
    let wait = neighbour.sign_in("maya@example.com", PASSWORD).await.assert_too_many();
    served.browser_at("2001:db8:0:1::1").sign_in("maya@example.com", PASSWORD).await.leads_to();
    served.clock.advance(wait);
    neighbour.sign_in("maya@example.com", PASSWORD).await.leads_to();
}

#[tokio::test]
async fn letters_to_one_address_are_bounded_over_all_browsers_names_and_both_errands() {
    let served = Served::start().await;
    let mut one = served.browser_at("192.0.2.200");
    for number in 0..6 {
        let email = format!("maya+{number}@example.com");
        one.post("/forgotten-password", &[("email", &email)]).await.leads_to();
    }
    one.post("/forgotten-password", &[("email", "maya@example.com")]).await.assert_too_many();
    for number in 6..18_u8 {
        let mut browser = served.browser_at(&format!("192.0.2.{number}"));
        let reply = match number % 2 {
            0 => browser.post("/sign-up", &[("email", "maya@example.com"), ("password", PASSWORD)]).await,
            _ => browser.post("/forgotten-password", &[("email", "maya@example.com")]).await,
        };
        reply.leads_to();
    }
    let mut browser = served.browser_at("192.0.2.77");
    let wait = browser.post("/forgotten-password", &[("email", "maya@example.com")]).await.assert_too_many();
    browser.post("/forgotten-password", &[("email", "omar@example.com")]).await.leads_to();
    served.clock.advance(wait);
    browser.post("/forgotten-password", &[("email", "maya@example.com")]).await.leads_to();
}

#[tokio::test]
async fn letters_from_one_place_are_bounded_whomever_they_go_to() {
    let served = Served::start().await;
    let mut browser = served.browser();
    for number in 0..30 {
        let email = format!("person{number}@example.com");
        browser.post("/forgotten-password", &[("email", &email)]).await.leads_to();
    }
    browser.post("/forgotten-password", &[("email", "maya@example.com")]).await.assert_too_many();
    served
        .browser_at("192.0.2.2")
        .post("/forgotten-password", &[("email", "maya@example.com")])
        .await
        .leads_to();
}

#[tokio::test]
async fn from_everywhere_together_passwords_are_bounded_too_and_the_owner_is_told_three_times_at_most() {
    let served = Served::start().await;
    served.account("maya@example.com").await;
    for place in 0..5 {
        let mut browser = served.browser_at(&format!("192.0.2.{place}"));
        for _ in 0..10 {
            for email in ["maya@example.com", "omar@example.com"] {
                browser.sign_in(email, "a wrong guess").await.assert_form_again("do not belong");
            }
        }
    }
    let mut elsewhere = served.browser_at("198.51.100.7");
    let (known, unknown) = (
        elsewhere.sign_in("maya@example.com", PASSWORD).await,
        elsewhere.sign_in("omar@example.com", "a wrong guess").await,
    );
    let wait = known.assert_too_many();
    assert_eq!((known.status, &known.body), (unknown.status, &unknown.body));
    assert_eq!(known.header("retry-after"), unknown.header("retry-after"));
    let letters = served.letters_when(3).await;
    assert!(letters.iter().all(|letter| letter.to == "maya@example.com"), "{letters:?}");
    assert!(letters.iter().all(|letter| letter.subject == "Too many tries to sign in"), "{letters:?}");
    served.clock.advance(wait);
    elsewhere.sign_in("maya@example.com", PASSWORD).await.leads_to();
}

#[tokio::test]
async fn what_is_refused_is_not_counted_so_that_the_wait_stays_the_short_one() {
    let served = Served::start().await;
    served.account("maya@example.com").await;
    let mut browser = served.browser();
    for _ in 0..10 {
        browser.sign_in("maya@example.com", "a wrong guess").await.assert_form_again("do not belong");
    }
    for _ in 0..200 {
        browser.sign_in("maya@example.com", "a wrong guess").await.assert_too_many();
    }
    browser.sign_in("omar@example.com", "a wrong guess").await.assert_form_again("do not belong");
    served.clock.advance(Duration::from_secs(15 * 60));
    browser.sign_in("maya@example.com", PASSWORD).await.leads_to();
}

#[tokio::test]
async fn a_mail_server_that_takes_nothing_does_not_tell_who_has_an_account() {
    let tarpit = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let served = Served::with_mail_server(tarpit.local_addr().unwrap()).await;
    for number in 0..40 {
        let mut browser = served.browser_at(&format!("192.0.2.{number}"));
        let known = format!("person{number}@example.com");
        served.account_without_password(&known).await;
        for email in [known, format!("nobody{number}@example.com")] {
            let reply = browser.post("/forgotten-password", &[("email", &email)]).await;
            assert_eq!(reply.leads_to(), "/forgotten-password/code", "{email}");
        }
    }
}
