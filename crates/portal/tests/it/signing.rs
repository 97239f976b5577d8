//! Signing keys of the hostile provider, for tests only.

use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use p256::ecdsa::signature::Signer;
use ring::rsa::PublicKeyComponents as Components;
use ring::signature::{Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair};
use ring::{hmac, rand};
use serde_json::{Value, json};

const RSA: [&str; 2] = [include_str!("keys/rsa_for_tests.pem"), include_str!("keys/other_rsa_for_tests.pem")];
const ED25519: &str = include_str!("keys/ed25519_for_tests.pem");

/// A key with its `kid`, which is in the key set and in tokens unless a test omits it.
#[derive(Clone)]
pub struct SigningKey {
    pub kid: String,
    kind: Kind,
}

#[derive(Clone)]
enum Kind {
    Es256(u8),
    Rs256(usize),
    EdDsa,
    Hs256(Vec<u8>),
}

impl SigningKey {
    /// Each seed gives a different key.
    pub fn es256(seed: u8) -> Self {
        Self { kid: format!("ec-{seed}"), kind: Kind::Es256(seed) }
    }

    pub fn rs256(which: usize) -> Self {
        Self { kid: format!("rsa-{which}"), kind: Kind::Rs256(which) }
    }

    pub fn ed_dsa() -> Self {
        Self { kid: "ed".to_owned(), kind: Kind::EdDsa }
    }

    pub fn hs256(secret: &[u8]) -> Self {
        Self { kid: "shared".to_owned(), kind: Kind::Hs256(secret.to_owned()) }
    }

    pub fn alg(&self) -> &'static str {
        match self.kind {
            Kind::Es256(_) => "ES256",
            Kind::Rs256(_) => "RS256",
            Kind::EdDsa => "EdDSA",
            Kind::Hs256(_) => "HS256",
        }
    }

    /// The key as a JWK in the key set.
    pub fn published(&self) -> Value {
        let part = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
        let mut jwk = match &self.kind {
            Kind::Es256(seed) => {
                let point = ec(*seed).verifying_key().to_sec1_point(false);
                json!({"kty": "EC", "crv": "P-256", "x": part(&point.as_bytes()[1..33]), "y": part(&point.as_bytes()[33..])})
            }
            Kind::Rs256(which) => {
                let key = rsa(*which);
                let Components { n, e } = Components::<Vec<u8>>::from(key.public());
                json!({"kty": "RSA", "n": part(&n), "e": part(&e)})
            }
            Kind::EdDsa => json!({"kty": "OKP", "crv": "Ed25519", "x": part(ed().public_key().as_ref())}),
            Kind::Hs256(secret) => json!({"kty": "oct", "k": part(secret)}),
        };
        jwk["kid"] = json!(self.kid);
        jwk["use"] = json!("sig");
        jwk
    }

    pub fn sign(&self, text: &str) -> Vec<u8> {
        match &self.kind {
            Kind::Es256(seed) => {
                let signature: p256::ecdsa::Signature = ec(*seed).sign(text.as_bytes());
                signature.to_bytes().to_vec()
            }
            Kind::Rs256(which) => {
                let key = rsa(*which);
                let mut signature = vec![0; key.public().modulus_len()];
                let rng = rand::SystemRandom::new();
                key.sign(&RSA_PKCS1_SHA256, &rng, text.as_bytes(), &mut signature).unwrap();
                signature
            }
            Kind::EdDsa => ed().sign(text.as_bytes()).as_ref().to_vec(),
            Kind::Hs256(secret) => {
                let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
                hmac::sign(&key, text.as_bytes()).as_ref().to_vec()
            }
        }
    }
}

fn der(pem: &str) -> Vec<u8> {
    let lines = pem.lines().filter(|line| !line.starts_with("-----"));
    BASE64_STANDARD.decode(lines.collect::<String>()).unwrap()
}

fn ec(seed: u8) -> p256::ecdsa::SigningKey {
    p256::ecdsa::SigningKey::from_slice(&[seed; 32]).unwrap()
}

fn rsa(which: usize) -> RsaKeyPair {
    RsaKeyPair::from_der(&der(RSA[which])).unwrap()
}

fn ed() -> Ed25519KeyPair {
    Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der(ED25519)).unwrap()
}
