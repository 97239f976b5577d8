//! Fuzz targets of what an identity provider sends: tokens and keys. Nothing is accepted that the provider's key did not sign.

use super::id_token::{self, Expected};
use super::jwk::{JsonWebKey, JsonWebKeySet};
use super::limits::{CLOCK_SKEW_S, MAX_SUBJECT_CHARS};
use super::logout_token;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use chancery_test_support::Fuzz;
use p256::ecdsa::signature::Signer;
use serde_json::{Value, json};

const ISSUER: &str = "https://id.example";
const CLIENT_ID: &str = "portal";
const NONCE: &str = "the-nonce";
const NOW_S: i64 = 1_794_561_240;
const CRATE_FOLDER: &str = env!("CARGO_MANIFEST_DIR");

const TOKENS: &[&str] = &[
    ".",
    "..",
    "eyJhbGciOiJub25lIn0",
    "\"alg\":\"none\"",
    "\"alg\":\"HS256\"",
    "\"alg\":\"RS256\"",
    "\"kid\":null",
    "\"crit\":[]",
    "\"iss\":",
    "\"sub\":",
    "\"aud\":",
    "\"exp\":",
    "\"iat\":",
    "\"nbf\":",
    "\"nonce\":",
    "\"azp\":",
    "\"at_hash\":",
    "\"events\":",
    "\"jti\":",
    "\"sid\":",
    "\"email\":",
    "\"email_verified\":",
    "\"https://id.example\"",
    "[\"portal\",\"other\"]",
    "1794561240",
    "1e18",
    "true",
];

fn encode(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

fn signing_key() -> p256::ecdsa::SigningKey {
    p256::ecdsa::SigningKey::from_slice(&[7; 32]).unwrap()
}

fn published_key() -> Value {
    let point = signing_key().verifying_key().to_sec1_point(false);
    let (x, y) = (encode(&point.as_bytes()[1..33]), encode(&point.as_bytes()[33..]));
    json!({"kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": "ec", "use": "sig"})
}

/// A token with this payload, which the provider's key has signed.
fn signed(payload: &[u8]) -> String {
    let signed = format!("{}.{}", encode(br#"{"alg":"ES256","kid":"ec","typ":"JWT"}"#), encode(payload));
    let signature: p256::ecdsa::Signature = signing_key().sign(signed.as_bytes());
    format!("{signed}.{}", encode(signature.to_bytes().as_slice()))
}

fn id_token_claims_json() -> Vec<u8> {
    let claims = json!({
        "iss": ISSUER, "sub": "ann", "aud": CLIENT_ID, "azp": CLIENT_ID, "exp": NOW_S + 300, "iat": NOW_S, "nbf": NOW_S,
        "nonce": NONCE, "email": "ann@company.com", "email_verified": true, "sid": "s", "auth_time": NOW_S,
    });
    claims.to_string().into_bytes()
}

fn logout_token_claims_json() -> Vec<u8> {
    let claims = json!({
        "iss": ISSUER, "sub": "ann", "aud": [CLIENT_ID], "exp": NOW_S + 60, "iat": NOW_S, "jti": "j", "sid": "s",
        "events": {"http://schemas.openid.net/event/backchannel-logout": {}},
    });
    claims.to_string().into_bytes()
}

/// Whether the token is accepted as an ID token, with its claims, and whether as a logout token.
fn accepted(token: &str, keys: &[JsonWebKey]) -> (Option<Value>, bool) {
    let expected = Expected {
        issuer: ISSUER,
        client_id: CLIENT_ID,
        nonce: NONCE,
        code: "code",
        access_token: "access",
        now_s: NOW_S,
    };
    let claims = id_token::check(token, keys, &expected).ok().map(|(_, all)| Value::Object(all));
    let expected = logout_token::Expected { issuer: ISSUER, client_id: CLIENT_ID, now_s: NOW_S };
    (claims, logout_token::check(token, keys, &expected).is_ok())
}

fn keys() -> Vec<JsonWebKey> {
    vec![serde_json::from_value(published_key()).unwrap()]
}

/// The input is a token, or its header and payload in two lines, which get the signature of a valid token.
#[test]
fn id_tokens() {
    let valid = [signed(&id_token_claims_json()), signed(&logout_token_claims_json())];
    let keys = keys();
    assert!(accepted(&valid[0], &keys).0.is_some() && accepted(&valid[1], &keys).1, "the seeds are valid");
    let signed_parts = valid.each_ref().map(|token| token.rsplit_once('.').unwrap());
    let mut seeds: Vec<Vec<u8>> = valid.iter().map(|token| token.clone().into_bytes()).collect();
    for payload in [id_token_claims_json(), logout_token_claims_json()] {
        seeds.push(
            [&b"{\"alg\":\"ES256\",\"kid\":\"ec\",\"typ\":\"JWT\"}\n"[..], payload.as_slice()].concat(),
        );
    }
    Fuzz { name: "id_tokens", crate_folder: CRATE_FOLDER, seeds, tokens: TOKENS, iterations: 300 }.run(
        |bytes| {
            let text = String::from_utf8_lossy(bytes);
            let candidates = match text.split_once('\n') {
                None => vec![text.to_string()],
                Some((header, payload)) => signed_parts
                    .iter()
                    .map(|(_, signature)| {
                        format!("{}.{}.{signature}", encode(header.as_bytes()), encode(payload.as_bytes()))
                    })
                    .collect(),
            };
            for token in candidates {
                if accepted(&token, &keys) != (None, false) {
                    let is_signed = token
                        .rsplit_once('.')
                        .is_some_and(|(part, _)| signed_parts.iter().any(|(signed, _)| *signed == part));
                    assert!(is_signed, "an unsigned token was accepted: {token}");
                }
            }
        },
    );
}

/// The provider signs any claims. Only those are accepted that name us, this sign-in and this time.
#[test]
fn id_token_claims() {
    let keys = keys();
    let seeds = vec![id_token_claims_json(), logout_token_claims_json()];
    let name = "id_token_claims";
    Fuzz { name, crate_folder: CRATE_FOLDER, seeds, tokens: TOKENS, iterations: 300 }.run(|payload| {
        let (claims, is_logout_token) = accepted(&signed(payload), &keys);
        let Some(claims) = claims else { return };
        assert!(!is_logout_token, "one token is an ID token and a logout token: {claims}");
        assert_eq!((&claims["iss"], &claims["nonce"]), (&json!(ISSUER), &json!(NONCE)));
        let audience = &claims["aud"];
        let names_us = |audience: &Value| audience == CLIENT_ID;
        assert!(
            names_us(audience) || audience.as_array().is_some_and(|all| all.iter().any(names_us)),
            "{claims}"
        );
        assert!(claims["exp"].as_f64().unwrap() > (NOW_S - CLOCK_SKEW_S) as f64 - 1.0, "{claims}");
        let subject = claims["sub"].as_str().unwrap();
        assert!(!subject.is_empty() && subject.chars().count() <= MAX_SUBJECT_CHARS, "{claims}");
    });
}

/// Whatever keys the provider publishes, a token without a signature is not accepted.
#[test]
fn key_sets() {
    let payload = encode(&id_token_claims_json());
    let mut forged = Vec::new();
    for alg in ["none", "HS256", "RS256", "PS512", "ES256", "ES384", "EdDSA"] {
        for header in [json!({"alg": alg, "kid": "ec"}), json!({"alg": alg})] {
            let header = encode(header.to_string().as_bytes());
            for signature_bytes in [0, 64, 256] {
                forged.push(format!("{header}.{payload}.{}", encode(&vec![0; signature_bytes])));
            }
        }
    }
    let rsa = json!({"kty": "RSA", "n": encode(&[0xc5; 256]), "e": "AQAB", "kid": "rsa", "alg": "RS256", "use": "sig"});
    let ed25519 = json!({"kty": "OKP", "crv": "Ed25519", "x": encode(&[7; 32]), "kid": "ed", "use": "sig"});
    let seeds = [
        json!({"keys": [published_key(), rsa, ed25519]}),
        json!({"keys": [rsa]}),
        json!({"keys": [ed25519, {"kty": "oct", "k": encode(b"secret")}]}),
    ];
    let fuzz = Fuzz {
        name: "key_sets",
        crate_folder: CRATE_FOLDER,
        seeds: seeds.iter().map(|seed| seed.to_string().into_bytes()).collect(),
        tokens: &[
            "\"kty\":",
            "\"RSA\"",
            "\"EC\"",
            "\"OKP\"",
            "\"oct\"",
            "\"n\":",
            "\"e\":",
            "\"x\":",
            "\"y\":",
            "\"k\":",
            "\"AQAB\"",
            "\"AA\"",
            "\"P-384\"",
            "\"kid\":",
            "\"use\":\"enc\"",
            "\"alg\":\"HS256\"",
            "\"keys\":",
            "AAAA",
        ],
        iterations: 100,
    };
    fuzz.run(|bytes| {
        let Ok(keys) = serde_json::from_slice::<JsonWebKeySet>(bytes) else { return };
        for token in &forged {
            assert_eq!(accepted(token, &keys.keys), (None, false), "{token}");
        }
    });
}
