//! The code by mail.

use super::Desk;
use super::browser::{Browser, claims};
use super::firm::manage;
use super::mail_server::SlowMailServer;
use crate::SecondFactor;
use axum::http::{StatusCode, header};
use chancery_store::{
    CODE_PAUSE, CODE_TRIES_MEMORY, FAILED_LETTER_PAUSE, MAX_CODES_PER_IDENTITY, MAX_CODES_PER_SIGN_IN,
};
use std::time::Duration;

async fn half_signed_in(desk: &Desk) -> Browser {
    let mut browser = desk.browser();
    let reply = browser.come_back(claims("1", "ann@company.com")).await;
    assert_eq!((reply.status, reply.location()), (StatusCode::SEE_OTHER, "/auth/code"), "{reply:?}");
    browser
}

async fn type_code(browser: &mut Browser, code: &str) -> super::browser::Reply {
    browser.post("/auth/code", &format!("code={code}")).await
}

#[tokio::test]
async fn the_session_starts_with_the_reply_that_accepts_the_code_and_not_before() {
    let desk = Desk::open_with(SecondFactor::EmailCode).await;
    let mut browser = half_signed_in(&desk).await;
    assert_eq!(browser.cookies.keys().collect::<Vec<_>>(), ["sign_in_code"]);
    let asked = browser.get("/auth/code").await;
    assert_eq!(asked.status, StatusCode::OK);
    for part in [
        "ann@<wbr>company.com",
        "09:14 UTC",
        "10 minutes",
        "autocomplete=\"one-time-code\"",
        "inputmode=\"numeric\"",
        "<title>Enter your code – Marlow &#38; Finch</title>",
    ] {
        assert!(asked.body.contains(part), "{part}: {}", asked.body);
    }
    assert_eq!(browser.get("/clients").await.status, StatusCode::SEE_OTHER, "half is not signed in");
    let code = desk.newest_code();
    let accepted = type_code(&mut browser, &code).await;
    assert_eq!((accepted.status, accepted.location()), (StatusCode::SEE_OTHER, "/clients"));
    assert!(accepted.has_session());
    assert_eq!(browser.cookies.keys().collect::<Vec<_>>(), ["session"], "the code's cookie is taken back");
    assert_eq!(browser.get("/clients").await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_code_is_taken_as_people_paste_it_and_once() {
    let desk = Desk::open_with(SecondFactor::EmailCode).await;
    let mut browser = half_signed_in(&desk).await;
    let mut copy = desk.browser();
    copy.cookies = browser.cookies.clone();
    let code = desk.newest_code();
    let (first, second) = code.split_at(3);
    let accepted = type_code(&mut browser, &format!("+{first}+{second}%0A")).await;
    assert!(accepted.has_session(), "{accepted:?}");
    let again = type_code(&mut copy, &code).await;
    assert_eq!(again.status, StatusCode::GONE);
    assert!(!again.has_session() && copy.cookies.is_empty());
}

#[tokio::test]
async fn a_wrong_code_says_how_many_tries_are_left_and_what_was_typed_stays() {
    let desk = Desk::open_with(SecondFactor::EmailCode).await;
    let mut browser = half_signed_in(&desk).await;
    let wrong = desk.wrong_code();
    let reply = type_code(&mut browser, &wrong).await;
    assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY);
    for part in [
        "<title>Error: enter your code",
        "you have 4 tries left",
        "aria-invalid=\"true\" aria-describedby=\"code-error\"",
        &format!("value=\"{wrong}\""),
    ] {
        assert!(reply.body.contains(part), "{part}: {}", reply.body);
    }
    // What is no code at all costs no try.
    for typed in ["", "12345", "abcdef", "1234567", "%3Cscript%3E", &"9".repeat(5_000)] {
        let reply = type_code(&mut browser, typed).await;
        assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY, "{typed}");
        assert!(reply.body.contains("Type the six digits") && !reply.body.contains("<script"));
        assert!(reply.body.len() < 10_000);
    }
    assert!(type_code(&mut browser, &wrong).await.body.contains("you have 3 tries left"));
}

#[tokio::test]
async fn five_wrong_codes_over_all_sign_ins_destroy_them_all_and_the_owner_is_told_once() {
    let desk = Desk::open_with(SecondFactor::EmailCode).await;
    let mut browsers = Vec::new();
    for _ in 0..3 {
        browsers.push(half_signed_in(&desk).await);
    }
    let code = desk.newest_code();
    let mut codes = desk.letters().len();
    assert_eq!(codes, 3);
    for number in 0..4 {
        let reply = type_code(&mut browsers[number % 2], "000000").await;
        // One in a million is the right one; then the test says so.
        assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY, "{reply:?}");
    }
    let last = type_code(&mut browsers[0], "000000").await;
    assert_eq!(last.status, StatusCode::GONE);
    assert!(last.body.contains("Too many wrong codes") && !last.has_session());
    assert!(last.body.contains("We tell the account") && last.body.contains("href=\"/\""), "{}", last.body);
    codes += 1;
    let letters = desk.letters_when(codes).await;
    assert_eq!(letters.len(), codes, "one letter about it");
    assert!(
        letters
            .iter()
            .any(|letter| letter.contains("5 wrong codes or more were typed") && letter.contains("192.0.2.7"))
    );
    let right = type_code(&mut browsers[2], &code).await;
    assert_eq!(right.status, StatusCode::GONE, "the right code of another sign-in went with them");
    assert_eq!(browsers[1].post("/auth/code/resend", "").await.status, StatusCode::GONE);

    let refused = desk.browser().come_back(claims("1", "ann@company.com")).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.headers[header::RETRY_AFTER], CODE_TRIES_MEMORY.as_secs().to_string().as_str());
    assert_eq!(desk.letters().len(), codes);
    let other = desk.browser().come_back(claims("2", "ben@company.com")).await;
    assert_eq!(other.location(), "/auth/code", "others are not touched");
    desk.pass(CODE_TRIES_MEMORY);
    let mut browser = half_signed_in(&desk).await;
    let code = desk.newest_code();
    assert!(type_code(&mut browser, &code).await.has_session(), "waiting as long as it was told");
}

#[tokio::test]
async fn a_code_works_for_ten_minutes() {
    let desk = Desk::open_with(SecondFactor::EmailCode).await;
    let (mut early, mut late) = (half_signed_in(&desk).await, half_signed_in(&desk).await);
    let code = desk.newest_code();
    desk.pass(Duration::from_secs(599));
    assert_eq!(early.get("/auth/code").await.status, StatusCode::OK);
    desk.pass(Duration::from_secs(1));
    let reply = type_code(&mut late, &code).await;
    assert_eq!(reply.status, StatusCode::GONE);
    assert!(reply.body.contains("This sign-in is over") && late.cookies.is_empty());
    assert_eq!(early.get("/auth/code").await.status, StatusCode::GONE);
    assert_eq!(desk.browser().get("/auth/code").await.status, StatusCode::GONE, "and for nobody at all");
}

#[tokio::test]
async fn a_new_code_is_sent_after_a_pause_and_not_for_ever() {
    let desk = Desk::open_with(SecondFactor::EmailCode).await;
    let mut browser = half_signed_in(&desk).await;
    let first = desk.newest_code();
    let soon = browser.post("/auth/code/resend", "").await;
    assert_eq!(soon.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(soon.headers[header::RETRY_AFTER], "30");
    assert!(soon.body.contains("can be sent in 30 seconds") && soon.body.contains("name=\"code\""));
    assert_eq!(desk.letters().len(), 1);
    for number in 2..=MAX_CODES_PER_SIGN_IN {
        desk.pass(CODE_PAUSE);
        let sent = browser.post("/auth/code/resend", "").await;
        assert_eq!((sent.status, sent.location()), (StatusCode::SEE_OTHER, "/auth/code"));
        assert_eq!(desk.letters().len(), number as usize);
    }
    let shown = browser.get("/auth/code").await;
    assert!(shown.body.contains("09:16 UTC") && shown.body.contains("earlier ones no longer work"));
    desk.pass(CODE_PAUSE);
    let no_more = browser.post("/auth/code/resend", "").await;
    assert_eq!(no_more.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(no_more.body.contains("no more will be"));
    let newest = desk.newest_code();
    if first != newest {
        let old = type_code(&mut browser, &first).await;
        assert_eq!(old.status, StatusCode::UNPROCESSABLE_ENTITY);
    }
    assert!(type_code(&mut browser, &newest).await.has_session());
}

#[tokio::test]
async fn a_mail_server_that_is_down_loses_nothing() {
    let desk = Desk::open_with(SecondFactor::EmailCode).await;
    std::fs::write(desk.outbox(), "in the way").unwrap();
    let mut browser = half_signed_in(&desk).await;
    let shown = browser.get("/auth/code").await;
    assert!(shown.body.contains("Not sent.") && shown.body.contains("Send the code again"), "{}", shown.body);
    assert!(!shown.body.contains("name=\"code\""));
    let soon = browser.post("/auth/code/resend", "").await;
    assert_eq!(
        (soon.status, &soon.headers[header::RETRY_AFTER]),
        (StatusCode::TOO_MANY_REQUESTS, &"5".parse().unwrap())
    );
    // However often it is tried, nobody is kept out for it when the mail server is back.
    for _ in 0..2 * MAX_CODES_PER_IDENTITY {
        desk.pass(FAILED_LETTER_PAUSE);
        let again = browser.post("/auth/code/resend", "").await;
        assert_eq!(again.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(again.body.contains("nothing is lost"));
    }
    std::fs::remove_file(desk.outbox()).unwrap();
    desk.pass(FAILED_LETTER_PAUSE);
    assert_eq!(browser.post("/auth/code/resend", "").await.location(), "/auth/code");
    let code = desk.newest_code();
    assert!(type_code(&mut browser, &code).await.has_session());
}

#[tokio::test]
async fn a_code_that_arrived_works_until_the_next_letter_has_gone_out() {
    let desk = Desk::open_with(SecondFactor::EmailCode).await;
    let mut browser = half_signed_in(&desk).await;
    let first = desk.newest_code();
    desk.pass(CODE_PAUSE);
    let away = desk.folder.path().join("away");
    std::fs::rename(desk.outbox(), &away).unwrap();
    std::fs::write(desk.outbox(), "in the way").unwrap();
    let failed = browser.post("/auth/code/resend", "").await;
    assert_eq!(failed.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(
        failed.body.contains("The code in the last one still works") && failed.body.contains("09:14 UTC")
    );
    assert!(type_code(&mut browser, &first).await.has_session());
}

#[tokio::test]
async fn very_many_letters_have_words_of_their_own() {
    let desk = Desk::open_with(SecondFactor::EmailCode).await;
    let mut first = half_signed_in(&desk).await;
    for _ in 1..MAX_CODES_PER_IDENTITY {
        half_signed_in(&desk).await;
    }
    desk.pass(CODE_PAUSE);
    let refused = first.post("/auth/code/resend", "").await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(
        refused.body.contains("Very many codes") && refused.body.contains("after 10:14 UTC"),
        "{}",
        refused.body
    );
    let refused = desk.browser().come_back(claims("1", "ann@company.com")).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(refused.body.contains("Very many codes") && refused.body.contains("href=\"/\""));
}

#[tokio::test]
async fn a_guesser_who_hangs_up_does_not_keep_the_owner_from_being_told() {
    let mail = SlowMailServer::start().await;
    let desk = Desk::open_at(SecondFactor::EmailCode, &mail.route()).await;
    mail.answer();
    let mut guesser = half_signed_in(&desk).await;
    for _ in 0..4 {
        assert_eq!(type_code(&mut guesser, "000000").await.status, StatusCode::UNPROCESSABLE_ENTITY);
    }
    mail.pause();
    let before = mail.callers();
    let request = tokio::spawn(async move { type_code(&mut guesser, "000000").await });
    while mail.callers() == before {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    request.abort();
    let _ = request.await;
    mail.answer();
    let told = tokio::time::timeout(Duration::from_secs(15), mail.letter("Signing in was stopped")).await;
    assert!(told.is_ok(), "the letter was dropped with the request");
}

#[tokio::test]
async fn two_session_cookies_are_refused_before_a_code_is_tried() {
    let desk = Desk::open_with(SecondFactor::EmailCode).await;
    let mut browser = half_signed_in(&desk).await;
    let planted = "a".repeat(43);
    browser.cookies.insert("session".to_owned(), format!("{planted}; session={planted}"));
    let code = desk.newest_code();
    let refused = type_code(&mut browser, &code).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.body.contains("two cookies named") && !refused.has_session());
    browser.cookies.remove("session");
    assert!(type_code(&mut browser, &code).await.has_session(), "the code was not used up");
}

#[tokio::test]
async fn somebody_else_can_sign_in_from_every_page_that_keeps_this_one_out() {
    let desk = Desk::open_with(SecondFactor::EmailCode).await;
    let mut browser = half_signed_in(&desk).await;
    let link = "href=\"/auth/sign-in?return_to=%2Fclients&#38;as=someone-else\"";
    let asked = browser.get("/auth/code").await;
    assert!(asked.body.contains(link), "{}", asked.body);
    let refused = desk.browser().come_back(claims("9", "x@elsewhere.com")).await;
    assert!(refused.body.contains(link), "{}", refused.body);
    browser.post("/auth/code", &format!("code={}", desk.newest_code())).await;
    let ann = desk.portal.store.people.list_people().await.unwrap()[0].id;
    desk.portal.store.people.remove_person(manage(&desk.portal), ann).await.unwrap();
    let mut browser = half_signed_in(&desk).await;
    let removed = browser.post("/auth/code", &format!("code={}", desk.newest_code())).await;
    assert!(removed.body.contains("href=\"/auth/sign-in?as=someone-else\""), "{}", removed.body);
}

#[tokio::test]
async fn a_code_of_one_browser_is_worth_nothing_in_another() {
    let desk = Desk::open_with(SecondFactor::EmailCode).await;
    let mut first = half_signed_in(&desk).await;
    let firsts_code = desk.newest_code();
    let mut second = half_signed_in(&desk).await;
    let seconds_code = desk.newest_code();
    if firsts_code != seconds_code {
        assert!(!type_code(&mut second, &firsts_code).await.has_session());
    }
    assert!(!type_code(&mut desk.browser(), &firsts_code).await.has_session());
    assert!(type_code(&mut first, &firsts_code).await.has_session());
}
