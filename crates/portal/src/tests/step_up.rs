//! Actions that need a recent authentication, and the pages that offer them.

use super::firm::Firm;
use axum::http::StatusCode;
use std::time::Duration;

/// A firm with an account, whose people signed in long ago.
async fn firm_after(time: Duration) -> (Firm, i64) {
    let mut firm = Firm::open().await;
    let created = firm.ruth.browser.post("/accounts", "name=Hale&rpm=60&tpm=60000").await;
    let account = firm.portal.portal.store.account_lookup.account_by_name(&"Hale".parse().unwrap()).await;
    assert_eq!(created.status, StatusCode::SEE_OTHER);
    firm.portal.pass(time);
    (firm, account.unwrap().id.0)
}

#[tokio::test]
async fn form_that_needs_it_asks_when_it_opens_and_reading_never_asks() {
    let (mut firm, id) = firm_after(Duration::from_secs(300)).await;
    let ben = firm.ben.id;
    for path in [
        format!("/accounts/{id}?open=key"),
        format!("/accounts/{id}?open=close"),
        "/accounts?open=key".to_owned(),
        format!("/team?person={ben}&open=role"),
        format!("/team?person={ben}&open=factors"),
        "/team?open=invite".to_owned(),
        "/clients/export".to_owned(),
    ] {
        let reply = firm.ruth.browser.get(&path).await;
        let encoded: String = form_urlencoded::byte_serialize(path.as_bytes()).collect();
        assert_eq!(reply.status, StatusCode::SEE_OTHER, "{path}");
        assert_eq!(reply.location(), format!("/auth/sign-in?return_to={encoded}&for=step-up"));
    }
    for path in [
        format!("/accounts/{id}"),
        "/accounts".to_owned(),
        "/team".to_owned(),
        format!("/team?person={ben}"),
        "/clients".to_owned(),
    ] {
        assert_eq!(firm.ruth.browser.get(&path).await.status, StatusCode::OK, "{path}");
    }
}

#[tokio::test]
async fn recent_authentication_opens_the_forms() {
    let (mut firm, id) = firm_after(Duration::from_secs(299)).await;
    let ben = firm.ben.id;
    for (path, part) in [
        (
            format!("/accounts/{id}?open=key"),
            "action=\"/accounts/1/keys\"".replace("/1/", &format!("/{id}/")),
        ),
        (format!("/accounts/{id}?open=close"), format!("action=\"/accounts/{id}/close\"")),
        ("/accounts?open=key".to_owned(), "action=\"/accounts/keys\"".to_owned()),
        (format!("/team?person={ben}&open=role"), "action=\"/team/role\"".to_owned()),
        ("/team?open=invite".to_owned(), "<option value=\"partner\">".to_owned()),
        ("/clients/export".to_owned(), "href=\"/clients/export.csv\"".to_owned()),
    ] {
        let page = firm.ruth.browser.get(&path).await;
        assert_eq!(page.status, StatusCode::OK, "{path}");
        assert!(page.body.contains(&part), "{part}: {}", page.body);
    }
}

#[tokio::test]
async fn late_form_changes_nothing_and_gives_the_text_back() {
    let (mut firm, id) = firm_after(Duration::from_secs(600)).await;
    let late =
        firm.ruth.browser.post(&format!("/accounts/{id}/keys"), "label=night+shift&models=smollm2").await;
    assert_eq!(late.status, StatusCode::FORBIDDEN);
    let link = format!("href=\"/auth/sign-in?return_to=%2Faccounts%2F{id}%3Fopen%3Dkey&#38;for=step-up\"");
    for part in ["Sign in again to continue", "night shift</textarea>", "smollm2</textarea>", &link] {
        assert!(late.body.contains(part), "{part}: {}", late.body);
    }
    assert!(firm.portal.portal.store.account_lookup.list_keys().await.unwrap().is_empty());
}

#[tokio::test]
async fn programs_get_reauthentication_required() {
    let (mut firm, id) = firm_after(Duration::from_secs(600)).await;
    let ben = firm.ben.id;
    firm.ruth.browser.accept = "application/json";
    for (path, form) in [
        (format!("/accounts/{id}/keys"), Some("label=x".to_owned())),
        ("/accounts/keys".to_owned(), Some("label=x".to_owned())),
        (format!("/accounts/{id}/close"), Some(String::new())),
        ("/team/role".to_owned(), Some(format!("person={ben}&role=partner"))),
        ("/team/invitations".to_owned(), Some("email=nora%40company.com&role=partner".to_owned())),
        ("/team/reset-factors".to_owned(), Some(format!("person={ben}"))),
        ("/clients/export.jsonl".to_owned(), None),
        ("/clients/export.csv".to_owned(), None),
    ] {
        let reply = match &form {
            Some(form) => firm.ruth.browser.post(&path, form).await,
            None => firm.ruth.browser.get(&path).await,
        };
        assert_eq!(reply.status, StatusCode::FORBIDDEN, "{path}: {}", reply.body);
        let body: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
        assert_eq!(body["error"]["code"], "reauthentication_required", "{path}");
    }
    firm.portal.pass(Duration::from_secs(1));
    let mut again = firm.ruth.elsewhere(&firm.portal).await;
    again.accept = "application/json";
    assert_eq!(again.get("/clients/export.jsonl").await.status, StatusCode::OK);
}

#[tokio::test]
async fn only_invitations_of_partners_need_it() {
    let (mut firm, _) = firm_after(Duration::from_secs(600)).await;
    let page = firm.ruth.browser.get("/team").await;
    assert!(!page.body.contains("<option value=\"partner\""), "{}", page.body);
    assert!(page.body.contains("href=\"/team?open=invite#invitations\""), "{}", page.body);
    let late = firm.ruth.browser.post("/team/invitations", "email=nora%40company.com&role=partner").await;
    assert_eq!(late.status, StatusCode::FORBIDDEN);
    assert!(late.body.contains("Sign in again to continue"), "{}", late.body);
    let sent = firm.ruth.browser.post("/team/invitations", "email=nora%40company.com&role=consultant").await;
    assert_eq!(sent.status, StatusCode::SEE_OTHER, "{}", sent.body);
}

#[tokio::test]
async fn policy_decides_before_the_authentication_is_looked_at() {
    let (mut firm, id) = firm_after(Duration::from_secs(600)).await;
    let denied = firm.ann.browser.post(&format!("/accounts/{id}/keys"), "label=x").await;
    assert!(denied.body.contains("Only partners can open Accounts"), "{}", denied.body);
    let denied = firm.ann.browser.get(&format!("/accounts/{id}?open=key")).await;
    assert_eq!(denied.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn restoring_a_partner_and_renewing_their_invitation_need_it() {
    let mut firm = Firm::open().await;
    let (rob, ann) = (firm.rob.id, firm.ann.id);
    for person in [rob, ann] {
        let removed = firm.ruth.browser.post("/team/remove", &format!("person={person}&confirmed=1")).await;
        assert_eq!(removed.status, StatusCode::SEE_OTHER, "{}", removed.body);
    }
    for form in ["email=nora%40company.com&role=partner", "email=olga%40company.com&role=consultant"] {
        let invited = firm.ruth.browser.post("/team/invitations", form).await;
        assert_eq!(invited.status, StatusCode::SEE_OTHER, "{}", invited.body);
    }
    firm.portal.pass(Duration::from_secs(600));
    for (path, form) in [
        ("/team/restore", format!("person={rob}")),
        ("/team/invitations/resend", "email=nora%40company.com".to_owned()),
    ] {
        let late = firm.ruth.browser.post(path, &form).await;
        assert_eq!(late.status, StatusCode::FORBIDDEN, "{path}");
        assert!(late.body.contains("Sign in again to continue"), "{}", late.body);
    }
    for (path, form) in [
        ("/team/restore", format!("person={ann}")),
        ("/team/invitations/resend", "email=olga%40company.com".to_owned()),
    ] {
        let done = firm.ruth.browser.post(path, &form).await;
        assert_eq!(done.status, StatusCode::SEE_OTHER, "{path}: {}", done.body);
    }
    assert_eq!(firm.portal.portal.store.people.list_removed_people().await.unwrap()[0].person.id, rob);
}

#[tokio::test]
async fn rejection_is_audited_next_to_the_decision() {
    let (mut firm, id) = firm_after(Duration::from_secs(600)).await;
    let late = firm.ruth.browser.post(&format!("/accounts/{id}/close"), "").await;
    assert_eq!(late.status, StatusCode::FORBIDDEN);
    firm.ruth.browser.accept = "application/json";
    let audit = firm.ruth.browser.get("/audit").await;
    let audit: serde_json::Value = serde_json::from_str(&audit.body).unwrap();
    let rows = audit["rows"].as_array().unwrap();
    let rejected: Vec<_> = rows.iter().filter(|row| row["event"] == "reauthenticationRequired").collect();
    let [rejected] = &rejected[..] else { panic!("{rows:?}") };
    assert_eq!(rejected["person"]["id"], firm.ruth.id.0);
    assert!(rejected["ip_address"].is_string(), "{rejected}");
}
