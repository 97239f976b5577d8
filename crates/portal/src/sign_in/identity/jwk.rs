//! The provider's public keys (RFC 7517), and the signature algorithms that they verify. Both sides decide: the algorithm must be
//! on the list, and the key must be of its type. Deliberately has no shared secrets, no certificates (`x5c`, `x5u`) and no keys
//! from a token (`jwk`, `jku`).

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::digest;
use ring::rsa::PublicKeyComponents;
use ring::signature::{self, RsaParameters, UnparsedPublicKey, VerificationAlgorithm};
use serde::de::{Error, IgnoredAny};
use serde::{Deserialize, Deserializer};

pub(super) struct Algorithm {
    /// The value of `alg`.
    pub(super) name: &'static str,
    verifier: Verifier,
    /// The hashes that `at_hash` and `c_hash` may be made with. No standard defines the hash for EdDSA: some providers use Ed25519's
    /// own SHA-512, some SHA-256. Both are accepted, because either binds the text to the token.
    hashes: &'static [&'static digest::Algorithm],
}

enum Verifier {
    Rsa(&'static RsaParameters),
    EllipticCurve {
        name: &'static str,
        coordinate_bytes: usize,
        algorithm: &'static dyn VerificationAlgorithm,
    },
    Ed25519,
}

const SHA_256: &[&digest::Algorithm] = &[&digest::SHA256];
const SHA_384: &[&digest::Algorithm] = &[&digest::SHA384];
const SHA_512: &[&digest::Algorithm] = &[&digest::SHA512];

/// Asymmetric algorithms only, whose signatures only the provider can create. RSA keys have 2048 to 8192 bits.
static ALGORITHMS: [Algorithm; 9] = [
    Algorithm::rsa("RS256", &signature::RSA_PKCS1_2048_8192_SHA256, SHA_256),
    Algorithm::rsa("RS384", &signature::RSA_PKCS1_2048_8192_SHA384, SHA_384),
    Algorithm::rsa("RS512", &signature::RSA_PKCS1_2048_8192_SHA512, SHA_512),
    Algorithm::rsa("PS256", &signature::RSA_PSS_2048_8192_SHA256, SHA_256),
    Algorithm::rsa("PS384", &signature::RSA_PSS_2048_8192_SHA384, SHA_384),
    Algorithm::rsa("PS512", &signature::RSA_PSS_2048_8192_SHA512, SHA_512),
    Algorithm {
        name: "ES256",
        verifier: Verifier::EllipticCurve {
            name: "P-256",
            coordinate_bytes: 32,
            algorithm: &signature::ECDSA_P256_SHA256_FIXED,
        },
        hashes: SHA_256,
    },
    Algorithm {
        name: "ES384",
        verifier: Verifier::EllipticCurve {
            name: "P-384",
            coordinate_bytes: 48,
            algorithm: &signature::ECDSA_P384_SHA384_FIXED,
        },
        hashes: SHA_384,
    },
    Algorithm { name: "EdDSA", verifier: Verifier::Ed25519, hashes: &[&digest::SHA512, &digest::SHA256] },
];

impl Algorithm {
    const fn rsa(
        name: &'static str,
        parameters: &'static RsaParameters,
        hashes: &'static [&'static digest::Algorithm],
    ) -> Self {
        Self { name, verifier: Verifier::Rsa(parameters), hashes }
    }

    pub(super) fn named(name: &str) -> Option<&'static Self> {
        ALGORITHMS.iter().find(|algorithm| algorithm.name == name)
    }

    /// Whether `half_hash` is the left half of this algorithm's hash of `text`.
    pub(super) fn is_half_hash(&self, half_hash: &str, text: &str) -> bool {
        self.hashes.iter().any(|algorithm| {
            let hash = digest::digest(algorithm, text.as_bytes());
            BASE64_URL_SAFE_NO_PAD.encode(&hash.as_ref()[..algorithm.output_len() / 2]) == half_hash
        })
    }
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct JsonWebKeySet {
    /// Providers publish keys of other types and for other uses too, so unreadable ones are skipped.
    #[serde(deserialize_with = "readable_keys")]
    pub(super) keys: Vec<JsonWebKey>,
}

fn readable_keys<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<JsonWebKey>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Entry {
        Readable(JsonWebKey),
        Unreadable(IgnoredAny),
    }
    let entries = Vec::<Entry>::deserialize(deserializer)?.into_iter();
    Ok(entries
        .filter_map(|entry| match entry {
            Entry::Readable(key) => Some(key),
            Entry::Unreadable(_) => None,
        })
        .collect())
}

#[derive(Debug, Deserialize)]
pub(super) struct JsonWebKey {
    pub(super) kid: Option<String>,
    #[serde(rename = "use")]
    key_use: Option<String>,
    alg: Option<String>,
    #[serde(flatten)]
    public_key: PublicKey,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "kty")]
enum PublicKey {
    #[serde(rename = "RSA")]
    Rsa { n: Base64Url, e: Base64Url },
    #[serde(rename = "EC")]
    EllipticCurve { crv: String, x: Base64Url, y: Base64Url },
    #[serde(rename = "OKP")]
    OctetKeyPair { crv: String, x: Base64Url },
}

#[derive(Debug)]
struct Base64Url(Vec<u8>);

impl<'de> Deserialize<'de> for Base64Url {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BASE64_URL_SAFE_NO_PAD.decode(String::deserialize(deserializer)?).map(Self).map_err(D::Error::custom)
    }
}

impl JsonWebKey {
    /// Whether this key may be used with the algorithm, and verifies the signature.
    pub(super) fn verifies(&self, algorithm: &Algorithm, message: &[u8], signature: &[u8]) -> bool {
        let is_for_signatures = self.key_use.as_deref().is_none_or(|key_use| key_use == "sig");
        let is_for_algorithm = self.alg.as_deref().is_none_or(|alg| alg == algorithm.name);
        if !is_for_signatures || !is_for_algorithm {
            return false;
        }
        let verified = match (&algorithm.verifier, &self.public_key) {
            (Verifier::Rsa(parameters), PublicKey::Rsa { n, e }) => {
                let (n, e) = (without_leading_zeros(&n.0), without_leading_zeros(&e.0));
                PublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            (
                Verifier::EllipticCurve { name, coordinate_bytes, algorithm },
                PublicKey::EllipticCurve { crv, x: Base64Url(x), y: Base64Url(y) },
            ) if crv == name && x.len() == *coordinate_bytes && y.len() == *coordinate_bytes => {
                const UNCOMPRESSED: &[u8] = &[4];
                UnparsedPublicKey::new(*algorithm, [UNCOMPRESSED, x, y].concat()).verify(message, signature)
            }
            (Verifier::Ed25519, PublicKey::OctetKeyPair { crv, x }) if crv == "Ed25519" => {
                UnparsedPublicKey::new(&signature::ED25519, &x.0).verify(message, signature)
            }
            _ => return false,
        };
        verified.is_ok()
    }
}

/// Some providers write a sign byte, which ring rejects.
fn without_leading_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    &number[zeros..]
}
