//! Signing keys of the hostile provider, for tests only.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use openidconnect::core::{
    CoreEdDsaPrivateSigningKey, CoreHmacKey, CoreJwsSigningAlgorithm, CoreRsaPrivateSigningKey,
};
use openidconnect::{JsonWebKeyId, PrivateSigningKey};
use p256::ecdsa::signature::Signer;
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
        let mut jwk = match &self.kind {
            Kind::Es256(seed) => {
                let point = ec(*seed).verifying_key().to_sec1_point(false);
                let part = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
                json!({"kty": "EC", "crv": "P-256", "x": part(&point.as_bytes()[1..33]), "y": part(&point.as_bytes()[33..])})
            }
            Kind::Rs256(which) => serde_json::to_value(rsa(*which).as_verification_key()).unwrap(),
            Kind::EdDsa => serde_json::to_value(ed().as_verification_key()).unwrap(),
            Kind::Hs256(secret) => json!({"kty": "oct", "k": BASE64_URL_SAFE_NO_PAD.encode(secret)}),
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
                rsa(*which).sign(&CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha256, text.as_bytes()).unwrap()
            }
            Kind::EdDsa => ed().sign(&CoreJwsSigningAlgorithm::EdDsa, text.as_bytes()).unwrap(),
            Kind::Hs256(secret) => CoreHmacKey::new(secret.as_slice())
                .sign(&CoreJwsSigningAlgorithm::HmacSha256, text.as_bytes())
                .unwrap(),
        }
    }
}

fn ec(seed: u8) -> p256::ecdsa::SigningKey {
    p256::ecdsa::SigningKey::from_slice(&[seed; 32]).unwrap()
}

fn rsa(which: usize) -> CoreRsaPrivateSigningKey {
    CoreRsaPrivateSigningKey::from_pem(RSA[which], Some(JsonWebKeyId::new(format!("rsa-{which}")))).unwrap()
}

fn ed() -> CoreEdDsaPrivateSigningKey {
    CoreEdDsaPrivateSigningKey::from_ed25519_pem(ED25519, Some(JsonWebKeyId::new("ed".to_owned()))).unwrap()
}
