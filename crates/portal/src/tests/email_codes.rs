//! Sign-in with an emailed code: attempts, lockout, resending and mail failures.

use super::TestPortal;
use super::browser::{Browser, claims};
use super::firm::manage;
use super::mail_server::SlowMailServer;
use crate::SecondFactor;
use axum::http::{StatusCode, header};
use chancery_domain::{
    CODE_EMAIL_INTERVAL, FAILED_CODE_EMAIL_INTERVAL, MAX_CODE_EMAILS_PER_IDENTITY,
    MAX_CODE_EMAILS_PER_IDENTITY_AND_DAY, MAX_CODE_EMAILS_PER_SIGN_IN, WRONG_CODE_LOCKOUT,
};
use std::time::Duration;

async fn with_pending_code(portal: &TestPortal) -> Browser {
    let mut browser = portal.browser();
    let reply = browser.follow_callback(claims("1", "ann@company.com")).await;
    assert_eq!((reply.status, reply.location()), (StatusCode::SEE_OTHER, "/auth/code"), "{reply:?}");
    browser
}

async fn submit_code(browser: &mut Browser, code: &str) -> super::browser::Reply {
    browser.post("/auth/code", &format!("code={code}")).await
}

#[tokio::test]
async fn session_starts_only_after_the_code_is_accepted() {
    let portal = TestPortal::open_with(SecondFactor::EmailCode).await;
    let mut browser = with_pending_code(&portal).await;
    assert_eq!(browser.cookies.keys().collect::<Vec<_>>(), ["__Host-sign_in_code"]);
    let code_page = browser.get("/auth/code").await;
    assert_eq!(code_page.status, StatusCode::OK);
    for part in [
        "ann@<wbr>company.com",
        "09:14 UTC",
        "10 minutes",
        "autocomplete=\"one-time-code\"",
        "inputmode=\"numeric\"",
        "<title>Enter your code – Marlow &#38; Finch</title>",
    ] {
        assert!(code_page.body.contains(part), "{part}: {}", code_page.body);
    }
    assert_eq!(browser.get("/clients").await.status, StatusCode::SEE_OTHER, "half is not signed in");
    let code = portal.latest_code();
    let accepted = submit_code(&mut browser, &code).await;
    assert_eq!((accepted.status, accepted.location()), (StatusCode::SEE_OTHER, "/clients"));
    assert!(accepted.has_session());
    let cookies: Vec<_> = browser.cookies.keys().collect();
    assert_eq!(cookies, ["__Host-known_browser", "session"], "the code's cookie is taken back");
    assert_eq!(browser.get("/clients").await.status, StatusCode::OK);
}

#[tokio::test]
async fn pasted_code_is_accepted_once() {
    let portal = TestPortal::open_with(SecondFactor::EmailCode).await;
    let mut browser = with_pending_code(&portal).await;
    let mut copy = portal.browser();
    copy.cookies = browser.cookies.clone();
    let code = portal.latest_code();
    let (first, second) = code.split_at(3);
    let accepted = submit_code(&mut browser, &format!("+{first}+{second}%0A")).await;
    assert!(accepted.has_session(), "{accepted:?}");
    let again = submit_code(&mut copy, &code).await;
    assert_eq!(again.status, StatusCode::GONE);
    assert!(!again.has_session() && copy.cookies.is_empty());
}

#[tokio::test]
async fn wrong_code_shows_attempts_left_and_keeps_input() {
    let portal = TestPortal::open_with(SecondFactor::EmailCode).await;
    let mut browser = with_pending_code(&portal).await;
    let wrong = portal.wrong_code();
    let reply = submit_code(&mut browser, &wrong).await;
    assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY);
    for part in [
        "<title>Error: enter your code",
        "4 attempts left.",
        "aria-invalid=\"true\" aria-describedby=\"code-error\"",
        &format!("value=\"{wrong}\""),
    ] {
        assert!(reply.body.contains(part), "{part}: {}", reply.body);
    }
    // Malformed codes do not count as attempts.
    for typed in ["", "12345", "abcdef", "1234567", "%3Cscript%3E", &"9".repeat(5_000)] {
        let reply = submit_code(&mut browser, typed).await;
        assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY, "{typed}");
        assert!(reply.body.contains("Enter the six-digit code") && !reply.body.contains("<script"));
        assert!(reply.body.len() < 10_000);
    }
    assert!(submit_code(&mut browser, &wrong).await.body.contains("3 attempts left."));
}

#[tokio::test]
async fn five_wrong_codes_lock_the_account_and_email_the_owner_once() {
    let portal = TestPortal::open_with(SecondFactor::EmailCode).await;
    let mut browsers = Vec::new();
    for _ in 0..3 {
        browsers.push(with_pending_code(&portal).await);
    }
    let code = portal.latest_code();
    let mut codes = portal.emails().len();
    assert_eq!(codes, 3);
    for number in 0..4 {
        let reply = submit_code(&mut browsers[number % 2], "000000").await;
        // Fails in one of a million runs: when this is the right code.
        assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY, "{reply:?}");
    }
    let last = submit_code(&mut browsers[0], "000000").await;
    assert_eq!(last.status, StatusCode::GONE);
    assert!(last.body.contains("Too many incorrect codes") && !last.has_session());
    assert!(
        last.body.contains("We have emailed the account") && last.body.contains("href=\"/\""),
        "{}",
        last.body
    );
    codes += 1;
    let emails = portal.emails_when(codes).await;
    assert_eq!(emails.len(), codes, "one letter about it");
    assert!(
        emails.iter().any(|email| email.contains("5 incorrect codes. Active sessions are not affected.")
            && email.contains("192.0.2.7"))
    );
    let right = submit_code(&mut browsers[2], &code).await;
    assert_eq!(right.status, StatusCode::GONE, "the right code of another sign-in went with them");
    assert_eq!(browsers[1].post("/auth/code/resend", "").await.status, StatusCode::GONE);

    let rejected = portal.browser().follow_callback(claims("1", "ann@company.com")).await;
    assert_eq!(rejected.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(rejected.headers[header::RETRY_AFTER], WRONG_CODE_LOCKOUT.as_secs().to_string().as_str());
    assert_eq!(portal.emails().len(), codes);
    let other = portal.browser().follow_callback(claims("2", "ben@company.com")).await;
    assert_eq!(other.location(), "/auth/code", "others are not touched");
    portal.pass(WRONG_CODE_LOCKOUT);
    let mut browser = with_pending_code(&portal).await;
    let code = portal.latest_code();
    assert!(submit_code(&mut browser, &code).await.has_session(), "after the announced wait");
}

#[tokio::test]
async fn code_expires_after_ten_minutes() {
    let portal = TestPortal::open_with(SecondFactor::EmailCode).await;
    let (mut early, mut late) = (with_pending_code(&portal).await, with_pending_code(&portal).await);
    let code = portal.latest_code();
    portal.pass(Duration::from_secs(599));
    assert_eq!(early.get("/auth/code").await.status, StatusCode::OK);
    portal.pass(Duration::from_secs(1));
    let reply = submit_code(&mut late, &code).await;
    assert_eq!(reply.status, StatusCode::GONE);
    assert!(reply.body.contains("Sign-in expired") && late.cookies.is_empty());
    assert_eq!(early.get("/auth/code").await.status, StatusCode::GONE);
    assert_eq!(
        portal.browser().get("/auth/code").await.status,
        StatusCode::GONE,
        "without a pending sign-in"
    );
}

#[tokio::test]
async fn resend_is_delayed_and_limited() {
    let portal = TestPortal::open_with(SecondFactor::EmailCode).await;
    let mut browser = with_pending_code(&portal).await;
    let first = portal.latest_code();
    let soon = browser.post("/auth/code/resend", "").await;
    assert_eq!(soon.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(soon.headers[header::RETRY_AFTER], "30");
    assert!(
        soon.body.contains("You can request a new one in 30 seconds.") && soon.body.contains("name=\"code\"")
    );
    assert_eq!(portal.emails().len(), 1);
    for number in 2..=MAX_CODE_EMAILS_PER_SIGN_IN {
        portal.pass(CODE_EMAIL_INTERVAL);
        let sent = browser.post("/auth/code/resend", "").await;
        assert_eq!((sent.status, sent.location()), (StatusCode::SEE_OTHER, "/auth/code"));
        assert_eq!(portal.emails().len(), number as usize);
    }
    let shown = browser.get("/auth/code").await;
    assert!(shown.body.contains("09:16 UTC") && shown.body.contains("Earlier codes no longer work."));
    portal.pass(CODE_EMAIL_INTERVAL);
    let no_more = browser.post("/auth/code/resend", "").await;
    assert_eq!(no_more.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(no_more.body.contains("5 codes were sent, the maximum for one sign-in."));
    let newest = portal.latest_code();
    if first != newest {
        let old = submit_code(&mut browser, &first).await;
        assert_eq!(old.status, StatusCode::UNPROCESSABLE_ENTITY);
    }
    assert!(submit_code(&mut browser, &newest).await.has_session());
}

#[tokio::test]
async fn mail_failure_keeps_the_pending_sign_in() {
    let portal = TestPortal::open_with(SecondFactor::EmailCode).await;
    std::fs::write(portal.outbox(), "in the way").unwrap();
    let mut browser = with_pending_code(&portal).await;
    let shown = browser.get("/auth/code").await;
    assert!(
        shown.body.contains("Code not sent.") && shown.body.contains("Send code again"),
        "{}",
        shown.body
    );
    assert!(!shown.body.contains("name=\"code\""));
    let soon = browser.post("/auth/code/resend", "").await;
    assert_eq!(
        (soon.status, &soon.headers[header::RETRY_AFTER]),
        (StatusCode::TOO_MANY_REQUESTS, &"5".parse().unwrap())
    );
    // Failed emails count against no limit, so the sign-in works once the mail server is back.
    for _ in 0..2 * MAX_CODE_EMAILS_PER_IDENTITY {
        portal.pass(FAILED_CODE_EMAIL_INTERVAL);
        let again = browser.post("/auth/code/resend", "").await;
        assert_eq!(again.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(again.body.contains("The mail server did not accept the email."));
    }
    std::fs::remove_file(portal.outbox()).unwrap();
    portal.pass(FAILED_CODE_EMAIL_INTERVAL);
    assert_eq!(browser.post("/auth/code/resend", "").await.location(), "/auth/code");
    let code = portal.latest_code();
    assert!(submit_code(&mut browser, &code).await.has_session());
}

#[tokio::test]
async fn old_code_works_until_the_new_one_is_sent() {
    let portal = TestPortal::open_with(SecondFactor::EmailCode).await;
    let mut browser = with_pending_code(&portal).await;
    let first = portal.latest_code();
    portal.pass(CODE_EMAIL_INTERVAL);
    let away = portal.folder.path().join("away");
    std::fs::rename(portal.outbox(), &away).unwrap();
    std::fs::write(portal.outbox(), "in the way").unwrap();
    let failed = browser.post("/auth/code/resend", "").await;
    assert_eq!(failed.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(failed.body.contains("The latest code still works.") && failed.body.contains("09:14 UTC"));
    assert!(submit_code(&mut browser, &first).await.has_session());
}

#[tokio::test]
async fn daily_limit_of_codes_has_its_own_page() {
    let portal = TestPortal::open_with(SecondFactor::EmailCode).await;
    for _ in 0..MAX_CODE_EMAILS_PER_IDENTITY_AND_DAY {
        let mut browser = with_pending_code(&portal).await;
        let code = portal.latest_code();
        assert!(submit_code(&mut browser, &code).await.has_session());
        portal.pass(Duration::from_secs(1));
    }
    let rejected = portal.browser().follow_callback(claims("1", "ann@company.com")).await;
    assert_eq!(rejected.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(
        rejected.body.contains("the daily limit is reached")
            && rejected.body.contains("after 2026-11-14 09:14 UTC"),
        "{}",
        rejected.body
    );
    portal.pass(Duration::from_secs(86_400));
    with_pending_code(&portal).await;
}

#[tokio::test]
async fn too_many_code_emails_have_their_own_message() {
    let portal = TestPortal::open_with(SecondFactor::EmailCode).await;
    let mut first = with_pending_code(&portal).await;
    for _ in 1..MAX_CODE_EMAILS_PER_IDENTITY {
        with_pending_code(&portal).await;
    }
    portal.pass(CODE_EMAIL_INTERVAL);
    let rejected = first.post("/auth/code/resend", "").await;
    assert_eq!(rejected.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(
        rejected.body.contains("Too many unused codes") && rejected.body.contains("after 10:14 UTC"),
        "{}",
        rejected.body
    );
    let rejected = portal.browser().follow_callback(claims("1", "ann@company.com")).await;
    assert_eq!(rejected.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(rejected.body.contains("Too many unused codes") && rejected.body.contains("href=\"/\""));
}

#[tokio::test]
async fn lockout_email_is_sent_even_if_the_request_is_dropped() {
    let mail = SlowMailServer::start().await;
    let portal = TestPortal::open_at(SecondFactor::EmailCode, &mail.route()).await;
    mail.resume();
    let mut guesser = with_pending_code(&portal).await;
    for _ in 0..4 {
        assert_eq!(submit_code(&mut guesser, "000000").await.status, StatusCode::UNPROCESSABLE_ENTITY);
    }
    mail.pause();
    let before = mail.callers();
    let request = tokio::spawn(async move { submit_code(&mut guesser, "000000").await });
    while mail.callers() == before {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    request.abort();
    let _ = request.await;
    mail.resume();
    let sent = tokio::time::timeout(
        Duration::from_secs(15),
        mail.wait_for_email("Sign-in locked after incorrect codes"),
    )
    .await;
    assert!(sent.is_ok(), "the letter was dropped with the request");
}

#[tokio::test]
async fn duplicate_session_cookies_do_not_spend_a_code_attempt() {
    let portal = TestPortal::open_with(SecondFactor::EmailCode).await;
    let mut browser = with_pending_code(&portal).await;
    let planted = "a".repeat(43);
    browser.cookies.insert("session".to_owned(), format!("{planted}; session={planted}"));
    let code = portal.latest_code();
    let rejected = submit_code(&mut browser, &code).await;
    assert_eq!(rejected.status, StatusCode::BAD_REQUEST);
    assert!(rejected.body.contains("two cookies named") && !rejected.has_session());
    browser.cookies.remove("session");
    assert!(submit_code(&mut browser, &code).await.has_session(), "the code was not used up");
}

#[tokio::test]
async fn every_blocked_sign_in_offers_another_account() {
    let portal = TestPortal::open_with(SecondFactor::EmailCode).await;
    let mut browser = with_pending_code(&portal).await;
    let link = "href=\"/auth/sign-in?return_to=%2Fclients&#38;as=someone-else\"";
    let code_page = browser.get("/auth/code").await;
    assert!(code_page.body.contains(link), "{}", code_page.body);
    let rejected = portal.browser().follow_callback(claims("9", "x@elsewhere.com")).await;
    assert!(rejected.body.contains(link), "{}", rejected.body);
    browser.post("/auth/code", &format!("code={}", portal.latest_code())).await;
    let ann = portal.portal.store.people.list_people().await.unwrap()[0].id;
    portal.portal.store.people.remove_person(manage(&portal.portal), ann, Box::new(|_| true)).await.unwrap();
    let mut browser = with_pending_code(&portal).await;
    let removed = browser.post("/auth/code", &format!("code={}", portal.latest_code())).await;
    assert!(removed.body.contains("href=\"/auth/sign-in?as=someone-else\""), "{}", removed.body);
}

#[tokio::test]
async fn code_works_only_in_its_browser() {
    let portal = TestPortal::open_with(SecondFactor::EmailCode).await;
    let mut first = with_pending_code(&portal).await;
    let firsts_code = portal.latest_code();
    let mut second = with_pending_code(&portal).await;
    let seconds_code = portal.latest_code();
    if firsts_code != seconds_code {
        assert!(!submit_code(&mut second, &firsts_code).await.has_session());
    }
    assert!(!submit_code(&mut portal.browser(), &firsts_code).await.has_session());
    assert!(submit_code(&mut first, &firsts_code).await.has_session());
}
