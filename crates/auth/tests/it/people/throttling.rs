//! Throttling of attempts: by address, with or without an account, and by subnet.

use super::harness::{PASSWORD, TestProvider};
use std::time::Duration;

#[tokio::test]
async fn ten_wrong_passwords_lock_known_and_unknown_emails_alike() {
    let served = TestProvider::start().await;
    served.account("maya@example.com").await;
    let mut browser = served.browser();
    for _ in 0..10 {
        for email in ["maya@example.com", "omar@example.com"] {
            browser.sign_in(email, "a wrong guess").await.assert_form_again("Incorrect email or password");
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
    served.browser_at("198.51.100.7").sign_in("maya@example.com", PASSWORD).await.redirect_to();
    served.clock.advance(wait - Duration::from_secs(1));
    browser.sign_in("maya@example.com", PASSWORD).await.assert_too_many();
    served.clock.advance(Duration::from_secs(1));
    browser.sign_in("maya@example.com", PASSWORD).await.redirect_to();
}

#[tokio::test]
async fn correct_password_resets_the_attempt_count() {
    let served = TestProvider::start().await;
    served.account("maya@example.com").await;
    let mut browser = served.browser();
    for _ in 0..2 {
        for _ in 0..9 {
            browser
                .sign_in("maya@example.com", "a wrong guess")
                .await
                .assert_form_again("Incorrect email or password");
        }
        browser.sign_in("maya@example.com", PASSWORD).await.redirect_to();
    }
}

#[tokio::test]
async fn concurrent_passwords_are_limited_to_ten() {
    let served = TestProvider::start().await;
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
async fn one_subnet_cannot_try_many_addresses() {
    let served = TestProvider::start().await;
    served.account("maya@example.com").await;
    let mut browser = served.browser_at("2001:db8::1");
    for number in 0..100 {
        let status = browser.sign_in(&format!("person{number}@example.com"), "a wrong guess").await.status;
        assert_eq!(status, 422, "{number}");
    }
    let mut neighbour = served.browser_at("2001:db8::2");
    let wait = neighbour.sign_in("maya@example.com", PASSWORD).await.assert_too_many();
    served.browser_at("2001:db8:0:1::1").sign_in("maya@example.com", PASSWORD).await.redirect_to();
    served.clock.advance(wait);
    neighbour.sign_in("maya@example.com", PASSWORD).await.redirect_to();
}

#[tokio::test]
async fn emails_per_address_are_limited_across_browsers_and_flows() {
    let served = TestProvider::start().await;
    let mut one = served.browser_at("192.0.2.200");
    for number in 0..6 {
        let email = format!("maya+{number}@example.com");
        one.post("/forgotten-password", &[("email", &email)]).await.redirect_to();
    }
    one.post("/forgotten-password", &[("email", "maya@example.com")]).await.assert_too_many();
    for number in 6..18_u8 {
        let mut browser = served.browser_at(&format!("192.0.2.{number}"));
        let reply = match number % 2 {
            0 => browser.post("/sign-up", &[("email", "maya@example.com"), ("password", PASSWORD)]).await,
            _ => browser.post("/forgotten-password", &[("email", "maya@example.com")]).await,
        };
        reply.redirect_to();
    }
    let mut browser = served.browser_at("192.0.2.77");
    let wait = browser.post("/forgotten-password", &[("email", "maya@example.com")]).await.assert_too_many();
    browser.post("/forgotten-password", &[("email", "omar@example.com")]).await.redirect_to();
    served.clock.advance(wait);
    browser.post("/forgotten-password", &[("email", "maya@example.com")]).await.redirect_to();
}

#[tokio::test]
async fn emails_per_subnet_are_limited() {
    let served = TestProvider::start().await;
    let mut browser = served.browser();
    for number in 0..30 {
        let email = format!("person{number}@example.com");
        browser.post("/forgotten-password", &[("email", &email)]).await.redirect_to();
    }
    browser.post("/forgotten-password", &[("email", "maya@example.com")]).await.assert_too_many();
    served
        .browser_at("192.0.2.2")
        .post("/forgotten-password", &[("email", "maya@example.com")])
        .await
        .redirect_to();
}

#[tokio::test]
async fn distributed_guessing_is_limited_and_emailed_at_most_three_times() {
    let served = TestProvider::start().await;
    served.account("maya@example.com").await;
    for host in 0..5 {
        let mut browser = served.browser_at(&format!("192.0.2.{host}"));
        for _ in 0..10 {
            for email in ["maya@example.com", "omar@example.com"] {
                browser
                    .sign_in(email, "a wrong guess")
                    .await
                    .assert_form_again("Incorrect email or password");
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
    let emails = served.emails_when(3).await;
    assert!(emails.iter().all(|email| email.to == "maya@example.com"), "{emails:?}");
    assert!(emails.iter().all(|email| email.subject == "Too many sign-in attempts"), "{emails:?}");
    served.clock.advance(wait);
    elsewhere.sign_in("maya@example.com", PASSWORD).await.redirect_to();
}

#[tokio::test]
async fn throttled_attempts_do_not_extend_the_wait() {
    let served = TestProvider::start().await;
    served.account("maya@example.com").await;
    let mut browser = served.browser();
    for _ in 0..10 {
        browser
            .sign_in("maya@example.com", "a wrong guess")
            .await
            .assert_form_again("Incorrect email or password");
    }
    for _ in 0..200 {
        browser.sign_in("maya@example.com", "a wrong guess").await.assert_too_many();
    }
    browser
        .sign_in("omar@example.com", "a wrong guess")
        .await
        .assert_form_again("Incorrect email or password");
    served.clock.advance(Duration::from_secs(15 * 60));
    browser.sign_in("maya@example.com", PASSWORD).await.redirect_to();
}

#[tokio::test]
async fn failing_mail_server_does_not_reveal_accounts() {
    let tarpit = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let served = TestProvider::with_mail_server(tarpit.local_addr().unwrap()).await;
    for number in 0..40 {
        let mut browser = served.browser_at(&format!("192.0.2.{number}"));
        let known = format!("person{number}@example.com");
        served.account_without_password(&known).await;
        for email in [known, format!("nobody{number}@example.com")] {
            let reply = browser.post("/forgotten-password", &[("email", &email)]).await;
            assert_eq!(reply.redirect_to(), "/forgotten-password/code", "{email}");
        }
    }
}
