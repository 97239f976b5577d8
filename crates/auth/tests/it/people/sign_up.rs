//! Signing up, with proof of the mailbox.

use super::harness::{Browser, PASSWORD, Reply, TestProvider};
use std::time::Duration;

async fn sign_up(browser: &mut Browser, email: &str) -> Reply {
    browser
        .post("/sign-up", &[("email", email), ("password", PASSWORD), ("return_to", "/authorize?x=1")])
        .await
}

async fn submit_code(browser: &mut Browser, code: &str) -> Reply {
    browser.post("/sign-up/code", &[("code", code)]).await
}

/// Returns a different code.
fn wrong(code: &str) -> String {
    let number: u32 = code.parse().unwrap();
    format!("{:06}", (number + 1) % 1_000_000)
}

#[tokio::test]
async fn account_is_created_only_after_email_verification() {
    let served = TestProvider::start().await;
    let mut browser = served.browser();
    assert!(browser.get("/sign-up").await.body.contains("autocomplete=\"new-password\""));
    assert_eq!(sign_up(&mut browser, "Maya@Example.com").await.redirect_to(), "/sign-up/code");
    let page = browser.get("/sign-up/code").await;
    assert!(
        page.body.contains("maya@<wbr>example.com") && page.body.contains("autocomplete=\"one-time-code\"")
    );
    let code = served.code_in_email(1).await;
    assert_eq!(served.emails()[0].to, "maya@example.com");
    assert!(!served.has_account("maya@example.com").await);
    assert!(!browser.is_signed_in().await);
    let rejected = browser.clone().sign_in("maya@example.com", PASSWORD).await;
    rejected.assert_form_again("Incorrect email or password");

    let (first, second) = code.split_at(3);
    let reply = submit_code(&mut browser, &format!(" {first} {second} ")).await;
    assert_eq!(reply.redirect_to(), "/authorize?x=1");
    assert!(served.has_account("maya@example.com").await && browser.is_signed_in().await);
    assert_eq!(browser.cookies.get("__Host-sign_up"), None);
    let mut again = served.browser();
    assert_eq!(again.sign_in("maya@example.com", PASSWORD).await.redirect_to(), "/");
}

#[tokio::test]
async fn other_domains_are_rejected_and_get_no_email() {
    let served = TestProvider::start().await;
    let mut browser = served.browser();
    for email in ["x@evil-example.com", "x@example.com.evil.com", "x@mail.example.com", "x@gmail.com"] {
        let reply = sign_up(&mut browser, email).await;
        reply.assert_form_again("Enter an address at example.com");
        assert!(reply.body.contains(&format!("value=\"{email}\"")));
    }
    for email in
        ["x@evil.com@example.com", "\"x\"@example.com", "x y@example.com", "x@example.com\r\nBcc: y@evil.com"]
    {
        sign_up(&mut browser, email).await.assert_form_again("like name@example.com");
    }
    assert!(served.emails().is_empty() && browser.cookies.is_empty());
}

#[tokio::test]
async fn rejected_password_states_the_reason_and_is_not_echoed() {
    let served = TestProvider::start().await;
    let mut browser = served.browser();
    for (password, says) in [
        ("short", "at least 10 characters"),
        ("password123", "This password is too common"),
        ("maya@example.com", "Do not use your email address as your password"),
        ("Hale&Ward-2026", "mostly your email address or the name of the firm"),
        ("maya1234567!", "Digits and symbols do not count. Use other words."),
        (&*"x".repeat(129), "at most 128 characters"),
    ] {
        let reply = browser.post("/sign-up", &[("email", "maya@example.com"), ("password", password)]).await;
        reply.assert_form_again(says);
        assert!(!reply.body.contains(&format!("value=\"{password}\"")) || password.contains('@'));
        assert!(reply.body.contains("aria-describedby=\"password-hint password-error\""), "{}", reply.body);
    }
    let reply = browser.post("/sign-up", &[]).await;
    reply.assert_form_again("Fix 2 problems");
    assert!(served.emails().is_empty());
}

#[tokio::test]
async fn existing_account_is_revealed_only_by_email() {
    let served = TestProvider::start().await;
    let account = served.account("maya@example.com").await;
    let (mut browser, mut stranger) = (served.browser(), served.browser());
    let (known, unknown) =
        (sign_up(&mut browser, "maya@example.com").await, sign_up(&mut stranger, "omar@example.com").await);
    assert_eq!(
        (known.status, known.redirect_to(), &known.body),
        (unknown.status, unknown.redirect_to(), &unknown.body)
    );
    let (known, unknown) = (browser.get("/sign-up/code").await, stranger.get("/sign-up/code").await);
    assert_eq!(known.body, unknown.body.replace("omar@", "maya@"));

    let emails = served.emails_when(2).await;
    let to = |email: &str| emails.iter().find(|message| message.to == email).unwrap();
    assert_eq!(to("maya@example.com").subject, "You already have an account");
    assert_eq!(to("maya@example.com").code(), None);
    let code = to("omar@example.com").code().unwrap();

    let (known, unknown) =
        (submit_code(&mut browser, &wrong(&code)).await, submit_code(&mut stranger, &wrong(&code)).await);
    known.assert_form_again("4 attempts left");
    assert_eq!(known.body, unknown.body.replace("omar@", "maya@"));
    let found =
        served.provider.store.provider_accounts.provider_account(&account.subject).await.unwrap().unwrap();
    assert_eq!(found.password_version, account.password_version, "nothing was changed");
}

#[tokio::test]
async fn five_wrong_codes_end_only_that_sign_up() {
    let served = TestProvider::start().await;
    let (mut one, mut two) = (served.browser(), served.browser_at("192.0.2.2"));
    sign_up(&mut one, "maya@example.com").await.redirect_to();
    let code = served.code_in_email(1).await;
    served.clock.advance(Duration::from_secs(1));
    sign_up(&mut two, "maya@example.com").await.redirect_to();
    let other_code = served.code_in_email(2).await;
    let bad = wrong(&code);

    submit_code(&mut one, "12345").await.assert_form_again("Enter the six-digit code");
    for left in ["4 attempts", "3 attempts", "2 attempts", "1 attempt left"] {
        submit_code(&mut one, &bad).await.assert_form_again(left);
    }
    let mut late = one.clone();
    let fifth = submit_code(&mut one, &bad).await;
    let wait = fifth.assert_too_many();
    assert!(fifth.body.contains("Too many incorrect codes"), "{}", fifth.body);
    assert_eq!(one.cookies.get("__Host-sign_up"), None);
    assert_eq!(submit_code(&mut late, &code).await.status, 410, "the right code comes too late");
    assert!(!served.has_account("maya@example.com").await);
    sign_up(&mut one, "maya@example.com").await.assert_too_many();
    submit_code(&mut two, &other_code).await.redirect_to();
    assert!(served.has_account("maya@example.com").await, "another browser's is its own");
    served.clock.advance(wait);
    sign_up(&mut one, "maya@example.com").await.redirect_to();
}

#[tokio::test]
async fn code_attempts_are_counted_across_networks() {
    let served = TestProvider::start().await;
    let mut browser = served.browser();
    sign_up(&mut browser, "maya@example.com").await.redirect_to();
    let code = served.code_in_email(1).await;
    for (host, expected) in [(1, 422), (2, 422), (3, 422), (4, 422), (5, 410), (6, 410)] {
        let mut elsewhere = served.browser_at(&format!("198.51.100.{host}"));
        elsewhere.cookies.clone_from(&browser.cookies);
        assert_eq!(submit_code(&mut elsewhere, &wrong(&code)).await.status, expected, "{host}");
    }
    assert_eq!(submit_code(&mut browser, &code).await.status, 410);
    sign_up(&mut browser, "maya@example.com").await.redirect_to();
}

#[tokio::test]
async fn concurrent_guesses_are_limited_to_five() {
    let served = TestProvider::start().await;
    let mut browser = served.browser();
    sign_up(&mut browser, "maya@example.com").await.redirect_to();
    let bad = wrong(&served.code_in_email(1).await);
    let racing: Vec<_> = (0..20)
        .map(|_| {
            let (mut browser, bad) = (browser.clone(), bad.clone());
            tokio::spawn(async move { submit_code(&mut browser, &bad).await.status })
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
async fn code_works_once_within_ten_minutes_in_its_browser() {
    let served = TestProvider::start().await;
    let mut browser = served.browser();
    sign_up(&mut browser, "maya@example.com").await.redirect_to();
    let code = served.code_in_email(1).await;
    let elsewhere = submit_code(&mut served.browser(), &code).await;
    assert_eq!(elsewhere.status, 410);
    let mut late = browser.clone();
    served.clock.advance(Duration::from_secs(599));
    submit_code(&mut browser, &code).await.redirect_to();
    assert_eq!(submit_code(&mut late, &code).await.status, 410, "used");

    sign_up(&mut browser, "omar@example.com").await.redirect_to();
    let code = served.code_in_email(2).await;
    served.clock.advance(Duration::from_secs(600));
    assert_eq!(submit_code(&mut browser, &code).await.status, 410, "late");
    assert!(!served.has_account("omar@example.com").await);
    assert_eq!(browser.get("/sign-up/code").await.redirect_to(), "/sign-up");
}

#[tokio::test]
async fn new_code_replaces_the_last_and_resends_are_limited() {
    let served = TestProvider::start().await;
    let mut browser = served.browser();
    sign_up(&mut browser, "maya@example.com").await.redirect_to();
    let first = served.code_in_email(1).await;
    let wait = browser.post("/sign-up/code/resend", &[]).await.assert_too_many();
    assert_eq!(wait, Duration::from_secs(30));
    served.clock.advance(wait);
    assert_eq!(browser.post("/sign-up/code/resend", &[]).await.redirect_to(), "/sign-up/code");
    assert!(browser.get("/sign-up/code").await.body.contains("New code sent."));
    let second = served.code_in_email(2).await;
    if first != second {
        submit_code(&mut browser, &first).await.assert_form_again("4 attempts left");
    }
    served.clock.advance(wait);
    browser.post("/sign-up/code/resend", &[]).await.redirect_to();
    let third = served.code_in_email(3).await;
    served.clock.advance(wait);
    assert_eq!(browser.post("/sign-up/code/resend", &[]).await.status, 429);
    submit_code(&mut browser, &third).await.redirect_to();
    assert_eq!(served.emails().len(), 3);
}

#[tokio::test]
async fn concurrent_sign_ups_create_one_account() {
    let served = TestProvider::start().await;
    let (mut one, mut two) = (served.browser(), served.browser());
    sign_up(&mut one, "maya@example.com").await.redirect_to();
    let first = served.code_in_email(1).await;
    served.clock.advance(Duration::from_secs(1));
    let fields = [("email", "maya@example.com"), ("password", "quite another phrase")];
    two.post("/sign-up", &fields).await.redirect_to();
    let second = served.code_in_email(2).await;
    submit_code(&mut one, &first).await.redirect_to();
    let reply = submit_code(&mut two, &second).await;
    assert_eq!(reply.status, 410, "{reply:?}");
    assert!(!two.is_signed_in().await);
    two.sign_in("maya@example.com", "quite another phrase")
        .await
        .assert_form_again("Incorrect email or password");
}
