//! Attacks on tokens and keys, for tests only. `tests/it/id_token.rs` has the rules, seen from outside; here are the forgeries that
//! rules alone do not stop: every algorithm with every key, and every odd form of a header, a signature, a claim and a key.

use super::id_token::{self, Expected};
use super::jwk::{Algorithm, JsonWebKeySet};
use super::signed_token::TokenError;
use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE, BASE64_URL_SAFE_NO_PAD};
use p256::ecdsa::signature::Signer;
use ring::rand::SystemRandom;
use ring::rsa::PublicKeyComponents;
use ring::signature::{
    ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256,
    RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RSA_PSS_SHA256, RSA_PSS_SHA384, RSA_PSS_SHA512, RsaKeyPair,
};
use ring::{digest, hmac};
use serde_json::{Value, json};

const ISSUER: &str = "https://id.example";
const CLIENT_ID: &str = "portal";
const NOW_S: i64 = 1_794_561_240;
const RSA_PEM: &str = include_str!("../../../tests/it/keys/rsa_for_tests.pem");
const ALGORITHMS: [&str; 9] =
    ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"];

fn encode(bytes: impl AsRef<[u8]>) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// The provider's private keys, one of each type.
struct Provider {
    rsa: RsaKeyPair,
    p256: p256::ecdsa::SigningKey,
    p384: EcdsaKeyPair,
    ed25519: Ed25519KeyPair,
}

impl Provider {
    fn new() -> Self {
        let lines = RSA_PEM.lines().filter(|line| !line.starts_with("-----"));
        let rng = SystemRandom::new();
        let p384 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P384_SHA384_FIXED_SIGNING, &rng).unwrap();
        Self {
            rsa: RsaKeyPair::from_der(&BASE64_STANDARD.decode(lines.collect::<String>()).unwrap()).unwrap(),
            p256: p256::ecdsa::SigningKey::from_slice(&[7; 32]).unwrap(),
            p384: EcdsaKeyPair::from_pkcs8(&ECDSA_P384_SHA384_FIXED_SIGNING, p384.as_ref(), &rng).unwrap(),
            ed25519: Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap(),
        }
    }

    fn sign(&self, alg: &str, message: &str) -> Vec<u8> {
        let (rng, message) = (SystemRandom::new(), message.as_bytes());
        let padding: &dyn ring::signature::RsaEncoding = match alg {
            "RS256" => &RSA_PKCS1_SHA256,
            "RS384" => &RSA_PKCS1_SHA384,
            "RS512" => &RSA_PKCS1_SHA512,
            "PS256" => &RSA_PSS_SHA256,
            "PS384" => &RSA_PSS_SHA384,
            "PS512" => &RSA_PSS_SHA512,
            "ES256" => {
                let signature: p256::ecdsa::Signature = self.p256.sign(message);
                return signature.to_bytes().to_vec();
            }
            "ES384" => return self.p384.sign(&rng, message).unwrap().as_ref().to_vec(),
            "EdDSA" => return self.ed25519.sign(message).as_ref().to_vec(),
            other => panic!("no key for {other}"),
        };
        let mut signature = vec![0; self.rsa.public().modulus_len()];
        self.rsa.sign(padding, &rng, message, &mut signature).unwrap();
        signature
    }

    /// The key of this algorithm, as published.
    fn key(&self, alg: &str) -> Value {
        let curve = |name: &str, point: &[u8]| {
            let (x, y) = point[1..].split_at(point.len() / 2);
            json!({"kty": "EC", "crv": name, "x": encode(x), "y": encode(y), "kid": "k"})
        };
        match alg {
            "ES256" => curve("P-256", self.p256.verifying_key().to_sec1_point(false).as_bytes()),
            "ES384" => curve("P-384", self.p384.public_key().as_ref()),
            "EdDSA" => {
                json!({"kty": "OKP", "crv": "Ed25519", "x": encode(self.ed25519.public_key()), "kid": "k"})
            }
            _ => {
                let PublicKeyComponents { n, e } = PublicKeyComponents::<Vec<u8>>::from(self.rsa.public());
                json!({"kty": "RSA", "n": encode(n), "e": encode(e), "kid": "k"})
            }
        }
    }

    /// A token with this header and payload, validly signed.
    fn token(&self, alg: &str, header: &str, payload: &str) -> String {
        let signed = format!("{}.{}", encode(header), encode(payload));
        let signature = self.sign(alg, &signed);
        format!("{signed}.{}", encode(signature))
    }

    fn valid_token(&self, alg: &str) -> String {
        self.token(alg, &header(alg), &claims().to_string())
    }

    #[track_caller]
    fn assert_rejected(&self, token: &str, why: &str) {
        assert_rejected(token, &[self.key("ES256")], why);
    }
}

fn header(alg: &str) -> String {
    json!({"alg": alg, "kid": "k", "typ": "JWT"}).to_string()
}

fn claims() -> Value {
    json!({
        "iss": ISSUER, "sub": "ann", "aud": CLIENT_ID, "exp": NOW_S + 300, "iat": NOW_S, "nonce": "nonce",
        "email": "ann@company.com", "email_verified": true,
    })
}

fn check(token: &str, keys: &[Value]) -> Result<(), TokenError> {
    let keys: JsonWebKeySet = serde_json::from_value(json!({"keys": keys})).unwrap();
    check_with(token, &keys)
}

fn check_with(token: &str, keys: &JsonWebKeySet) -> Result<(), TokenError> {
    let expected = Expected {
        issuer: ISSUER,
        client_id: CLIENT_ID,
        nonce: "nonce",
        code: "code",
        access_token: "access",
        now_s: NOW_S,
    };
    id_token::check(token, &keys.keys, &expected).map(|_| ())
}

#[track_caller]
fn assert_rejected(token: &str, keys: &[Value], why: &str) {
    match check(token, keys) {
        Ok(()) => panic!("accepted: {token:.300}"),
        Err(TokenError::Rejected(text) | TokenError::UnknownKey(text)) => {
            assert!(text.contains(why), "{text:?} does not contain {why:?}: {token:.300}");
        }
    }
}

const UNVERIFIED: &str = "signature does not verify";

#[test]
fn algorithm_verifies_only_its_own_signatures_with_its_own_type_of_key() {
    let provider = Provider::new();
    for named in ALGORITHMS {
        for used in ALGORITHMS {
            let token = provider.token(used, &header(named), &claims().to_string());
            for key in ["RS256", "ES256", "ES384", "EdDSA"].map(|alg| provider.key(alg)) {
                let is_valid = named == used && key == provider.key(named);
                let outcome = check(&token, std::slice::from_ref(&key));
                assert_eq!(outcome.is_ok(), is_valid, "{named} signed as {used}, key {key}: {outcome:?}");
            }
        }
    }
}

#[test]
fn other_algorithms_are_rejected_whoever_signed() {
    let provider = Provider::new();
    let key = provider.key("RS256");
    let modulus = key["n"].as_str().unwrap();
    let (pem, jwk) = (RSA_PEM.as_bytes(), key.to_string());
    let secrets = [
        modulus.as_bytes().to_vec(),
        BASE64_URL_SAFE_NO_PAD.decode(modulus).unwrap(),
        pem.to_vec(),
        jwk.into_bytes(),
        Vec::new(),
    ];
    let algorithms = [
        "none",
        "None",
        "NONE",
        "nOnE",
        "",
        " ",
        "HS256",
        "HS384",
        "HS512",
        "hs256",
        "Hs256",
        "rs256",
        "es256",
        "ES256 ",
        "RS256\0",
        "ES512",
        "ES256K",
        "Ed25519",
        "eddsa",
        "RS1",
        "dir",
        "RSA-OAEP",
        "A128GCM",
        "RS2\u{35}6\u{301}",
    ];
    for alg in algorithms {
        let signed = format!("{}.{}", encode(header(alg)), encode(claims().to_string()));
        let mut signatures = vec![Vec::new(), vec![0; 64], provider.sign("RS256", &signed)];
        for secret in &secrets {
            for hash in [hmac::HMAC_SHA256, hmac::HMAC_SHA384, hmac::HMAC_SHA512] {
                signatures
                    .push(hmac::sign(&hmac::Key::new(hash, secret), signed.as_bytes()).as_ref().to_vec());
            }
        }
        let shared = json!({"kty": "oct", "k": encode(&secrets[0]), "kid": "k", "alg": alg});
        for signature in signatures {
            let token = format!("{signed}.{}", encode(signature));
            assert_rejected(&token, &[key.clone(), shared.clone()], "is not accepted");
        }
    }
    for alg in [json!(null), json!(7), json!(["ES256"]), json!({"ES256": 1}), json!(true)] {
        let header = json!({"alg": alg, "kid": "k"}).to_string();
        provider.assert_rejected(
            &provider.token("ES256", &header, &claims().to_string()),
            "invalid ID token header",
        );
    }
    provider
        .assert_rejected(&provider.token("ES256", "{}", &claims().to_string()), "invalid ID token header");
}

/// Encodes an elliptic-curve signature as DER, which other protocols use.
fn der(signature: &[u8]) -> Vec<u8> {
    let integer = |number: &[u8]| {
        let sign: &[u8] = if number[0] < 0x80 { &[] } else { &[0] };
        [&[2, (sign.len() + number.len()) as u8], sign, number].concat()
    };
    let (r, s) = signature.split_at(signature.len() / 2);
    let both = [integer(r), integer(s)].concat();
    [&[0x30, both.len() as u8], both.as_slice()].concat()
}

#[test]
fn signature_has_one_form_only() {
    let provider = Provider::new();
    for alg in ALGORITHMS {
        let token = provider.valid_token(alg);
        let keys = [provider.key(alg)];
        assert_eq!(check(&token, &keys), Ok(()), "{alg}");
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let valid = BASE64_URL_SAFE_NO_PAD.decode(signature).unwrap();
        let zero = &[0_u8][..];
        let (r, s) = valid.split_at(valid.len() / 2);
        let mut forms = vec![
            Vec::new(),
            valid[1..].to_vec(),
            valid[..valid.len() - 1].to_vec(),
            [zero, &valid].concat(),
            [&valid, zero].concat(),
            [&valid[..], &valid].concat(),
            [zero, r, zero, s].concat(),
            [s, r].concat(),
            vec![0; valid.len()],
            vec![0xff; valid.len()],
            [r, &vec![0; s.len()]].concat(),
            [&vec![0; r.len()], s].concat(),
        ];
        if alg.starts_with("ES") {
            forms.push(der(&valid));
        }
        if alg == "EdDSA" {
            forms.push([r, &plus_group_order(s)].concat());
        }
        for form in forms {
            assert_rejected(&format!("{signed}.{}", encode(form)), &keys, UNVERIFIED);
        }
        for bit in [0, 7, valid.len() * 4, valid.len() * 8 - 1] {
            let mut changed = valid.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_rejected(&format!("{signed}.{}", encode(changed)), &keys, UNVERIFIED);
        }
    }
}

/// Ed25519's `S` as a second number that satisfies the same equation.
fn plus_group_order(s: &[u8]) -> Vec<u8> {
    const ORDER: [u8; 32] = [
        0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
    ];
    let mut carry = 0;
    let add = |(a, b): (&u8, &u8)| {
        let sum = u16::from(*a) + u16::from(*b) + carry;
        carry = sum >> 8;
        sum as u8
    };
    s.iter().zip(&ORDER).map(add).collect()
}

#[test]
fn key_is_used_only_as_published() {
    let provider = Provider::new();
    for alg in ALGORITHMS {
        let token = provider.valid_token(alg);
        let with = |name: &str, value: Value| {
            let mut key = provider.key(alg);
            key[name] = value;
            [key]
        };
        for (name, value) in [("use", "sig"), ("alg", alg), ("x5t", "x")] {
            assert_eq!(check(&token, &with(name, json!(value))), Ok(()), "{alg} {name}");
        }
        for key_use in ["enc", "SIG", "", "sig ", "tls"] {
            assert_rejected(&token, &with("use", json!(key_use)), UNVERIFIED);
        }
        for other in
            ALGORITHMS.into_iter().filter(|other| *other != alg).chain(["none", "HS256", "RSA-OAEP", ""])
        {
            assert_rejected(&token, &with("alg", json!(other)), UNVERIFIED);
        }
        let unknown = "matches none of the provider's keys";
        for (name, value) in [
            ("kid", json!("K")),
            ("kid", json!("")),
            ("kid", json!(null)),
            ("kid", json!(7)),
            ("use", json!(["sig"])),
            ("alg", json!([alg])),
            ("kty", json!("oct")),
            ("kty", json!(null)),
            ("kty", json!("rsa")),
        ] {
            assert_rejected(&token, &with(name, value), unknown);
        }
        for name in ["n", "e", "x", "y", "crv"] {
            if provider.key(alg).get(name).is_some() {
                for value in [json!(null), json!(7), json!("AQAB="), json!("A"), json!(" AQAB"), json!("")] {
                    assert!(check(&token, &with(name, value.clone())).is_err(), "{alg} {name} {value}");
                }
            }
        }
    }
}

#[test]
fn curve_points_and_lengths_are_checked() {
    let provider = Provider::new();
    for (alg, bytes) in [("ES256", 32), ("ES384", 48)] {
        let token = provider.valid_token(alg);
        let key = provider.key(alg);
        let coordinate = |name: &str| BASE64_URL_SAFE_NO_PAD.decode(key[name].as_str().unwrap()).unwrap();
        let (x, y) = (coordinate("x"), coordinate("y"));
        let both = [x.as_slice(), &y].concat();
        let (zero, one): (&[u8], &[u8]) = (&[0], &[1]);
        for (x, y) in [
            // The right point, divided at another place.
            (both[..bytes - 1].to_vec(), both[bytes - 1..].to_vec()),
            (both.clone(), Vec::new()),
            (Vec::new(), both.clone()),
            ([zero, &x].concat(), y.clone()),
            (x.clone(), [zero, &y].concat()),
            (vec![0; bytes], vec![0; bytes]),
            (vec![0xff; bytes], vec![0xff; bytes]),
            (y.clone(), x.clone()),
            (x.clone(), [&y[..bytes - 1], one].concat()),
            (x.clone(), Vec::new()),
        ] {
            let mut key = key.clone();
            (key["x"], key["y"]) = (json!(encode(x)), json!(encode(y)));
            assert_rejected(&token, &[key], UNVERIFIED);
        }
        for crv in ["P-256", "P-384", "P-521", "secp256k1", "Ed25519", "p-256", ""] {
            let mut other = key.clone();
            other["crv"] = json!(crv);
            assert_eq!(check(&token, &[other]).is_ok(), json!(crv) == key["crv"], "{alg} {crv}");
        }
    }
}

#[test]
fn rsa_keys_have_2048_bits_and_a_usual_exponent() {
    let provider = Provider::new();
    for alg in ["RS256", "PS256"] {
        let token = provider.valid_token(alg);
        let key = provider.key(alg);
        let modulus = BASE64_URL_SAFE_NO_PAD.decode(key["n"].as_str().unwrap()).unwrap();
        let with = |n: &[u8], e: &[u8]| {
            let mut key = key.clone();
            (key["n"], key["e"]) = (json!(encode(n)), json!(encode(e)));
            [key]
        };
        let usual: &[u8] = &[1, 0, 1];
        // Java writes a sign byte.
        assert_eq!(check(&token, &with(&[&[0], modulus.as_slice()].concat(), &[0, 1, 0, 1])), Ok(()));
        for e in [&[][..], &[0], &[1], &[2], &[3], &[1, 0, 0], &[0xff; 9], &[0xff; 256]] {
            assert_rejected(&token, &with(&modulus, e), UNVERIFIED);
        }
        let too_long =
            [modulus.clone(), modulus.clone(), modulus.clone(), modulus.clone(), modulus.clone()].concat();
        for n in [&[][..], &[0], &[1], &modulus[..128], &modulus[..255], &vec![0xff; 256], &too_long] {
            assert_rejected(&token, &with(n, usual), UNVERIFIED);
        }
        // With the exponent 1, a signature is its own message.
        let hash = digest::digest(&digest::SHA256, token.rsplit_once('.').unwrap().0.as_bytes());
        let prefix = b"\x30\x31\x30\x0d\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02\x01\x05\x00\x04\x20";
        let padded = [&[0, 1][..], &[0xff; 202], &[0], prefix, hash.as_ref()].concat();
        let forged = format!("{}.{}", token.rsplit_once('.').unwrap().0, encode(padded));
        assert_rejected(&forged, &with(&modulus, &[1]), UNVERIFIED);
    }
}

/// The signature itself is valid.
#[test]
fn rsa_key_of_1024_bits_is_rejected() {
    let n = "sU_LDO35bhhyVcChLW7ittm9C9N5uX5mcb4wxBtS7K8Sw8UjFH52kxKnfIzomyHKzHdTpx1awrv7CIeGQVyAEz\
         VpPc0mCAuWX3P8kOxCKKli_H4rITR67d_OzKm9i0EFZl2u79rEUSdz7FZTsWsbtigJbSKDBrI_J50GfWgq-kc";
    let signature = "IGJ3X-J7oLNQthpFArdU_X79H6mdykhzMfa-jZzW0A0hXZbkHlMHOKyHhIaY428q-VwD554W2ajpIZmXZGc8W3\
         oPETw7tdEUam3iNcLXATQB9cI2fJ9Zxm_4Y4KsyTpeoCX1Du_HwuawkPWQSBPK89Ob_mq3IkG_JKgCLJk9bdA";
    let keys: JsonWebKeySet =
        serde_json::from_value(json!({"keys": [{"kty": "RSA", "n": n, "e": "AQAB"}]})).unwrap();
    let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).unwrap();
    assert!(!keys.keys[0].verifies(Algorithm::named("RS256").unwrap(), b"message", &signature));
}

#[test]
fn keys_of_the_same_kid_are_all_tried_and_others_never() {
    let provider = Provider::new();
    let other = p256::ecdsa::SigningKey::from_slice(&[9; 32]).unwrap();
    let other = Provider { p256: other, ..Provider::new() };
    let token = provider.valid_token("ES256");
    let [ours, theirs, rsa] = [provider.key("ES256"), other.key("ES256"), provider.key("RS256")];
    assert_eq!(check(&token, &[theirs.clone(), rsa.clone(), ours.clone()]), Ok(()));
    assert_eq!(check(&token, &[ours.clone(), theirs.clone()]), Ok(()));
    assert_rejected(&token, &[theirs.clone(), rsa], UNVERIFIED);

    let mut renamed = ours;
    renamed["kid"] = json!("another");
    let outcome = check(&token, &[renamed.clone()]);
    assert!(matches!(outcome, Err(TokenError::UnknownKey(_))), "{outcome:?}");
    let outcome = check(&token, &[]);
    assert!(matches!(outcome, Err(TokenError::UnknownKey(_))), "{outcome:?}");
    assert_rejected(&token, &[renamed, theirs], UNVERIFIED);
}

#[test]
fn keys_in_the_token_are_ignored() {
    let provider = Provider::new();
    let forger = p256::ecdsa::SigningKey::from_slice(&[9; 32]).unwrap();
    let forger = Provider { p256: forger, ..Provider::new() };
    let header = json!({
        "alg": "ES256", "kid": "k", "jwk": forger.key("ES256"), "jku": "https://evil.example/jwks.json",
        "x5u": "https://evil.example/x5u", "x5c": ["MIIB"],
    });
    let token = forger.token("ES256", &header.to_string(), &claims().to_string());
    provider.assert_rejected(&token, UNVERIFIED);
}

#[test]
fn duplicate_members_are_rejected() {
    let provider = Provider::new();
    let payload = claims().to_string();
    for first in [
        r#""alg":"none""#,
        r#""alg":"ES256""#,
        r#""kid":"k""#,
        r#""kid":null"#,
        r#""typ":"JWT""#,
        r#""crit":null"#,
    ] {
        let name = first.split(':').next().unwrap();
        for header in [
            format!(r#"{{{first},"alg":"ES256","kid":"k","typ":"JWT","crit":null}}"#),
            format!(r#"{{"alg":"ES256","kid":"k","typ":"JWT","crit":null,{first}}}"#),
        ] {
            let token = provider.token("ES256", &header, &payload);
            assert!(header.matches(name).count() > 1, "{header}");
            provider.assert_rejected(&token, "invalid ID token header");
        }
    }
    for name in [
        "iss",
        "sub",
        "aud",
        "exp",
        "iat",
        "nbf",
        "nonce",
        "azp",
        "at_hash",
        "c_hash",
        "email",
        "email_verified",
    ] {
        let mut both = claims();
        let value = both.get(name).cloned().unwrap_or(json!(null));
        both[name] = value.clone();
        let payload = both.to_string();
        for payload in [
            format!(r#"{{"{name}":{value},{}"#, &payload[1..]),
            format!(r#"{},"{name}":{value}}}"#, &payload[..payload.len() - 1]),
        ] {
            provider.assert_rejected(&provider.token("ES256", &header("ES256"), &payload), "duplicate field");
        }
    }
    let token = provider.valid_token("ES256");
    let key = provider.key("ES256").to_string();
    for member in [r#""kty":"EC""#, r#""crv":"P-256""#, r#""kid":"k""#, r#""x":"AAAA""#, r#""y":"AAAA""#] {
        let keys = format!(r#"{{"keys":[{{{member},{}]}}"#, &key[1..]);
        let keys: JsonWebKeySet = serde_json::from_str(&keys).unwrap();
        let outcome = check_with(&token, &keys);
        assert!(matches!(outcome, Err(TokenError::UnknownKey(_))), "{member}: {outcome:?}");
    }
    let twice = format!(r#"{{"keys":[{key}],"keys":[]}}"#);
    assert!(serde_json::from_str::<JsonWebKeySet>(&twice).is_err());
}

#[test]
fn token_has_one_encoding_only() {
    let provider = Provider::new();
    // 19 and 64 bytes: the last character of header and signature has bits that are not used.
    let header = r#"{"alg":"ES256"}    "#;
    let token = provider.token("ES256", header, &format!("{}  ", claims()));
    let keys = [provider.key("ES256")];
    assert_eq!(check(&token, &keys), Ok(()));
    let parts: Vec<&str> = token.split('.').collect();
    let spoil = |changed: usize, change: &dyn Fn(&str) -> String| {
        let parts: Vec<String> = parts
            .iter()
            .enumerate()
            .map(|(index, part)| if index == changed { change(part) } else { (*part).to_owned() })
            .collect();
        parts.join(".")
    };
    for changed in 0..3 {
        let changes: [&dyn Fn(&str) -> String; 7] = [
            &|part| format!("{part}="),
            &|part| format!("{part}=="),
            &|part| format!("{part}\n"),
            &|part| format!(" {part}"),
            &|part| format!("{part}A"),
            &|part| format!("{part}%3D"),
            &|part| part.replacen(|_: char| true, "+", 1),
        ];
        for change in changes {
            assert!(check(&spoil(changed, change), &keys).is_err(), "{}", spoil(changed, change));
        }
        let padded = |part: &str| BASE64_URL_SAFE.encode(BASE64_URL_SAFE_NO_PAD.decode(part).unwrap());
        if spoil(changed, &padded) != token {
            assert_rejected(&spoil(changed, &padded), &keys, "invalid ID token");
        }
    }
    for changed in [0, 2] {
        let next = |part: &str| {
            let (start, last) = part.split_at(part.len() - 1);
            format!("{start}{}", char::from(last.as_bytes()[0] + 1))
        };
        assert_rejected(&spoil(changed, &next), &keys, "invalid ID token");
    }
    for token in [
        format!("{token}."),
        format!(".{token}"),
        format!("{token}.{}", parts[2]),
        format!("{token}\0"),
        format!("{token} {token}"),
        token.replace('.', "。"),
        parts[..2].join("."),
        format!("{}..{}", parts[0], parts[2]),
    ] {
        assert!(check(&token, &keys).is_err(), "{token}");
    }
}

#[test]
fn extensions_and_nested_tokens_are_rejected() {
    let provider = Provider::new();
    let payload = claims().to_string();
    let with = |more: Value| {
        let mut header = json!({"alg": "ES256", "kid": "k"});
        header.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        header
    };
    for more in [
        json!({"crit": ["b64"], "b64": false}),
        json!({"crit": ["b64"], "b64": true}),
        json!({"crit": ["exp"]}),
        json!({"crit": []}),
        json!({"crit": "b64"}),
        json!({"crit": false}),
        json!({"cty": "JWT"}),
        json!({"cty": "jwt", "typ": "JWT"}),
    ] {
        let token = provider.token("ES256", &with(more).to_string(), &payload);
        provider.assert_rejected(&token, "unsupported `crit` or `cty`");
    }
    // A payload that is not encoded (RFC 7797).
    let header = encode(with(json!({"b64": false})).to_string());
    let plain = payload.replace('.', "");
    let signature = provider.sign("ES256", &format!("{header}.{plain}"));
    provider.assert_rejected(&format!("{header}.{plain}.{}", encode(signature)), "invalid ID token payload");
    // A token in a token, and the five parts of an encrypted one (RFC 7516).
    let inner = provider.valid_token("ES256");
    for payload in [inner.clone(), json!(inner).to_string(), json!({"jwt": inner}).to_string()] {
        provider.assert_rejected(
            &provider.token("ES256", &self::header("ES256"), &payload),
            "the ID token's claims: ",
        );
    }
    let encrypted = encode(json!({"alg": "RSA-OAEP", "enc": "A128GCM", "kid": "k"}).to_string());
    provider.assert_rejected(&format!("{encrypted}.AA.AA.AA.AA"), "three parts");
    provider.assert_rejected(&format!("{inner}.AA.AA"), "three parts");
}

#[test]
fn claims_of_other_types_are_rejected() {
    let provider = Provider::new();
    let signed = |name: &str, value: &Value| {
        let mut claims = claims();
        claims[name] = value.clone();
        provider.token("ES256", &header("ES256"), &claims.to_string())
    };
    let keys = [provider.key("ES256")];
    for (name, values) in [
        ("iss", json!([null, 7, [ISSUER], {"iss": ISSUER}, "", "https://ID.example", "https://id.example/"])),
        ("sub", json!([null, 7, ["ann"], "", true])),
        (
            "aud",
            json!([null, 7, true, {}, [], [7], [[CLIENT_ID]], [CLIENT_ID, 7], "", "Portal", "portal other"]),
        ),
        ("azp", json!([7, [CLIENT_ID], "", "other"])),
        (
            "exp",
            json!([null, "1794561540", true, [], -1, -1.5, 0, 1e300, 1e18, u64::MAX, i64::MIN, NOW_S - 61]),
        ),
        ("iat", json!([null, "1794561240", true, [], -1, 1e300, u64::MAX, NOW_S + 61, NOW_S - 3600])),
        ("nbf", json!(["1794561240", true, [], -1, 1e300, u64::MAX, NOW_S + 61])),
        ("nonce", json!([null, 7, ["nonce"], "", "Nonce", "nonce\u{0}"])),
        ("at_hash", json!([7, "", [], "x"])),
        ("c_hash", json!([7, "", [], "x"])),
    ] {
        for value in values.as_array().unwrap() {
            assert!(check(&signed(name, value), &keys).is_err(), "{name}: {value}");
        }
    }
    for (name, value) in [("exp", json!(NOW_S as f64 + 300.5)), ("iat", json!(NOW_S as f64 - 0.5))] {
        assert_eq!(check(&signed(name, &value), &keys), Ok(()), "{name}: {value}");
    }
    for payload in ["", "null", "7", "[]", "\"\"", "{}", "{", "{}{}", "\u{feff}{}"] {
        assert_rejected(
            &provider.token("ES256", &header("ES256"), payload),
            &keys,
            "the ID token's claims: ",
        );
    }
    let trailing = provider.token("ES256", &header("ES256"), &format!("{}x", claims()));
    assert_rejected(&trailing, &keys, "trailing characters");
}

#[test]
fn huge_and_deeply_nested_tokens_are_rejected() {
    let provider = Provider::new();
    let bytes = super::limits::MAX_REPLY_BYTES;
    for filler in [".", "A", "=", "\0", "é"] {
        assert!(check(&filler.repeat(bytes), &[provider.key("ES256")]).is_err());
    }
    let deep = "[".repeat(bytes);
    let header = format!(r#"{{"alg":"ES256","kid":"k","x":{deep}"#);
    let token = provider.token("ES256", &header, &claims().to_string());
    provider.assert_rejected(&token, "invalid ID token header");
    for name in ["x", "aud", "email"] {
        let payload = format!(r#"{{"{name}":{deep}"#);
        provider.assert_rejected(
            &provider.token("ES256", &self::header("ES256"), &payload),
            "recursion limit exceeded",
        );
    }
    let keys = format!(r#"{{"keys":[{{"kty":{deep}"#);
    assert!(serde_json::from_str::<JsonWebKeySet>(&keys).is_err());
}
