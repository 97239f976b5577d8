//! The consent page and its form.

use super::harness::{Browser, TestProvider, authorize_path};
use std::time::Duration;

#[tokio::test]
async fn consent_page_lists_exactly_the_shared_claims() {
    let served = TestProvider::start().await;
    let browser = served.sign_in(&served.account("ann@example.com").await).await;
    let page = served.get(&browser, &authorize_path(&[])).await;
    assert_eq!(page.status, 200);
    for text in [
        "Client &#60;portal&#62;",
        "Your user ID",
        "Your email address</dt><dd>ann@<wbr>example.com",
        "localhost:8081",
    ] {
        assert!(page.body.contains(text), "{text}: {}", page.body);
    }
    assert!(page.header("content-security-policy").contains("form-action 'self' http://localhost:8081"));
    assert_eq!(page.header("cache-control"), "no-store");
    let little = served.get(&browser, &authorize_path(&[("scope", "openid")])).await;
    assert!(!little.body.contains("email address"), "{}", little.body);
}

#[tokio::test]
async fn consent_is_remembered_for_equal_or_narrower_scope() {
    let served = TestProvider::start().await;
    let account = served.account("ann@example.com").await;
    let browser = served.sign_in(&account).await;
    let returned = served.allow(&browser, &authorize_path(&[("scope", "openid")])).await.returned();
    assert!(returned.contains_key("code"));
    assert!(
        served.get(&browser, &authorize_path(&[("scope", "openid")])).await.returned().contains_key("code")
    );
    assert_eq!(served.get(&browser, &authorize_path(&[])).await.status, 200, "the address is more");
    served.allow(&browser, &authorize_path(&[])).await;
    let later = served.sign_in(&account).await;
    assert!(served.get(&later, &authorize_path(&[])).await.returned().contains_key("code"));
    let other_client = served.get(&browser, &authorize_path(&[("client_id", "public")])).await;
    assert_eq!(other_client.status, 200, "another application is another question");
    let reply = served.get(&browser, &authorize_path(&[("prompt", "consent")])).await;
    assert_eq!(reply.status, 200, "unless the application wants it");
}

#[tokio::test]
async fn denied_consent_returns_access_denied_and_is_not_stored() {
    let served = TestProvider::start().await;
    let browser = served.sign_in(&served.account("ann@example.com").await).await;
    let question = served.get(&browser, &authorize_path(&[])).await.hidden("question");
    let form = [("question", question.as_str()), ("decision", "refuse")];
    let returned = served.post(&browser, "/consent", &form).await.returned();
    assert_eq!((returned["error"].as_str(), returned["state"].as_str()), ("access_denied", "the state"));
    assert_eq!(served.get(&browser, &authorize_path(&[])).await.status, 200, "asked again");
}

#[tokio::test]
async fn denied_consent_revokes_earlier_consent() {
    let served = TestProvider::start().await;
    let (_, browser) = served.consenting("ann@example.com").await;
    assert!(served.get(&browser, &authorize_path(&[])).await.returned().contains_key("code"));
    let question = served.get(&browser, &authorize_path(&[("prompt", "consent")])).await.hidden("question");
    let form = [("question", question.as_str()), ("decision", "refuse")];
    assert_eq!(served.post(&browser, "/consent", &form).await.returned()["error"], "access_denied");
    let silent = served.get(&browser, &authorize_path(&[("prompt", "none")])).await;
    assert_eq!(silent.returned()["error"], "consent_required");
}

#[tokio::test]
async fn consent_form_works_once_in_its_session_before_it_expires() {
    let served = TestProvider::start().await;
    let account = served.account("ann@example.com").await;
    let browser = served.sign_in(&account).await;
    let ask =
        async || served.get(&browser, &authorize_path(&[("prompt", "consent")])).await.hidden("question");
    let submit = async |browser: &Browser, question: &str| {
        served.post(browser, "/consent", &[("question", question), ("decision", "allow")]).await
    };

    let question = ask().await;
    assert!(submit(&browser, &question).await.returned().contains_key("code"));
    assert_eq!(submit(&browser, &question).await.status, 410, "once");

    let question = ask().await;
    let elsewhere = served.sign_in(&account).await;
    assert_eq!(submit(&elsewhere, &question).await.status, 410, "another session of the same person");
    let question = ask().await;
    let ben = served.sign_in(&served.account("ben@example.com").await).await;
    assert_eq!(submit(&ben, &question).await.status, 410, "another person");
    let question = ask().await;
    assert_eq!(submit(&Browser::default(), &question).await.status, 410, "a signed-out browser");
    assert_eq!(submit(&browser, &"x".repeat(43)).await.status, 410, "a question that was never asked");
    assert_eq!(submit(&browser, "").await.status, 410);

    let question = ask().await;
    let form = format!("question={question}&decision=allow");
    let reply = served.post_from("cross-site", &browser, "/consent", &form).await;
    assert_eq!(reply.status, 403, "another site's form");
    assert_eq!(served.post(&browser, "/consent", &[("question", &question)]).await.status, 400, "no answer");
    served.clock.advance(Duration::from_secs(29 * 60));
    served.get(&browser, &authorize_path(&[])).await;
    served.clock.advance(Duration::from_secs(29 * 60));
    served.get(&browser, &authorize_path(&[])).await;
    served.clock.advance(Duration::from_secs(2 * 60));
    assert_eq!(submit(&browser, &question).await.status, 410, "after an hour");
}

#[tokio::test]
async fn consent_page_offers_another_account() {
    let served = TestProvider::start().await;
    let browser = served.sign_in(&served.account("ann@example.com").await).await;
    let page = served.get(&browser, &authorize_path(&[])).await;
    let (_, rest) = page.body.split_once("Not you? <a href=\"").unwrap();
    let link = rest.split('"').next().unwrap().replace("&#38;", "&");
    assert_eq!(served.get(&browser, &link).await.redirect_to().0, "/sign-in");
}

#[tokio::test]
async fn resubmitted_consent_form_recovers() {
    let served = TestProvider::start().await;
    let browser = served.sign_in(&served.account("ann@example.com").await).await;
    for (decision, expected) in [("refuse", "error"), ("allow", "code")] {
        let page = served.get(&browser, &authorize_path(&[])).await;
        let (question, request) = (page.hidden("question"), page.hidden("request").replace("&#38;", "&"));
        let form = [("question", question.as_str()), ("request", request.as_str()), ("decision", decision)];
        assert!(served.post(&browser, "/consent", &form).await.returned().contains_key(expected));
        let mut again = served.post(&browser, "/consent", &form).await;
        if decision == "allow" {
            // Allowed by the stored consent, not by the form.
            assert_eq!((again.status, again.header("location").starts_with("/authorize?")), (303, true));
            again = served.get(&browser, again.header("location")).await;
        }
        assert!(again.returned().contains_key(expected), "{decision}");
    }
}

#[tokio::test]
async fn consent_is_remembered_after_sign_out_and_in_other_browsers_until_it_is_withdrawn() {
    let served = TestProvider::start().await;
    let (account, browser) = served.consenting("ann@example.com").await;
    served.post(&browser, "/sign-out", &[]).await.redirect_to();
    served.clock.advance(Duration::from_secs(400 * 24 * 3_600));
    for prompt in ["", "login", "select_account"] {
        let other_browser = served.sign_in(&account).await;
        let path = authorize_path(&[("prompt", prompt)]);
        let mut reply = served.get(&other_browser, &path).await;
        if !prompt.is_empty() {
            served.clock.advance(Duration::from_secs(1));
            let fresh = served.sign_in(&account).await;
            reply = served.get(&fresh, &reply.redirect_to().1["return_to"]).await;
        }
        assert!(reply.returned().contains_key("code"), "{prompt}: no second question");
    }
    let home = served.sign_in(&account).await;
    let page = served.get(&home, "/").await;
    assert!(page.body.contains("You allowed <strong>Client &#60;portal&#62;</strong>"), "{}", page.body);
    let form = [("client_id", "portal")];
    let foreign = served.post_from("cross-site", &home, "/consents/withdraw", "client_id=portal").await;
    assert_eq!(foreign.status, 403);
    assert_eq!(served.post(&home, "/consents/withdraw", &form).await.redirect_to().0, "/");
    assert!(!served.get(&home, "/").await.body.contains("You allowed"));
    assert_eq!(served.get(&home, &authorize_path(&[])).await.status, 200, "asked again");
    let signed_out = served.post(&Browser::default(), "/consents/withdraw", &form).await;
    assert_eq!(signed_out.redirect_to().0, "/sign-in");
}
