//! Signing up, with proof of the mailbox.

use super::served::{Browser, PASSWORD, Reply, Served};
use std::time::Duration;

async fn sign_up(browser: &mut Browser, email: &str) -> Reply {
    browser
        .post("/sign-up", &[("email", email), ("password", PASSWORD), ("return_to", "/authorize?x=1")])
        .await
}

async fn type_code(browser: &mut Browser, code: &str) -> Reply {
    browser.post("/sign-up/code", &[("code", code)]).await
}

/// Another code than this one.
fn wrong(code: &str) -> String {
    let number: u32 = code.parse().unwrap();
    format!("{:06}", (number + 1) % 1_000_000)
}

#[tokio::test]
async fn an_account_is_made_by_the_code_from_the_mail_and_not_before() {
    let served = Served::start().await;
    let mut browser = served.browser();
    assert!(browser.get("/sign-up").await.body.contains("autocomplete=\"new-password\""));
    assert_eq!(sign_up(&mut browser, "Maya@Example.com").await.leads_to(), "/sign-up/code");
    let page = browser.get("/sign-up/code").await;
    assert!(
        page.body.contains("maya@<wbr>example.com") && page.body.contains("autocomplete=\"one-time-code\"")
    );
    let code = served.code_in_letter(1).await;
    assert_eq!(served.letters()[0].to, "maya@example.com");
    assert!(!served.has_account("maya@example.com").await);
    assert!(!browser.is_signed_in().await);
    let refused = browser.clone().sign_in("maya@example.com", PASSWORD).await;
    refused.assert_form_again("do not belong together");

    let (first, second) = code.split_at(3);
    let reply = type_code(&mut browser, &format!(" {first} {second} ")).await;
    assert_eq!(reply.leads_to(), "/authorize?x=1");
    assert!(served.has_account("maya@example.com").await && browser.is_signed_in().await);
    assert_eq!(browser.cookies.get("sign_up"), None);
    let mut again = served.browser();
    assert_eq!(again.sign_in("maya@example.com", PASSWORD).await.leads_to(), "/");
}

#[tokio::test]
async fn people_of_other_domains_are_refused_by_name_and_get_no_letter() {
    let served = Served::start().await;
    let mut browser = served.browser();
    for email in ["x@evil-example.com", "x@example.com.evil.com", "x@mail.example.com", "x@gmail.com"] {
        let reply = sign_up(&mut browser, email).await;
        reply.assert_form_again("Only people with an address at example.com may sign up");
        assert!(reply.body.contains(&format!("value=\"{email}\"")));
    }
    for email in
        ["x@evil.com@example.com", "\"x\"@example.com", "x y@example.com", "x@example.com\r\nBcc: y@evil.com"]
    {
        sign_up(&mut browser, email).await.assert_form_again("like name@example.com");
    }
    assert!(served.letters().is_empty() && browser.cookies.is_empty());
}

#[tokio::test]
async fn a_bad_password_is_said_with_its_reason_and_never_shown_again() {
    let served = Served::start().await;
    let mut browser = served.browser();
    for (password, says) in [
        ("short", "at least 10 characters"),
        ("password123", "one of the first that a stranger would try"),
        ("maya@example.com", "not your e-mail address"),
        (&*"x".repeat(129), "at most 128 characters"),
    ] {
        let reply = browser.post("/sign-up", &[("email", "maya@example.com"), ("password", password)]).await;
        reply.assert_form_again(says);
        assert!(!reply.body.contains(&format!("value=\"{password}\"")) || password.contains('@'));
        assert!(reply.body.contains("aria-describedby=\"password-hint password-error\""), "{}", reply.body);
    }
    let reply = browser.post("/sign-up", &[]).await;
    reply.assert_form_again("Two things to put right");
    assert!(served.letters().is_empty());
}

#[tokio::test]
async fn who_has_an_account_sees_what_everybody_sees_and_is_told_by_mail_alone() {
    let served = Served::start().await;
    let account = served.account("maya@example.com").await;
    let (mut browser, mut stranger) = (served.browser(), served.browser());
    let (known, unknown) =
        (sign_up(&mut browser, "maya@example.com").await, sign_up(&mut stranger, "omar@example.com").await);
    assert_eq!(
        (known.status, known.leads_to(), &known.body),
        (unknown.status, unknown.leads_to(), &unknown.body)
    );
    let (known, unknown) = (browser.get("/sign-up/code").await, stranger.get("/sign-up/code").await);
    assert_eq!(known.body, unknown.body.replace("omar@", "maya@"));

    let letters = served.letters_when(2).await;
    let to = |email: &str| letters.iter().find(|letter| letter.to == email).unwrap();
    assert_eq!(to("maya@example.com").subject, "You already have an account");
    assert_eq!(to("maya@example.com").code(), None);
    let code = to("omar@example.com").code().unwrap();

    let (known, unknown) =
        (type_code(&mut browser, &wrong(&code)).await, type_code(&mut stranger, &wrong(&code)).await);
    known.assert_form_again("4 tries left");
    assert_eq!(known.body, unknown.body.replace("omar@", "maya@"));
    let found =
        served.provider.store.provider_accounts.provider_account(&account.subject).await.unwrap().unwrap();
    assert_eq!(found.password_version, account.password_version, "nothing was changed");
}

#[tokio::test]
async fn five_wrong_codes_destroy_the_sign_up_and_no_other_one() {
    let served = Served::start().await;
    let (mut one, mut two) = (served.browser(), served.browser_at("192.0.2.2"));
    sign_up(&mut one, "maya@example.com").await.leads_to();
    let code = served.code_in_letter(1).await;
    served.clock.advance(Duration::from_secs(1));
    sign_up(&mut two, "maya@example.com").await.leads_to();
    let other_code = served.code_in_letter(2).await;
    let bad = wrong(&code);

    type_code(&mut one, "12345").await.assert_form_again("Enter the six digits");
    for left in ["4 tries", "3 tries", "2 tries", "1 try left"] {
        type_code(&mut one, &bad).await.assert_form_again(left);
    }
    let mut late = one.clone();
    let fifth = type_code(&mut one, &bad).await;
    let wait = fifth.assert_too_many();
    assert!(fifth.body.contains("too many wrong codes"), "{}", fifth.body);
    assert_eq!(one.cookies.get("sign_up"), None);
    assert_eq!(type_code(&mut late, &code).await.status, 410, "the right code comes too late");
    assert!(!served.has_account("maya@example.com").await);
    sign_up(&mut one, "maya@example.com").await.assert_too_many();
    type_code(&mut two, &other_code).await.leads_to();
    assert!(served.has_account("maya@example.com").await, "another browser's is its own");
    served.clock.advance(wait);
    sign_up(&mut one, "maya@example.com").await.leads_to();
}

#[tokio::test]
async fn a_proofs_tries_are_counted_wherever_they_come_from() {
    let served = Served::start().await;
    let mut browser = served.browser();
    sign_up(&mut browser, "maya@example.com").await.leads_to();
    let code = served.code_in_letter(1).await;
    for (place, expected) in [(1, 422), (2, 422), (3, 422), (4, 422), (5, 410), (6, 410)] {
        let mut elsewhere = served.browser_at(&format!("198.51.100.{place}"));
        elsewhere.cookies.clone_from(&browser.cookies);
        assert_eq!(type_code(&mut elsewhere, &wrong(&code)).await.status, expected, "{place}");
    }
    assert_eq!(type_code(&mut browser, &code).await.status, 410);
    sign_up(&mut browser, "maya@example.com").await.leads_to();
}

#[tokio::test]
async fn racing_guesses_are_no_more_than_five() {
    let served = Served::start().await;
    let mut browser = served.browser();
    sign_up(&mut browser, "maya@example.com").await.leads_to();
    let bad = wrong(&served.code_in_letter(1).await);
    let racing: Vec<_> = (0..20)
        .map(|_| {
            let (mut browser, bad) = (browser.clone(), bad.clone());
            tokio::spawn(async move { type_code(&mut browser, &bad).await.status })
        })
        .collect();
    let mut compared = 0;
    for status in racing {
        match status.await.unwrap() {
            422 => compared += 1,
            429 | 410 => {}
            other => panic!("{other}"),
        }
    }
    assert!(compared <= 4, "the fifth is compared too, and says 429: {compared}");
}

#[tokio::test]
async fn a_code_works_once_for_ten_minutes_and_in_its_browser_only() {
    let served = Served::start().await;
    let mut browser = served.browser();
    sign_up(&mut browser, "maya@example.com").await.leads_to();
    let code = served.code_in_letter(1).await;
    let elsewhere = type_code(&mut served.browser(), &code).await;
    assert_eq!(elsewhere.status, 410);
    let mut late = browser.clone();
    served.clock.advance(Duration::from_secs(599));
    type_code(&mut browser, &code).await.leads_to();
    assert_eq!(type_code(&mut late, &code).await.status, 410, "used");

    sign_up(&mut browser, "omar@example.com").await.leads_to();
    let code = served.code_in_letter(2).await;
    served.clock.advance(Duration::from_secs(600));
    assert_eq!(type_code(&mut browser, &code).await.status, 410, "late");
    assert!(!served.has_account("omar@example.com").await);
    assert_eq!(browser.get("/sign-up/code").await.leads_to(), "/sign-up");
}

#[tokio::test]
async fn a_new_code_takes_the_place_of_the_last_and_there_are_not_many() {
    let served = Served::start().await;
    let mut browser = served.browser();
    sign_up(&mut browser, "maya@example.com").await.leads_to();
    let first = served.code_in_letter(1).await;
    let wait = browser.post("/sign-up/code/resend", &[]).await.assert_too_many();
    assert_eq!(wait, Duration::from_secs(30));
    served.clock.advance(wait);
    assert_eq!(browser.post("/sign-up/code/resend", &[]).await.leads_to(), "/sign-up/code");
    assert!(browser.get("/sign-up/code").await.body.contains("A new message is on its way"));
    let second = served.code_in_letter(2).await;
    if first != second {
        type_code(&mut browser, &first).await.assert_form_again("4 tries left");
    }
    served.clock.advance(wait);
    browser.post("/sign-up/code/resend", &[]).await.leads_to();
    let third = served.code_in_letter(3).await;
    served.clock.advance(wait);
    assert_eq!(browser.post("/sign-up/code/resend", &[]).await.status, 429);
    type_code(&mut browser, &third).await.leads_to();
    assert_eq!(served.letters().len(), 3);
}

#[tokio::test]
async fn who_signs_up_twice_at_once_gets_one_account_with_the_first_password() {
    let served = Served::start().await;
    let (mut one, mut two) = (served.browser(), served.browser());
    sign_up(&mut one, "maya@example.com").await.leads_to();
    let first = served.code_in_letter(1).await;
    served.clock.advance(Duration::from_secs(1));
    let fields = [("email", "maya@example.com"), ("password", "quite another phrase")];
    two.post("/sign-up", &fields).await.leads_to();
    let second = served.code_in_letter(2).await;
    type_code(&mut one, &first).await.leads_to();
    let reply = type_code(&mut two, &second).await;
    assert_eq!(reply.status, 410, "{reply:?}");
    assert!(!two.is_signed_in().await);
    two.sign_in("maya@example.com", "quite another phrase").await.assert_form_again("do not belong");
}
