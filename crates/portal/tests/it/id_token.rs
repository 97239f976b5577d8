//! The rules for ID tokens, as numbered in `sign_in/identity/id_token.rs`.

use crate::harness::{is_not_trusted, signs_in};
use crate::hostile_provider::{
    ACCESS_TOKEN, CLIENT_ID, CLIENT_SECRET, ProviderBehavior, half_hash, half_sha512, without,
};
use crate::signing::SigningKey;
use serde_json::{Value, json};

#[tokio::test]
async fn valid_token_signs_in() {
    signs_in(|_| {}).await;
}

#[tokio::test]
async fn rs256_token_signs_in() {
    let key = SigningKey::rs256(0);
    signs_in(|behavior| behavior.sign_with(&key, &[&key])).await;
}

#[tokio::test]
async fn eddsa_token_signs_in() {
    let key = SigningKey::ed_dsa();
    signs_in(|behavior| behavior.sign_with(&key, &[&key])).await;
}

#[tokio::test]
async fn token_of_another_issuer_is_rejected() {
    is_not_trusted(
        |behavior| behavior.edit_claims(|claims| claims["iss"] = json!("https://evil.example")),
        "`iss` is not",
    )
    .await;
}

#[tokio::test]
async fn token_issuer_must_match_exactly() {
    let slash = |claims: &mut Value| claims["iss"] = json!(format!("{}/", claims["iss"].as_str().unwrap()));
    is_not_trusted(|behavior| behavior.edit_claims(slash), "`iss` is not").await;
}

#[tokio::test]
async fn token_without_iss_is_rejected() {
    is_not_trusted(|behavior| behavior.edit_claims(|claims| without(claims, "iss")), "missing field `iss`")
        .await;
}

#[tokio::test]
async fn token_without_sub_is_rejected() {
    is_not_trusted(|behavior| behavior.edit_claims(|claims| without(claims, "sub")), "missing field `sub`")
        .await;
}

#[tokio::test]
async fn invalid_sub_is_rejected() {
    is_not_trusted(
        |behavior| behavior.edit_claims(|claims| claims["sub"] = json!("")),
        "invalid `sub` in the ID token",
    )
    .await;
    is_not_trusted(
        |behavior| behavior.edit_claims(|claims| claims["sub"] = json!("x".repeat(256))),
        "invalid `sub` in the ID token",
    )
    .await;
    is_not_trusted(
        |behavior| behavior.edit_claims(|claims| claims["sub"] = json!("a\nb")),
        "invalid `sub` in the ID token",
    )
    .await;
    is_not_trusted(|behavior| behavior.edit_claims(|claims| claims["sub"] = json!(7)), "invalid type").await;
}

#[tokio::test]
async fn token_for_another_client_is_rejected() {
    is_not_trusted(
        |behavior| behavior.edit_claims(|claims| claims["aud"] = json!("another-client")),
        "`aud` is not",
    )
    .await;
    is_not_trusted(
        |behavior| behavior.edit_claims(|claims| claims["aud"] = json!(["another-client"])),
        "`aud` is not",
    )
    .await;
    is_not_trusted(|behavior| behavior.edit_claims(|claims| claims["aud"] = json!([])), "`aud` is not").await;
}

#[tokio::test]
async fn token_without_aud_is_rejected() {
    is_not_trusted(|behavior| behavior.edit_claims(|claims| without(claims, "aud")), "missing field `aud`")
        .await;
}

#[tokio::test]
async fn aud_may_be_a_one_element_list() {
    signs_in(|behavior| behavior.edit_claims(|claims| claims["aud"] = json!([CLIENT_ID]))).await;
}

#[tokio::test]
async fn multiple_audiences_require_azp() {
    let both = |claims: &mut Value| claims["aud"] = json!([CLIENT_ID, "another-client"]);
    is_not_trusted(|behavior| behavior.edit_claims(both), "several `aud` and no `azp`").await;
    signs_in(|behavior| {
        behavior.edit_claims(move |claims| {
            both(claims);
            claims["azp"] = json!(CLIENT_ID);
        });
    })
    .await;
}

#[tokio::test]
async fn token_with_another_azp_is_rejected() {
    is_not_trusted(
        |behavior| behavior.edit_claims(|claims| claims["azp"] = json!("another-client")),
        "`azp` is not",
    )
    .await;
}

#[tokio::test]
async fn token_without_iat_is_rejected() {
    is_not_trusted(|behavior| behavior.edit_claims(|claims| without(claims, "iat")), "missing field `iat`")
        .await;
}

fn move_claim(name: &'static str, by_s: i64) -> impl Fn(&mut Value) + Send + 'static {
    move |claims| claims[name] = json!(claims["iat"].as_i64().unwrap() + by_s)
}

#[tokio::test]
async fn future_iat_is_rejected_beyond_clock_skew() {
    is_not_trusted(|behavior| behavior.edit_claims(move_claim("iat", 61)), "`iat` is 61 s ahead").await;
    signs_in(|behavior| behavior.edit_claims(move_claim("iat", 60))).await;
}

#[tokio::test]
async fn old_iat_is_rejected() {
    is_not_trusted(|behavior| behavior.edit_claims(move_claim("iat", -661)), "`iat` was 661 s ago").await;
    signs_in(|behavior| behavior.edit_claims(move_claim("iat", -660))).await;
}

#[tokio::test]
async fn expired_token_is_rejected_beyond_clock_skew() {
    is_not_trusted(|behavior| behavior.edit_claims(move_claim("exp", -60)), "`exp` was 60 s ago").await;
    signs_in(|behavior| behavior.edit_claims(move_claim("exp", -59))).await;
    is_not_trusted(|behavior| behavior.edit_claims(|claims| without(claims, "exp")), "missing field `exp`")
        .await;
}

#[tokio::test]
async fn token_before_nbf_is_rejected() {
    is_not_trusted(|behavior| behavior.edit_claims(move_claim("nbf", 61)), "`nbf` is 61 s ahead").await;
}

#[tokio::test]
async fn invalid_timestamps_are_rejected() {
    let (not_a_number, out_of_range) = ("the ID token's claims: ", "invalid `iat` in the ID token");
    for (value, logged) in [
        (json!("1800000000"), not_a_number),
        (json!(-1), out_of_range),
        (json!(1e300), out_of_range),
        (json!(null), not_a_number),
        (json!([1_800_000_000]), not_a_number),
    ] {
        is_not_trusted(|behavior| behavior.edit_claims(move |claims| claims["iat"] = value.clone()), logged)
            .await;
    }
}

#[tokio::test]
async fn wrong_or_missing_nonce_is_rejected() {
    is_not_trusted(
        |behavior| behavior.edit_claims(|claims| claims["nonce"] = json!("another")),
        "wrong `nonce` in the ID token",
    )
    .await;
    is_not_trusted(
        |behavior| behavior.edit_claims(|claims| without(claims, "nonce")),
        "wrong `nonce` in the ID token",
    )
    .await;
    let longer =
        |claims: &mut Value| claims["nonce"] = json!(format!("{}x", claims["nonce"].as_str().unwrap()));
    is_not_trusted(|behavior| behavior.edit_claims(longer), "wrong `nonce` in the ID token").await;
}

#[tokio::test]
async fn wrong_at_hash_is_rejected() {
    signs_in(|behavior| behavior.edit_claims(|claims| claims["at_hash"] = json!(half_hash(ACCESS_TOKEN))))
        .await;
    is_not_trusted(
        |behavior| behavior.edit_claims(|claims| claims["at_hash"] = json!(half_hash("another"))),
        "`at_hash`",
    )
    .await;
}

#[tokio::test]
async fn eddsa_accepts_sha256_and_sha512_at_hash() {
    let key = SigningKey::ed_dsa();
    for hash in [half_hash(ACCESS_TOKEN), half_sha512(ACCESS_TOKEN)] {
        signs_in(|behavior| {
            behavior.sign_with(&key, &[&key]);
            behavior.edit_claims(move |claims| claims["at_hash"] = json!(hash));
        })
        .await;
    }
    let change = |behavior: &mut ProviderBehavior| {
        behavior.sign_with(&key, &[&key]);
        behavior.edit_claims(|claims| claims["at_hash"] = json!(half_sha512("another")));
    };
    is_not_trusted(change, "`at_hash`").await;
}

#[tokio::test]
async fn wrong_c_hash_is_rejected() {
    signs_in(|behavior| behavior.edit_claims(|claims| claims["c_hash"] = json!(half_hash("code-1")))).await;
    is_not_trusted(
        |behavior| behavior.edit_claims(|claims| claims["c_hash"] = json!(half_hash("another"))),
        "`c_hash`",
    )
    .await;
}

/// Changes the first character of the signature.
fn break_signature(token: &str) -> String {
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let first = if signature.starts_with('A') { 'B' } else { 'A' };
    format!("{signed}.{first}{}", &signature[1..])
}

#[tokio::test]
async fn bad_es256_signature_is_rejected() {
    is_not_trusted(
        |behavior| behavior.edit_id_token = Box::new(break_signature),
        "signature does not verify",
    )
    .await;
}

#[tokio::test]
async fn bad_rs256_signature_is_rejected() {
    let key = SigningKey::rs256(0);
    let change = |behavior: &mut ProviderBehavior| {
        behavior.sign_with(&key, &[&key]);
        behavior.edit_id_token = Box::new(break_signature);
    };
    is_not_trusted(change, "signature does not verify").await;
}

#[tokio::test]
async fn tampered_claims_are_rejected() {
    let other_claims = |token: &str| {
        let parts: Vec<_> = token.split('.').collect();
        // The same claims with a leading space: the signature covers every byte.
        use base64::Engine;
        let encoding = base64::prelude::BASE64_URL_SAFE_NO_PAD;
        let claims = String::from_utf8(encoding.decode(parts[1]).unwrap()).unwrap();
        format!("{}.{}.{}", parts[0], encoding.encode(format!(" {claims}")), parts[2])
    };
    is_not_trusted(|behavior| behavior.edit_id_token = Box::new(other_claims), "signature does not verify")
        .await;
}

#[tokio::test]
async fn unsigned_token_is_rejected() {
    let unsigned = |token: &str| format!("{}.", token.rsplit_once('.').unwrap().0);
    let change = |behavior: &mut ProviderBehavior| {
        behavior.edit_header(|header| header["alg"] = json!("none"));
        behavior.edit_id_token = Box::new(unsigned);
    };
    is_not_trusted(change, "algorithm `none` is not accepted").await;
    is_not_trusted(|behavior| behavior.edit_id_token = Box::new(unsigned), "signature does not verify").await;
    is_not_trusted(
        |behavior| behavior.edit_header(|header| header["alg"] = json!("nOnE")),
        "`nOnE` is not accepted",
    )
    .await;
}

#[tokio::test]
async fn token_signed_with_the_client_secret_is_rejected() {
    let key = SigningKey::hs256(CLIENT_SECRET.as_bytes());
    is_not_trusted(|behavior| behavior.sign_with(&key, &[]), "algorithm `HS256` is not accepted").await;
    is_not_trusted(|behavior| behavior.sign_with(&key, &[&key]), "algorithm `HS256` is not accepted").await;
}

#[tokio::test]
async fn algorithm_confusion_is_rejected() {
    let public = SigningKey::rs256(0);
    let secret = public.published()["n"].as_str().unwrap().to_owned();
    let key = SigningKey::hs256(secret.as_bytes());
    is_not_trusted(|behavior| behavior.sign_with(&key, &[&public]), "algorithm `HS256` is not accepted")
        .await;
}

#[tokio::test]
async fn algorithm_must_match_the_key() {
    is_not_trusted(
        |behavior| behavior.edit_header(|header| header["alg"] = json!("RS256")),
        "signature does not verify",
    )
    .await;
    is_not_trusted(
        |behavior| behavior.edit_header(|header| header["alg"] = json!("EdDSA")),
        "signature does not verify",
    )
    .await;
    is_not_trusted(
        |behavior| behavior.edit_header(|header| header["alg"] = json!("ES512")),
        "`ES512` is not accepted",
    )
    .await;
}

#[tokio::test]
async fn other_token_types_are_rejected() {
    is_not_trusted(|behavior| behavior.edit_header(|header| header["typ"] = json!("at+jwt")), "`typ`").await;
    is_not_trusted(|behavior| behavior.edit_header(|header| header["typ"] = json!("logout+jwt")), "`typ`")
        .await;
    is_not_trusted(|behavior| behavior.edit_header(|header| header["crit"] = json!(["exp"])), "`crit`").await;
    is_not_trusted(|behavior| behavior.edit_id_token = Box::new(|_| "a.b.c.d.e".to_owned()), "three parts")
        .await;
    is_not_trusted(
        |behavior| behavior.edit_id_token = Box::new(|_| "opaque".to_owned()),
        "invalid ID token form",
    )
    .await;
    signs_in(|behavior| behavior.edit_header(|header| without(header, "typ"))).await;
}

#[tokio::test]
async fn unknown_claims_are_ignored() {
    signs_in(|behavior| {
        behavior.edit_claims(|claims| {
            claims["birthdate"] = json!(["of another type"]);
            claims["phone_number_verified"] = json!("true");
            claims["updated_at"] = json!("2026-11-15T12:00:00Z");
            claims["amr"] = json!("pwd");
            claims["_claim_names"] = json!({"address": "src1"});
            claims["_claim_sources"] = json!({"src1": {"endpoint": "https://evil.example"}});
        });
    })
    .await;
}
