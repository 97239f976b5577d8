//! Emails as messages of the outbox: subject and text as JSON, the address as the destination.

use chancery_domain::{Randomness, SecretToken, UnixMillis};
use chancery_mail::Email;
use chancery_store::{MessageKind, NewMessage};
use sha2::{Digest, Sha256};

/// Of the hash of a recipient, enough to tell the recipients of one event apart.
const RECIPIENT_BYTES: usize = 8;

#[derive(serde::Serialize, serde::Deserialize)]
struct EmailPayload {
    subject: String,
    text: String,
}

/// A message for the outbox. It is not sent after `expires_at`.
pub(crate) fn email_message(
    email: Email,
    event_id: String,
    created_at: UnixMillis,
    expires_at: UnixMillis,
) -> NewMessage {
    let Email { to, subject, text } = email;
    let payload = serde_json::json!(EmailPayload { subject, text }).to_string();
    NewMessage {
        kind: MessageKind::Email,
        destination: to.as_str().to_owned(),
        event_id,
        payload,
        created_at,
        expires_at,
    }
}

/// The id of an email that is never looked up.
pub(crate) fn random_email_id(randomness: &dyn Randomness) -> String {
    format!("eml_{}", SecretToken::generate(randomness).reveal())
}

/// An email with an id of its own, for a store's step that enqueues it together with its change.
pub fn new_email_message(
    email: Email,
    now: UnixMillis,
    expires_at: UnixMillis,
    randomness: &dyn Randomness,
) -> NewMessage {
    email_message(email, random_email_id(randomness), now, expires_at)
}

/// The same at every attempt, and different for each recipient.
pub(crate) fn message_id(message: &NewMessage) -> String {
    let recipient = Sha256::digest(message.destination.as_bytes());
    let recipient: String =
        recipient.iter().take(RECIPIENT_BYTES).map(|byte| format!("{byte:02x}")).collect();
    format!("{}.{recipient}", message.event_id)
}

/// `None` for a message that is not an email.
pub(crate) fn parse_email(message: &NewMessage) -> Option<Email> {
    let EmailPayload { subject, text } = serde_json::from_str(&message.payload).ok()?;
    Some(Email { to: message.destination.parse().ok()?, subject, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn email_survives_the_outbox_unchanged() {
        let email = Email {
            to: "ann@example.com".parse().unwrap(),
            subject: "Grüße \"x\"".to_owned(),
            text: "one\ntwo\u{0}\n".to_owned(),
        };
        let at = UnixMillis(1);
        let message = email_message(email.clone(), "evt_1".to_owned(), at, at);
        assert!(!message.payload.contains('\0'));
        let parsed = parse_email(&message).unwrap();
        assert_eq!((parsed.to, parsed.subject, parsed.text), (email.to, email.subject, email.text));
    }

    #[test]
    fn message_id_is_stable_and_differs_by_recipient() {
        let message = |to: &str| {
            let (subject, text) = ("Alert".to_owned(), "text\n".to_owned());
            let email = Email { to: to.parse().unwrap(), subject, text };
            email_message(email, "evt_1".to_owned(), UnixMillis(1), UnixMillis(2))
        };
        let id = message_id(&message("ann@example.com"));
        assert_eq!(id, message_id(&message("ann@example.com")));
        assert!(id.starts_with("evt_1.") && id != message_id(&message("bea@example.com")), "{id}");
    }
}
