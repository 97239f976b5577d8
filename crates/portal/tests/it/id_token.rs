//! What an ID token must be; the rules are numbered in `sign_in/identity/id_token.rs`.

use crate::hostile_provider::{
    ACCESS_TOKEN, CLIENT_ID, CLIENT_SECRET, Ways, half_hash, half_sha512, without,
};
use crate::scene::{not_trusted, signs_in};
use crate::signing::SigningKey;
use serde_json::{Value, json};

#[tokio::test]
async fn a_token_that_keeps_every_rule_signs_in() {
    signs_in(|_| {}).await;
}

#[tokio::test]
async fn a_token_signed_with_rs256_signs_in() {
    let key = SigningKey::rs256(0);
    signs_in(|ways| ways.sign_with(&key, &[&key])).await;
}

#[tokio::test]
async fn a_token_signed_with_eddsa_signs_in() {
    let key = SigningKey::ed_dsa();
    signs_in(|ways| ways.sign_with(&key, &[&key])).await;
}

#[tokio::test]
async fn a_token_of_another_issuer_is_refused() {
    not_trusted(
        |ways| ways.edit_claims(|claims| claims["iss"] = json!("https://evil.example")),
        "`iss` is not",
    )
    .await;
}

#[tokio::test]
async fn an_issuer_that_differs_by_a_slash_is_another_issuer() {
    let slash = |claims: &mut Value| claims["iss"] = json!(format!("{}/", claims["iss"].as_str().unwrap()));
    not_trusted(|ways| ways.edit_claims(slash), "`iss` is not").await;
}

#[tokio::test]
async fn a_token_without_an_issuer_is_refused() {
    not_trusted(|ways| ways.edit_claims(|claims| without(claims, "iss")), "missing field `iss`").await;
}

#[tokio::test]
async fn a_token_without_a_subject_is_refused() {
    not_trusted(|ways| ways.edit_claims(|claims| without(claims, "sub")), "missing field `sub`").await;
}

#[tokio::test]
async fn a_subject_that_is_empty_too_long_or_no_text_is_refused() {
    not_trusted(|ways| ways.edit_claims(|claims| claims["sub"] = json!("")), "`sub` is empty").await;
    not_trusted(|ways| ways.edit_claims(|claims| claims["sub"] = json!("x".repeat(256))), "`sub` is empty")
        .await;
    not_trusted(|ways| ways.edit_claims(|claims| claims["sub"] = json!("a\nb")), "`sub` is empty").await;
    not_trusted(|ways| ways.edit_claims(|claims| claims["sub"] = json!(7)), "invalid type").await;
}

#[tokio::test]
async fn a_token_for_another_client_is_refused() {
    not_trusted(|ways| ways.edit_claims(|claims| claims["aud"] = json!("another-client")), "`aud` is not")
        .await;
    not_trusted(|ways| ways.edit_claims(|claims| claims["aud"] = json!(["another-client"])), "`aud` is not")
        .await;
    not_trusted(|ways| ways.edit_claims(|claims| claims["aud"] = json!([])), "`aud` is not").await;
}

#[tokio::test]
async fn a_token_for_nobody_in_particular_is_refused() {
    not_trusted(|ways| ways.edit_claims(|claims| without(claims, "aud")), "missing field `aud`").await;
}

#[tokio::test]
async fn a_token_for_us_alone_may_say_so_in_a_list() {
    signs_in(|ways| ways.edit_claims(|claims| claims["aud"] = json!([CLIENT_ID]))).await;
}

#[tokio::test]
async fn a_token_for_others_too_needs_us_as_its_party() {
    let both = |claims: &mut Value| claims["aud"] = json!([CLIENT_ID, "another-client"]);
    not_trusted(|ways| ways.edit_claims(both), "there is no `azp`").await;
    signs_in(|ways| {
        ways.edit_claims(move |claims| {
            both(claims);
            claims["azp"] = json!(CLIENT_ID);
        });
    })
    .await;
}

#[tokio::test]
async fn a_token_of_which_another_is_the_party_is_refused() {
    not_trusted(|ways| ways.edit_claims(|claims| claims["azp"] = json!("another-client")), "`azp` is not")
        .await;
}

#[tokio::test]
async fn a_token_that_does_not_say_when_it_was_issued_is_refused() {
    not_trusted(|ways| ways.edit_claims(|claims| without(claims, "iat")), "missing field `iat`").await;
}

fn move_claim(name: &'static str, by_s: i64) -> impl Fn(&mut Value) + Send + 'static {
    move |claims| claims[name] = json!(claims["iat"].as_i64().unwrap() + by_s)
}

#[tokio::test]
async fn a_token_from_the_future_is_refused_but_a_small_skew_is_forgiven() {
    not_trusted(|ways| ways.edit_claims(move_claim("iat", 61)), "`iat` is 61 s ahead").await;
    signs_in(|ways| ways.edit_claims(move_claim("iat", 60))).await;
}

#[tokio::test]
async fn a_token_that_was_issued_long_ago_is_refused() {
    not_trusted(|ways| ways.edit_claims(move_claim("iat", -661)), "`iat` was 661 s ago").await;
    signs_in(|ways| ways.edit_claims(move_claim("iat", -660))).await;
}

#[tokio::test]
async fn a_token_that_is_over_is_refused_but_a_small_skew_is_forgiven() {
    not_trusted(|ways| ways.edit_claims(move_claim("exp", -60)), "`exp` was 60 s ago").await;
    signs_in(|ways| ways.edit_claims(move_claim("exp", -59))).await;
    not_trusted(|ways| ways.edit_claims(|claims| without(claims, "exp")), "missing field `exp`").await;
}

#[tokio::test]
async fn a_token_that_is_not_yet_good_is_refused() {
    not_trusted(|ways| ways.edit_claims(move_claim("nbf", 61)), "`nbf` is 61 s ahead").await;
}

#[tokio::test]
async fn times_that_are_no_times_are_refused() {
    for value in [json!("1800000000"), json!(-1), json!(1e300), json!(null), json!([1_800_000_000])] {
        not_trusted(|ways| ways.edit_claims(move |claims| claims["iat"] = value.clone()), "the ID token's")
            .await;
    }
}

#[tokio::test]
async fn a_token_with_another_nonce_or_none_is_refused() {
    not_trusted(|ways| ways.edit_claims(|claims| claims["nonce"] = json!("another")), "`nonce` is not").await;
    not_trusted(|ways| ways.edit_claims(|claims| without(claims, "nonce")), "`nonce` is not").await;
    let longer =
        |claims: &mut Value| claims["nonce"] = json!(format!("{}x", claims["nonce"].as_str().unwrap()));
    not_trusted(|ways| ways.edit_claims(longer), "`nonce` is not").await;
}

#[tokio::test]
async fn a_token_whose_hash_is_of_another_access_token_is_refused() {
    signs_in(|ways| ways.edit_claims(|claims| claims["at_hash"] = json!(half_hash(ACCESS_TOKEN)))).await;
    not_trusted(
        |ways| ways.edit_claims(|claims| claims["at_hash"] = json!(half_hash("another"))),
        "`at_hash`",
    )
    .await;
}

#[tokio::test]
async fn with_eddsa_either_hash_in_use_ties_the_access_token() {
    let key = SigningKey::ed_dsa();
    for hash in [half_hash(ACCESS_TOKEN), half_sha512(ACCESS_TOKEN)] {
        signs_in(|ways| {
            ways.sign_with(&key, &[&key]);
            ways.edit_claims(move |claims| claims["at_hash"] = json!(hash));
        })
        .await;
    }
    let change = |ways: &mut Ways| {
        ways.sign_with(&key, &[&key]);
        ways.edit_claims(|claims| claims["at_hash"] = json!(half_sha512("another")));
    };
    not_trusted(change, "`at_hash`").await;
}

#[tokio::test]
async fn a_token_whose_hash_is_of_another_code_is_refused() {
    signs_in(|ways| ways.edit_claims(|claims| claims["c_hash"] = json!(half_hash("code-1")))).await;
    not_trusted(|ways| ways.edit_claims(|claims| claims["c_hash"] = json!(half_hash("another"))), "`c_hash`")
        .await;
}

/// The signature's first letter becomes another.
fn break_signature(token: &str) -> String {
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let first = if signature.starts_with('A') { 'B' } else { 'A' };
    format!("{signed}.{first}{}", &signature[1..])
}

#[tokio::test]
async fn a_bad_es256_signature_is_refused() {
    not_trusted(|ways| ways.edit_id_token = Box::new(break_signature), "signature does not verify").await;
}

#[tokio::test]
async fn a_bad_rs256_signature_is_refused() {
    let key = SigningKey::rs256(0);
    let change = |ways: &mut Ways| {
        ways.sign_with(&key, &[&key]);
        ways.edit_id_token = Box::new(break_signature);
    };
    not_trusted(change, "signature does not verify").await;
}

#[tokio::test]
async fn claims_that_were_changed_after_signing_are_refused() {
    let other_claims = |token: &str| {
        let parts: Vec<_> = token.split('.').collect();
        // The same claims with a blank in front: what is signed must be every letter.
        use base64::Engine;
        let encoding = base64::prelude::BASE64_URL_SAFE_NO_PAD;
        let claims = String::from_utf8(encoding.decode(parts[1]).unwrap()).unwrap();
        format!("{}.{}.{}", parts[0], encoding.encode(format!(" {claims}")), parts[2])
    };
    not_trusted(|ways| ways.edit_id_token = Box::new(other_claims), "signature does not verify").await;
}

#[tokio::test]
async fn a_token_without_a_signature_is_refused() {
    let unsigned = |token: &str| format!("{}.", token.rsplit_once('.').unwrap().0);
    let change = |ways: &mut Ways| {
        ways.edit_header(|header| header["alg"] = json!("none"));
        ways.edit_id_token = Box::new(unsigned);
    };
    not_trusted(change, "algorithm `none` is not accepted").await;
    not_trusted(|ways| ways.edit_id_token = Box::new(unsigned), "signature does not verify").await;
    not_trusted(|ways| ways.edit_header(|header| header["alg"] = json!("nOnE")), "`nOnE` is not accepted")
        .await;
}

#[tokio::test]
async fn a_token_signed_with_the_client_secret_is_refused() {
    let key = SigningKey::hs256(CLIENT_SECRET.as_bytes());
    not_trusted(|ways| ways.sign_with(&key, &[]), "algorithm `HS256` is not accepted").await;
    not_trusted(|ways| ways.sign_with(&key, &[&key]), "algorithm `HS256` is not accepted").await;
}

#[tokio::test]
async fn a_token_signed_with_the_public_key_as_a_shared_secret_is_refused() {
    let public = SigningKey::rs256(0);
    let secret = public.published()["n"].as_str().unwrap().to_owned();
    let key = SigningKey::hs256(secret.as_bytes());
    not_trusted(|ways| ways.sign_with(&key, &[&public]), "algorithm `HS256` is not accepted").await;
}

#[tokio::test]
async fn an_algorithm_that_does_not_fit_the_key_is_refused() {
    not_trusted(
        |ways| ways.edit_header(|header| header["alg"] = json!("RS256")),
        "signature does not verify",
    )
    .await;
    not_trusted(
        |ways| ways.edit_header(|header| header["alg"] = json!("EdDSA")),
        "signature does not verify",
    )
    .await;
    not_trusted(|ways| ways.edit_header(|header| header["alg"] = json!("ES512")), "`ES512` is not accepted")
        .await;
}

#[tokio::test]
async fn another_kind_of_token_is_no_id_token() {
    not_trusted(|ways| ways.edit_header(|header| header["typ"] = json!("at+jwt")), "`typ`").await;
    not_trusted(|ways| ways.edit_header(|header| header["typ"] = json!("logout+jwt")), "`typ`").await;
    not_trusted(|ways| ways.edit_header(|header| header["crit"] = json!(["exp"])), "`crit`").await;
    not_trusted(|ways| ways.edit_id_token = Box::new(|_| "a.b.c.d.e".to_owned()), "three parts").await;
    not_trusted(|ways| ways.edit_id_token = Box::new(|_| "opaque".to_owned()), "cannot be read").await;
    signs_in(|ways| ways.edit_header(|header| without(header, "typ"))).await;
}

#[tokio::test]
async fn a_claim_that_nobody_asked_for_is_no_reason_to_refuse() {
    signs_in(|ways| {
        ways.edit_claims(|claims| {
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
