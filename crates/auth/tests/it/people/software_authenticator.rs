//! A passkey in software: as much of an authenticator, and of the browser in front of it, as the tests need.

use super::harness::{HOST_NAME_ISSUER, Reply};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chancery_domain::{OsRandomness, Randomness};
use p256::ecdsa::signature::Signer;
use p256::ecdsa::{Signature, SigningKey};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const USER_PRESENT: u8 = 0x01;
const USER_VERIFIED: u8 = 0x04;
const HAS_CREDENTIAL: u8 = 0x40;

#[derive(Clone)]
pub struct SoftwareAuthenticator {
    key: SigningKey,
    credential_id: Vec<u8>,
    user_handle: Option<Vec<u8>>,
    pub counter: u32,
    /// Where the browser is, as it says.
    pub origin: String,
    pub verifies_user: bool,
}

impl SoftwareAuthenticator {
    pub fn new() -> Self {
        let (mut secret, mut credential_id) = ([0; 32], vec![0; 32]);
        OsRandomness.fill(&mut secret);
        OsRandomness.fill(&mut credential_id);
        Self {
            key: SigningKey::from_slice(&secret).unwrap(),
            credential_id,
            user_handle: None,
            counter: 0,
            origin: HOST_NAME_ISSUER.to_owned(),
            verifies_user: true,
        }
    }

    /// `navigator.credentials.create`, as the page's script posts it.
    pub fn create(&mut self, page: &Reply) -> String {
        let options = &options(page)["publicKey"];
        assert_eq!(options["authenticatorSelection"]["userVerification"], "required", "{options}");
        let user_handle = options["user"]["id"].as_str().unwrap();
        self.user_handle = Some(URL_SAFE_NO_PAD.decode(user_handle).unwrap());
        let mut data = self.authenticator_data(options["rp"]["id"].as_str().unwrap(), HAS_CREDENTIAL);
        data.extend([0; 16]);
        data.extend(u16::try_from(self.credential_id.len()).unwrap().to_be_bytes());
        data.extend(&self.credential_id);
        data.extend(self.public_key());
        let mut attestation = vec![0xa3];
        attestation.extend(b"\x63fmt\x64none\x67attStmt\xa0\x68authData\x59");
        attestation.extend(u16::try_from(data.len()).unwrap().to_be_bytes());
        attestation.extend(&data);
        let response = json!({
            "clientDataJSON": URL_SAFE_NO_PAD.encode(self.client_data("webauthn.create", options)),
            "attestationObject": URL_SAFE_NO_PAD.encode(attestation),
        });
        self.answer(&response)
    }

    /// `navigator.credentials.get`, as the page's script posts it.
    pub fn get(&mut self, page: &Reply) -> String {
        let options = &options(page)["publicKey"];
        assert_eq!(options["userVerification"], "required", "{options}");
        self.counter += 1;
        let data = self.authenticator_data(options["rpId"].as_str().unwrap(), 0);
        let client_data = self.client_data("webauthn.get", options);
        let mut signed = data.clone();
        signed.extend_from_slice(&Sha256::digest(client_data.as_bytes()));
        let signature: Signature = self.key.sign(&signed);
        let response = json!({
            "clientDataJSON": URL_SAFE_NO_PAD.encode(client_data),
            "authenticatorData": URL_SAFE_NO_PAD.encode(data),
            "signature": URL_SAFE_NO_PAD.encode(signature.to_der().as_bytes()),
            "userHandle": self.user_handle.as_ref().map(|handle| URL_SAFE_NO_PAD.encode(handle)),
        });
        self.answer(&response)
    }

    fn answer(&self, response: &Value) -> String {
        let id = URL_SAFE_NO_PAD.encode(&self.credential_id);
        json!({
            "id": id,
            "rawId": id,
            "type": "public-key",
            "response": response,
            "clientExtensionResults": {},
        })
        .to_string()
    }

    fn client_data(&self, kind: &str, options: &Value) -> String {
        let (challenge, origin) = (&options["challenge"], &self.origin);
        json!({"type": kind, "challenge": challenge, "origin": origin, "crossOrigin": false}).to_string()
    }

    fn authenticator_data(&self, rp_id: &str, flags: u8) -> Vec<u8> {
        let verified = if self.verifies_user { USER_VERIFIED } else { 0 };
        let mut data = Sha256::digest(rp_id.as_bytes()).to_vec();
        data.push(USER_PRESENT | verified | flags);
        data.extend(self.counter.to_be_bytes());
        data
    }

    /// The public key as COSE: an ES256 key on P-256.
    fn public_key(&self) -> Vec<u8> {
        let point = self.key.verifying_key().to_sec1_point(false);
        // After a byte that says that it is not compressed.
        let (x, y) = point.as_bytes()[1..].split_at(32);
        let mut key = vec![0xa5, 0x01, 0x02, 0x03, 0x26, 0x20, 0x01, 0x21, 0x58, 0x20];
        key.extend(x);
        key.extend([0x22, 0x58, 0x20]);
        key.extend(y);
        key
    }
}

/// What the page gives to its script.
fn options(page: &Reply) -> Value {
    let (_, rest) =
        page.body.split_once("data-options=\"").unwrap_or_else(|| panic!("no options in {page:?}"));
    let text = rest.split('"').next().unwrap();
    let text = text.replace("&#34;", "\"").replace("&#39;", "'").replace("&#60;", "<").replace("&#62;", ">");
    serde_json::from_str(&text.replace("&#38;", "&")).unwrap()
}
