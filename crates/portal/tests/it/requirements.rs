//! Claims, levels and roles that the configuration requires.

use crate::harness::{Harness, Reply};
use crate::hostile_provider::{EMAIL, SUBJECT, ScriptedReply};
use axum::http::StatusCode;
use chancery_domain::Role;
use chancery_portal::{DirectoryRoles, IdentitySettings, SecondFactor};
use serde_json::{Value, json};

fn requires(name: &'static str, values: Vec<Value>) -> impl FnOnce(&mut IdentitySettings) {
    move |identity| drop(identity.requirements.claims.insert(name.to_owned(), values))
}

fn claim(harness: &Harness, name: &'static str, value: Value) {
    harness.behavior(|behavior| behavior.edit_claims(move |claims| claims[name] = value.clone()));
}

#[track_caller]
fn assert_forbidden(reply: &Reply, title: &str, part: &str) {
    assert_eq!(reply.status, StatusCode::FORBIDDEN, "{reply:?}");
    assert!(!reply.starts_session() && reply.page.contains(title) && reply.page.contains(part), "{reply:?}");
}

async fn role(harness: &Harness) -> Role {
    harness.portal.store.people.list_people().await.unwrap()[0].role
}

#[tokio::test]
async fn required_claim_must_have_an_accepted_value() {
    let harness = Harness::with(requires("hd", vec![json!("example.com"), json!("example.org")])).await;
    assert_forbidden(&harness.sign_in().await, "Account not allowed", "“hd”");
    assert!(harness.log().contains("claim_required"), "{}", harness.log());
    claim(&harness, "hd", json!("evil.example"));
    assert_forbidden(&harness.sign_in().await, "Account not allowed", "example.com or example.org");
    claim(&harness, "hd", json!("example.org"));
    harness.assert_signed_in(&harness.sign_in().await);
    claim(&harness, "hd", json!(["a", "example.com"]));
    harness.assert_signed_in(&harness.sign_in().await);
}

#[tokio::test]
async fn required_claim_may_come_from_userinfo() {
    let harness = Harness::with(requires("staff", vec![json!(true)])).await;
    harness.behavior(|behavior| {
        let info = json!({"sub": SUBJECT, "email": "eve@evil.example", "staff": true});
        behavior.userinfo = ScriptedReply::Json(info);
    });
    harness.assert_signed_in(&harness.sign_in().await);
    let people = harness.portal.store.people.list_people().await.unwrap();
    assert_eq!(people[0].email.as_str(), EMAIL, "the ID token's claims come first");
    claim(&harness, "staff", json!("true"));
    assert_forbidden(&harness.sign_in().await, "Account not allowed", "“staff”");
}

#[tokio::test]
async fn required_level_is_requested_and_checked() {
    let harness = Harness::with(|identity| {
        identity.requirements.acr = vec!["aal2".to_owned(), "aal3".to_owned()];
        identity.requirements.amr = vec!["mfa".to_owned(), "pwd".to_owned()];
    })
    .await;
    assert_forbidden(&harness.sign_in().await, "Stronger sign-in required", "the level aal2 or aal3");
    assert_eq!(harness.provider.behavior().authorization["acr_values"], "aal2 aal3");
    for (acr, amr, part) in [
        (json!("aal1"), json!(["mfa", "pwd"]), "the level"),
        (json!("aal3"), json!(["pwd"]), "the method mfa"),
        (json!("aal3"), json!("mfa"), "the method mfa"),
        (json!("aal2"), json!(["mfa", "hwk"]), "the method pwd"),
    ] {
        harness.behavior(|behavior| {
            behavior.edit_claims(move |claims| {
                claims["acr"] = acr.clone();
                claims["amr"] = amr.clone();
            });
        });
        assert_forbidden(&harness.sign_in().await, "Stronger sign-in required", part);
    }
    assert!(harness.log().contains("authentication_level_required"));
    harness.behavior(|behavior| {
        behavior.edit_claims(|claims| {
            claims["acr"] = json!("aal2");
            claims["amr"] = json!(["pwd", "otp", "mfa"]);
        });
    });
    harness.assert_signed_in(&harness.sign_in().await);
}

#[tokio::test]
async fn provider_second_factor_needs_mfa_or_our_code() {
    let harness = Harness::with_settings(|settings| settings.second_factor = SecondFactor::Provider).await;
    let asked = harness.sign_in().await;
    assert_eq!(asked.location.as_deref(), Some("/auth/code"), "{asked:?}");
    claim(&harness, "amr", json!(["pwd"]));
    assert_eq!(harness.sign_in().await.location.as_deref(), Some("/auth/code"));
    claim(&harness, "amr", json!(["pwd", "mfa"]));
    harness.assert_signed_in(&harness.sign_in().await);

    let harness = Harness::with_settings(|settings| settings.second_factor = SecondFactor::EmailCode).await;
    claim(&harness, "amr", json!(["pwd", "mfa"]));
    assert_eq!(harness.sign_in().await.location.as_deref(), Some("/auth/code"), "email-code always asks");
}

#[tokio::test]
async fn role_follows_the_directory_at_each_sign_in() {
    let harness = Harness::with(|identity| {
        identity.roles = Some(DirectoryRoles {
            claim: "groups".to_owned(),
            by_value: [("leads".to_owned(), Role::Partner), ("staff".to_owned(), Role::Consultant)].into(),
        });
    })
    .await;
    assert_forbidden(&harness.sign_in().await, "No role in this portal", "none of the groups");
    claim(&harness, "groups", json!(["staff"]));
    harness.assert_signed_in(&harness.sign_in().await);
    assert_eq!(role(&harness).await, Role::Consultant);
    claim(&harness, "groups", json!(["staff", "leads"]));
    harness.assert_signed_in(&harness.sign_in().await);
    assert_eq!(role(&harness).await, Role::Partner);
    claim(&harness, "groups", json!("staff"));
    harness.assert_signed_in(&harness.sign_in().await);
    assert_eq!(role(&harness).await, Role::Partner, "the last partner is never demoted");
    assert!(harness.log().contains("the last partner keeps that role"), "{}", harness.log());
}

#[tokio::test]
async fn configured_partner_needs_an_address_that_the_provider_verified() {
    for (is_verified, expected) in [(true, Role::Partner), (false, Role::Consultant)] {
        let harness = Harness::with_settings(|settings| {
            settings.partners = vec![EMAIL.parse().unwrap()];
        })
        .await;
        claim(&harness, "email_verified", json!(is_verified));
        let mut browser = crate::harness::Browser::new();
        let callback = harness.callback_url(&mut browser).await;
        let reply = browser.get(&callback).await;
        if !is_verified {
            assert_eq!(reply.location.as_deref(), Some("/auth/code"));
            let code = harness.latest_code();
            browser.post(&harness.url("/auth/code"), &format!("code={code}")).await;
        }
        assert!(harness.is_signed_in(&mut browser).await, "verified: {is_verified}");
        assert_eq!(role(&harness).await, expected, "verified: {is_verified}");
    }
}
