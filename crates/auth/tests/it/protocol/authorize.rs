//! `/authorize`: who sees which error, and when the user is not asked at all.

use super::harness::{Browser, CALLBACK, TestProvider, authorize_path, claims, encoded};
use chancery_domain::Clock as _;
use std::time::Duration;

#[tokio::test]
async fn bad_client_or_redirect_uri_gets_a_page_and_no_redirect() {
    let served = TestProvider::start().await;
    let (_, browser) = served.consenting("ann@example.com").await;
    for changes in [
        [("client_id", "")],
        [("client_id", "nobody")],
        [("redirect_uri", "")],
        [("redirect_uri", "https://evil.example/")],
        [("redirect_uri", "http://localhost:8081/auth/callback/")],
        [("redirect_uri", "http://localhost:8081/auth/callback?a=b")],
    ] {
        let reply = served.get(&browser, &authorize_path(&changes)).await;
        assert_eq!(reply.status, 400, "{changes:?}");
        assert_eq!(reply.header("location"), "");
        assert!(reply.body.contains("Invalid sign-in request"), "{}", reply.body);
        assert!(reply.body.contains(changes[0].0), "the page names the parameter: {}", reply.body);
        assert!(!reply.body.contains("evil.example"));
    }
    let twice = format!("{}&{}", authorize_path(&[]), encoded(&[("redirect_uri", CALLBACK)]));
    assert_eq!(served.get(&browser, &twice).await.status, 400);
}

#[tokio::test]
async fn other_errors_redirect_with_state_and_iss() {
    let served = TestProvider::start().await;
    for (changes, error) in [
        ([("response_type", "")], "invalid_request"),
        ([("response_type", "id_token")], "unsupported_response_type"),
        ([("scope", "email")], "invalid_scope"),
        ([("code_challenge", "")], "invalid_request"),
        ([("code_challenge_method", "plain")], "invalid_request"),
        ([("response_mode", "form_post")], "invalid_request"),
        ([("request", "e30.e30.")], "request_not_supported"),
        ([("request_uri", "https://a.example/b")], "request_uri_not_supported"),
        ([("registration", "{}")], "registration_not_supported"),
        ([("id_token_hint", "not a token")], "invalid_request"),
        ([("prompt", "none")], "login_required"),
    ] {
        let returned = served.get(&Browser::default(), &authorize_path(&changes)).await.returned();
        assert_eq!(returned["error"], error, "{changes:?}");
        assert_eq!(returned["state"], "the state");
        assert!(!returned["error_description"].is_empty());
        assert!(!returned.contains_key("code"));
    }
}

#[tokio::test]
async fn sign_in_resumes_the_authorization_request() {
    let served = TestProvider::start().await;
    let reply = served.get(&Browser::default(), &authorize_path(&[])).await;
    let (path, parameters) = reply.redirect_to();
    assert_eq!(path, "/sign-in");
    let (_, browser) = served.consenting("ann@example.com").await;
    let returned = served.get(&browser, &parameters["return_to"]).await.returned();
    assert_eq!(returned["state"], "the state");
    assert_eq!(returned["code"].len(), 43);
}

#[tokio::test]
async fn login_hint_prefills_the_sign_in_page() {
    let served = TestProvider::start().await;
    let hinted = authorize_path(&[("login_hint", "Ann@example.com")]);
    let reply = served.get(&Browser::default(), &hinted).await;
    let page = served.get(&Browser::default(), reply.header("location")).await;
    assert_eq!(page.status, 200);
    assert!(page.body.contains("value=\"ann@example.com\""), "{}", page.body);
    let hostile = authorize_path(&[("login_hint", "\"><script>")]);
    let reply = served.get(&Browser::default(), &hostile).await;
    let page = served.get(&Browser::default(), reply.header("location")).await;
    assert!(!page.body.contains("<script>"), "{}", page.body);
}

#[tokio::test]
async fn too_long_request_is_rejected() {
    let served = TestProvider::start().await;
    let long = "x".repeat(3_000);
    let reply = served.get(&Browser::default(), &authorize_path(&[("state", &long)])).await;
    assert_eq!(reply.status, 400);
    assert!(reply.body.contains("too long"), "{}", reply.body);
    let longer = "x".repeat(20_000);
    assert_eq!(served.get(&Browser::default(), &authorize_path(&[("state", &longer)])).await.status, 400);
}

#[tokio::test]
async fn posted_authorization_request_redirects_to_get() {
    let served = TestProvider::start().await;
    let (_, browser) = served.consenting("ann@example.com").await;
    let path = authorize_path(&[]);
    let (_, query) = path.split_once('?').unwrap();
    // A cross-site form is sent without our cookie.
    let reply = served.post_from("cross-site", &Browser::default(), "/authorize", query).await;
    assert_eq!(reply.status, 303);
    assert_eq!(reply.header("location"), path);
    assert!(served.get(&browser, reply.header("location")).await.returned().contains_key("code"));
    let bad = served.post_from("cross-site", &Browser::default(), "/authorize", "a=\u{e9}").await;
    assert_eq!(bad.status, 400);
    let large = served.post_from("cross-site", &Browser::default(), "/authorize", &"x".repeat(16_385)).await;
    assert_eq!(large.status, 413);
}

#[tokio::test]
async fn prompt_none_returns_login_or_consent_required() {
    let served = TestProvider::start().await;
    let account = served.account("ann@example.com").await;
    let browser = served.sign_in(&account).await;
    let silent = authorize_path(&[("prompt", "none")]);
    assert_eq!(served.get(&browser, &silent).await.returned()["error"], "consent_required");
    served.allow(&browser, &authorize_path(&[])).await;
    assert!(served.get(&browser, &silent).await.returned().contains_key("code"));
}

#[tokio::test]
async fn prompt_login_and_max_age_force_reauthentication() {
    let served = TestProvider::start().await;
    let (account, browser) = served.consenting("ann@example.com").await;
    served.clock.advance(Duration::from_secs(100));
    for changes in
        [[("prompt", "login")], [("prompt", "select_account")], [("max_age", "99")], [("max_age", "0")]]
    {
        let (path, parameters) = served.get(&browser, &authorize_path(&changes)).await.redirect_to();
        assert_eq!(path, "/sign-in", "{changes:?}");
        let again = served.get(&browser, &parameters["return_to"]).await.redirect_to();
        assert_eq!(again.0, "/sign-in", "coming back without having signed in changes nothing");
        served.clock.advance(Duration::from_secs(5));
        let fresh = served.sign_in(&account).await;
        served.clock.advance(Duration::from_secs(5));
        let returned = served.get(&fresh, &parameters["return_to"]).await.returned();
        assert!(returned.contains_key("code"), "{changes:?}: {returned:?}");
    }
    let recent = served.get(&browser, &authorize_path(&[("max_age", "100000")])).await;
    assert!(recent.returned().contains_key("code"));
}

#[tokio::test]
async fn reauthentication_mark_cannot_be_forged_or_reused() {
    let served = TestProvider::start().await;
    let (account, browser) = served.consenting("ann@example.com").await;
    let now = served.clock.now().0;
    for forged in [
        ("sent_to_sign_in_at", now.to_string()),
        ("detour", now.to_string()),
        ("detour", format!("{now}.{}", "A".repeat(43))),
        ("detour", format!("{now}.")),
    ] {
        let path = authorize_path(&[("prompt", "login"), (forged.0, &forged.1)]);
        assert_eq!(served.get(&browser, &path).await.redirect_to().0, "/sign-in", "{forged:?}");
    }
    let (_, parameters) = served.get(&browser, &authorize_path(&[("prompt", "login")])).await.redirect_to();
    let way_back = &parameters["return_to"];
    let fresh = served.sign_in(&account).await;
    let for_another_request = way_back.replace("the+nonce", "another");
    assert_ne!(way_back, &for_another_request);
    assert_eq!(served.get(&fresh, &for_another_request).await.redirect_to().0, "/sign-in", "its own alone");
    let earlier = way_back.replace(&format!("detour={now}"), &format!("detour={}", now - 1));
    assert_ne!(way_back, &earlier);
    assert_eq!(served.get(&fresh, &earlier).await.redirect_to().0, "/sign-in");
    assert!(served.get(&fresh, way_back).await.returned().contains_key("code"));
    assert_eq!(served.get(&fresh, way_back).await.redirect_to().0, "/sign-in", "once");
    let (_, parameters) = served.get(&fresh, &authorize_path(&[("prompt", "login")])).await.redirect_to();
    let fresher = served.sign_in(&account).await;
    served.clock.advance(Duration::from_secs(1_700));
    served.get(&fresher, "/authorize").await;
    served.clock.advance(Duration::from_secs(1_700));
    served.get(&fresher, &authorize_path(&[])).await;
    served.clock.advance(Duration::from_secs(200));
    assert_eq!(
        served.get(&fresher, &parameters["return_to"]).await.redirect_to().0,
        "/sign-in",
        "for an hour"
    );
}

#[tokio::test]
async fn consent_pages_and_codes_are_limited_per_account() {
    let served = TestProvider::start().await;
    let (_, browser) = served.consenting("ann@example.com").await;
    let mut rejected = 0;
    for _ in 0..120 {
        rejected += u32::from(served.get(&browser, &authorize_path(&[])).await.status == 429);
    }
    assert_eq!(rejected, 21, "one code was given with the consent");
    let mut rejected = 0;
    for _ in 0..120 {
        let reply = served.get(&browser, &authorize_path(&[("prompt", "consent")])).await;
        rejected += u32::from(reply.status == 429);
    }
    assert_eq!(rejected, 21);
    served.clock.advance(Duration::from_secs(600));
    assert!(served.get(&browser, &authorize_path(&[])).await.returned().contains_key("code"));
}

#[tokio::test]
async fn max_age_zero_with_prompt_none_is_login_required() {
    let served = TestProvider::start().await;
    let (_, browser) = served.consenting("ann@example.com").await;
    served.clock.advance(Duration::from_secs(1));
    let silent = authorize_path(&[("prompt", "none"), ("max_age", "0")]);
    assert_eq!(served.get(&browser, &silent).await.returned()["error"], "login_required");
}

#[tokio::test]
async fn id_token_hint_of_another_user_is_login_required() {
    let served = TestProvider::start().await;
    let (_, ann) = served.consenting("ann@example.com").await;
    let code = served.code(&ann, &[]).await;
    let id_token = served.exchange(&code).await.json()["id_token"].as_str().unwrap().to_owned();
    let (ben_account, ben) = served.consenting("ben@example.com").await;
    assert_ne!(claims(&id_token)["sub"], ben_account.subject.as_str());

    let hinted = authorize_path(&[("id_token_hint", &id_token)]);
    assert!(served.get(&ann, &hinted).await.returned().contains_key("code"));
    let (path, parameters) = served.get(&ben, &hinted).await.redirect_to();
    assert_eq!(path, "/sign-in");
    let ben = served.sign_in(&ben_account).await;
    let returned = served.get(&ben, &parameters["return_to"]).await.returned();
    assert_eq!(returned["error"], "login_required", "no endless asking");
    let silent = authorize_path(&[("id_token_hint", &id_token), ("prompt", "none")]);
    assert_eq!(served.get(&ben, &silent).await.returned()["error"], "login_required");
    let for_another_client = authorize_path(&[("id_token_hint", &id_token), ("client_id", "public")]);
    assert_eq!(served.get(&ann, &for_another_client).await.returned()["error"], "invalid_request");
}

#[tokio::test]
async fn acr_values_are_voluntary_and_survive_the_sign_in_redirect() {
    let served = TestProvider::start().await;
    let (account, browser) = served.consenting("ann@example.com").await;
    let code = served.code(&browser, &[("acr_values", "aal2 aal1")]).await;
    let id_token = served.exchange(&code).await.json()["id_token"].as_str().unwrap().to_owned();
    assert_eq!(claims(&id_token)["acr"], "aal1", "the level that was reached");
    let path = authorize_path(&[("acr_values", "aal2"), ("prompt", "login")]);
    let (page, parameters) = served.get(&browser, &path).await.redirect_to();
    assert_eq!(page, "/sign-in");
    assert!(parameters["return_to"].contains("acr_values=aal2"), "{parameters:?}");
    let fresh = served.sign_in(&account).await;
    assert!(served.get(&fresh, &parameters["return_to"]).await.returned().contains_key("code"));
}
