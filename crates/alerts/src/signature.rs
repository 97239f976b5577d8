//! Signatures of Standard Webhooks, version 1: HMAC-SHA256 over the id, the time and the body.
//! <https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use chancery_domain::{Randomness, SecretToken};
use chancery_store::WebhookSecret;
use ring::hmac;
use std::ops::RangeInclusive;

const SECRET_PREFIX: &str = "whsec_";
/// The specification asks for 24 to 64 bytes.
const SECRET_BYTES: usize = 32;
const ACCEPTED_SECRET_BYTES: RangeInclusive<usize> = 24..=64;
const WEBHOOK_ID_PREFIX: &str = "wh_";
const WEBHOOK_ID_CHARS: usize = 16;

pub fn generate_webhook_secret(randomness: &dyn Randomness) -> WebhookSecret {
    let mut bytes = [0; SECRET_BYTES];
    randomness.fill(&mut bytes);
    WebhookSecret::from_text(format!("{SECRET_PREFIX}{}", STANDARD.encode(bytes)))
}

/// `wh_` and 16 random characters.
pub fn generate_webhook_id(randomness: &dyn Randomness) -> String {
    let token = SecretToken::generate(randomness);
    format!("{WEBHOOK_ID_PREFIX}{}", &token.reveal()[..WEBHOOK_ID_CHARS])
}

/// The value of `webhook-signature`. `None` if the secret is not one that we generate.
pub(crate) fn sign(secret: &WebhookSecret, id: &str, timestamp_s: i64, body: &str) -> Option<String> {
    let key = STANDARD.decode(secret.reveal().strip_prefix(SECRET_PREFIX)?).ok()?;
    if !ACCEPTED_SECRET_BYTES.contains(&key.len()) {
        return None;
    }
    let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
    let signature = hmac::sign(&key, format!("{id}.{timestamp_s}.{body}").as_bytes());
    Some(format!("v1,{}", STANDARD.encode(signature)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::SeededRandomness;

    /// The example of the specification, which its libraries test too.
    #[test]
    fn signature_matches_the_specification_example() {
        let secret = WebhookSecret::from_text("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned());
        let signature =
            sign(&secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, "{\"test\": 2432232314}");
        assert_eq!(signature.as_deref(), Some("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="));
    }

    #[test]
    fn signature_depends_on_every_signed_part() {
        let randomness = SeededRandomness::new(7);
        let secret = generate_webhook_secret(&randomness);
        let signature = sign(&secret, "evt_1", 1, "{}").unwrap();
        assert_ne!(sign(&secret, "evt_2", 1, "{}"), Some(signature.clone()));
        assert_ne!(sign(&secret, "evt_1", 2, "{}"), Some(signature.clone()));
        assert_ne!(sign(&secret, "evt_1", 1, "[]"), Some(signature.clone()));
        assert_ne!(sign(&generate_webhook_secret(&randomness), "evt_1", 1, "{}"), Some(signature));
    }

    #[test]
    fn secret_of_another_shape_signs_nothing() {
        for text in ["", "whsec_", "whsec_c2hvcnQ=", "whsec_***", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"] {
            assert_eq!(sign(&WebhookSecret::from_text(text.to_owned()), "evt_1", 1, "{}"), None, "{text}");
        }
    }

    #[test]
    fn generated_secrets_and_ids_have_the_documented_shape() {
        let randomness = SeededRandomness::new(7);
        let secret = generate_webhook_secret(&randomness);
        assert!(secret.reveal().starts_with("whsec_"));
        assert!(!format!("{secret:?}").contains(secret.reveal()));
        let id = generate_webhook_id(&randomness);
        assert!(id.starts_with("wh_") && id.len() == 19, "{id}");
    }
}
