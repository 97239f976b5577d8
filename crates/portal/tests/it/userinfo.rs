//! The source of the email address, and when it is trusted.

use crate::harness::{Harness, Reply, signs_in};
use crate::hostile_provider::{EMAIL, ProviderBehavior, SUBJECT, ScriptedReply, without};
use axum::http::StatusCode;
use chancery_portal::SecondFactor;
use serde_json::json;

fn only_at_userinfo(behavior: &mut ProviderBehavior) {
    behavior.edit_claims(|claims| {
        without(claims, "email");
        without(claims, "email_verified");
    });
}

async fn with_userinfo(scripted: ScriptedReply) -> (Harness, Reply) {
    let harness = Harness::begin().await;
    harness.behavior(|behavior| {
        only_at_userinfo(behavior);
        behavior.userinfo = scripted;
    });
    let reply = harness.sign_in().await;
    assert_eq!(harness.provider.request_count("userinfo"), 1);
    (harness, reply)
}

#[tokio::test]
async fn userinfo_is_used_if_the_id_token_has_no_email() {
    let harness = signs_in(only_at_userinfo).await;
    assert_eq!(harness.provider.request_count("userinfo"), 1);
}

#[tokio::test]
async fn userinfo_is_skipped_if_the_id_token_has_email() {
    let harness = signs_in(|behavior| behavior.userinfo = ScriptedReply::Status(500, json!({}))).await;
    assert_eq!(harness.provider.request_count("userinfo"), 0);
}

#[tokio::test]
async fn userinfo_with_another_sub_is_rejected() {
    for sub in [json!("another"), json!(""), json!(format!("{SUBJECT} ")), json!(SUBJECT.to_uppercase())] {
        let (harness, reply) =
            with_userinfo(ScriptedReply::Json(json!({"sub": sub, "email": EMAIL, "email_verified": true})))
                .await;
        harness.assert_rejected(
            &reply,
            502,
            "Sign-in response rejected",
            "userinfo: `sub` does not match the ID token",
        );
    }
}

#[tokio::test]
async fn userinfo_without_sub_is_rejected() {
    for info in [json!({"email": EMAIL, "email_verified": true}), json!({"sub": 7}), json!([]), json!("eyJ")]
    {
        let (harness, reply) = with_userinfo(ScriptedReply::Json(info)).await;
        harness.assert_rejected(&reply, 502, "Sign-in response rejected", "userinfo: invalid reply");
    }
}

#[tokio::test]
async fn userinfo_failures_sign_nobody_in() {
    for (scripted, status, text, logged) in [
        (ScriptedReply::Status(401, json!({})), 502, "Sign-in response rejected", "status 401"),
        (ScriptedReply::Status(500, json!({})), 503, "Sign-in service unavailable", "status 500"),
        (
            ScriptedReply::Redirect("https://evil.example".to_owned()),
            502,
            "Sign-in response rejected",
            "redirects are not followed",
        ),
        (ScriptedReply::Huge, 502, "Sign-in response rejected", "exceeds 262144 bytes"),
        (ScriptedReply::Hang, 504, "Sign-in service timed out", "identity provider timed out"),
    ] {
        let (harness, reply) = with_userinfo(scripted).await;
        harness.assert_rejected(&reply, status, text, logged);
    }
}

/// An invalid address signs nobody in.
#[track_caller]
fn assert_not_admitted(reply: &Reply) {
    assert_eq!(reply.status, StatusCode::FORBIDDEN, "{reply:?}");
    assert!(reply.page.contains("Address not allowed"), "{reply:?}");
    assert!(!reply.starts_session(), "{reply:?}");
}

/// An unverified address needs a code from our own email.
#[track_caller]
fn assert_asks_for_our_code(reply: &Reply) {
    assert_eq!((reply.status, reply.location.as_deref()), (StatusCode::SEE_OTHER, Some("/auth/code")));
    assert!(!reply.starts_session(), "{reply:?}");
}

#[tokio::test]
async fn non_string_email_is_ignored() {
    for email in
        [json!([EMAIL]), json!([EMAIL, "x@evil.example"]), json!({"address": EMAIL}), json!(7), json!(true)]
    {
        let harness = Harness::begin().await;
        let in_token = email.clone();
        harness.behavior(|behavior| behavior.edit_claims(move |claims| claims["email"] = in_token.clone()));
        assert_not_admitted(&harness.sign_in().await);
        assert_eq!(
            harness.provider.request_count("userinfo"),
            0,
            "the token said something, and that is no address"
        );

        let info = json!({"sub": SUBJECT, "email": email, "email_verified": true});
        let (_, reply) = with_userinfo(ScriptedReply::Json(info)).await;
        assert_not_admitted(&reply);
    }
}

#[tokio::test]
async fn only_email_verified_true_counts() {
    for verified in
        [json!("true"), json!(1), json!("yes"), json!(false), json!(null), json!([true]), json!({})]
    {
        let harness = Harness::begin().await;
        let in_token = verified.clone();
        harness.behavior(|behavior| {
            behavior.edit_claims(move |claims| claims["email_verified"] = in_token.clone());
            // `null` is absent, so userinfo is asked; it says no more.
            behavior.userinfo = ScriptedReply::Json(json!({"sub": SUBJECT, "email": EMAIL}));
        });
        assert_asks_for_our_code(&harness.sign_in().await);

        let info = json!({"sub": SUBJECT, "email": EMAIL, "email_verified": verified});
        assert_asks_for_our_code(&with_userinfo(ScriptedReply::Json(info)).await.1);
    }
}

#[tokio::test]
async fn email_verified_applies_only_to_its_own_source() {
    // The token has `email_verified` without an address; userinfo has an address without `email_verified`.
    let harness = Harness::begin().await;
    harness.behavior(|behavior| {
        behavior.edit_claims(|claims| without(claims, "email"));
        behavior.userinfo = ScriptedReply::Json(json!({"sub": SUBJECT, "email": EMAIL}));
    });
    assert_asks_for_our_code(&harness.sign_in().await);
}

#[tokio::test]
async fn email_verified_may_come_from_userinfo_for_the_same_address() {
    let without_verified = |behavior: &mut ProviderBehavior| {
        behavior.edit_claims(|claims| without(claims, "email_verified"));
    };
    let harness = signs_in(without_verified).await;
    assert_eq!(harness.provider.request_count("userinfo"), 1);

    let harness = Harness::begin().await;
    harness.behavior(|behavior| {
        without_verified(behavior);
        let other = json!({"sub": SUBJECT, "email": "eve@example.com", "email_verified": true});
        behavior.userinfo = ScriptedReply::Json(other);
    });
    assert_asks_for_our_code(&harness.sign_in().await);
}

#[tokio::test]
async fn missing_email_signs_nobody_in() {
    let (_, reply) = with_userinfo(ScriptedReply::Json(json!({"sub": SUBJECT}))).await;
    assert_not_admitted(&reply);
    let harness = Harness::begin().await;
    harness.behavior(|behavior| {
        only_at_userinfo(behavior);
        without(&mut behavior.metadata, "userinfo_endpoint");
    });
    assert_not_admitted(&harness.sign_in().await);
}

#[tokio::test]
async fn userinfo_says_nothing_about_the_authentication() {
    let harness = Harness::with_settings(|settings| settings.second_factor = SecondFactor::Provider).await;
    harness.behavior(|behavior| {
        only_at_userinfo(behavior);
        behavior.edit_claims(|claims| {
            for name in ["email", "email_verified", "auth_time", "sid", "acr", "amr"] {
                without(claims, name);
            }
        });
        behavior.userinfo = ScriptedReply::Json(json!({
            "sub": SUBJECT, "email": EMAIL, "email_verified": true,
            "amr": ["pwd", "mfa"], "acr": "aal2", "auth_time": 1_800_000_000, "sid": "s",
        }));
    });
    assert_asks_for_our_code(&harness.sign_in().await);
}

#[tokio::test]
async fn level_from_userinfo_does_not_count() {
    let harness = Harness::with(|identity| identity.requirements.acr.push("aal2".to_owned())).await;
    harness.behavior(|behavior| {
        only_at_userinfo(behavior);
        let info = json!({"sub": SUBJECT, "email": EMAIL, "email_verified": true, "acr": "aal2"});
        behavior.userinfo = ScriptedReply::Json(info);
    });
    let reply = harness.sign_in().await;
    assert_eq!(reply.status, StatusCode::FORBIDDEN, "{reply:?}");
    assert!(reply.page.contains("Stronger sign-in required"), "{reply:?}");
}
