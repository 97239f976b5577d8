//! Emails as messages of the outbox: subject, text and a PDF as JSON, the address as the destination.

use crate::people_emails::PEOPLE_EMAIL_LIFETIME;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chancery_domain::{Randomness, SecretToken, UnixMillis};
use chancery_mail::{Email, EmailExtras, PdfAttachment};
use chancery_store::{MessageKind, NewMessage};
use sha2::{Digest, Sha256};

/// Of the hash of a recipient, enough to tell the recipients of one event apart.
const RECIPIENT_BYTES: usize = 8;

#[derive(serde::Serialize, serde::Deserialize)]
struct EmailPayload {
    subject: String,
    text: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reply_to: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attachment: Option<AttachmentPayload>,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct AttachmentPayload {
    file_name: String,
    /// In base64.
    pdf: String,
}

/// A message for the outbox. It is not sent after `expires_at`.
pub(crate) fn email_message(
    email: Email,
    event_id: String,
    created_at: UnixMillis,
    expires_at: UnixMillis,
) -> NewMessage {
    message_with(email, EmailExtras::default(), event_id, created_at, expires_at)
}

fn message_with(
    email: Email,
    extras: EmailExtras,
    event_id: String,
    created_at: UnixMillis,
    expires_at: UnixMillis,
) -> NewMessage {
    let Email { to, subject, text } = email;
    let EmailExtras { reply_to, attachment } = extras;
    let attachment = attachment
        .map(|PdfAttachment { file_name, pdf }| AttachmentPayload { file_name, pdf: STANDARD.encode(pdf) });
    let reply_to = reply_to.map(|reply_to| reply_to.as_str().to_owned());
    let payload = serde_json::json!(EmailPayload { subject, text, reply_to, attachment }).to_string();
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

/// The same for an email with an address for replies or a PDF. It is sent again for as long as other emails to people.
pub fn new_letter_message(
    email: Email,
    extras: EmailExtras,
    now: UnixMillis,
    randomness: &dyn Randomness,
) -> NewMessage {
    message_with(email, extras, random_email_id(randomness), now, now.after(PEOPLE_EMAIL_LIFETIME))
}

/// The same at every attempt, and different for each recipient.
pub(crate) fn message_id(message: &NewMessage) -> String {
    let recipient = Sha256::digest(message.destination.as_bytes());
    let recipient: String =
        recipient.iter().take(RECIPIENT_BYTES).map(|byte| format!("{byte:02x}")).collect();
    format!("{}.{recipient}", message.event_id)
}

/// `None` for a message that is not an email.
pub(crate) fn parse_email(message: &NewMessage) -> Option<(Email, EmailExtras)> {
    let EmailPayload { subject, text, reply_to, attachment } = serde_json::from_str(&message.payload).ok()?;
    let attachment = match attachment {
        None => None,
        Some(AttachmentPayload { file_name, pdf }) => {
            Some(PdfAttachment { file_name, pdf: STANDARD.decode(pdf).ok()? })
        }
    };
    let reply_to = match reply_to {
        None => None,
        Some(reply_to) => Some(reply_to.parse().ok()?),
    };
    let email = Email { to: message.destination.parse().ok()?, subject, text };
    Some((email, EmailExtras { reply_to, attachment }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::OsRandomness;

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
        let (parsed, extras) = parse_email(&message).unwrap();
        assert_eq!((parsed.to, parsed.subject, parsed.text), (email.to, email.subject, email.text));
        assert_eq!(extras, EmailExtras::default());
    }

    #[test]
    fn reply_address_and_pdf_survive_the_outbox_unchanged() {
        let to = "ann@example.com".parse().unwrap();
        let email = Email { to, subject: "Your lease".to_owned(), text: "Dear Ann\n".to_owned() };
        let extras = EmailExtras {
            reply_to: Some("maya@example.com".parse().unwrap()),
            attachment: Some(PdfAttachment { file_name: "letter.pdf".to_owned(), pdf: vec![0, 255, 10, 13] }),
        };
        let message = new_letter_message(email, extras.clone(), UnixMillis(1), &OsRandomness);
        assert!(!message.payload.contains('\0') && message.expires_at > message.created_at);
        assert_eq!(parse_email(&message).unwrap().1, extras);
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
