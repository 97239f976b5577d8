//! The form that sends a letter: what it would send, and what was typed.

use super::document::LetterSheet;
use crate::error::{PageError, letter_not_found};
use crate::frame::{Frame, Section};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;
use chancery_domain::{Client, ClientId, EmailSubject, Entry, EntryId, Throttle, Version};
use chancery_mail::Recipient;
use chancery_policy::EditClient;
use chancery_store::OpenedLetter;
use chancery_web::{Notice, Problems, page};
use serde::Deserialize;

/// Submitted values.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SendInput {
    /// The version that the page showed.
    pub(super) version: String,
    /// The address that the page showed. The letter goes to the client's address, and only if it is still this one.
    pub(super) to: String,
    pub(super) subject: String,
}

impl SendInput {
    pub(super) fn read_version(&self) -> Option<Version> {
        self.version.parse().ok().map(Version)
    }

    pub(super) fn read_subject(&self) -> Result<EmailSubject, Problems> {
        let mut problems = Problems::default();
        let subject = problems.parse("subject", &self.subject, "Enter a subject");
        subject.ok_or(problems)
    }
}

#[derive(Template)]
#[template(path = "letters/send.html")]
struct SendPage<'a> {
    frame: Frame<'a>,
    client: ClientId,
    client_name: String,
    letter: EntryId,
    sheet: LetterSheet,
    /// The client's address, or why there is none to send to.
    recipient: Result<String, &'static str>,
    reply_to: String,
    version: Version,
    subject: String,
    daily_quota: u32,
    problems: Problems,
    notice: Option<Notice>,
    /// In a demo, where its email can be read.
    mail_page_url: Option<&'a str>,
}

/// The letter with its client, for a step for which the policy must allow to edit the record.
pub(super) async fn read_for_change(
    portal: &Portal,
    signed_in: &SignedIn,
    client: ClientId,
    letter: EntryId,
) -> Result<OpenedLetter, PageError> {
    let read = |permit| portal.store.clients.read_letter_for_change(permit, letter);
    let found = portal.with_client_permit::<EditClient, _, _>(signed_in, client, read).await?;
    Ok(found.ok_or_else(|| letter_not_found(client))?)
}

/// The client's recorded address, or why no email can be sent to it.
pub(super) fn recipient(client: &Client) -> Result<Recipient, &'static str> {
    match client.details.email.as_str() {
        "" => Err("This client has no email address. Add one to the client’s details."),
        address => address.parse().map_err(
            |_| "No email can be sent to this client’s address. Correct it in the client’s details.",
        ),
    }
}

/// How to show the page.
pub(super) struct SendPageState {
    pub(super) subject: String,
    pub(super) problems: Problems,
    pub(super) notice: Option<Notice>,
    pub(super) status: StatusCode,
}

/// Shows what would be sent, which the sender confirms.
pub(super) fn show(
    portal: &Portal,
    signed_in: &SignedIn,
    (client, letter): (&Client, &Entry),
    state: SendPageState,
) -> Result<Response, PageError> {
    let local = signed_in.local_time(portal);
    let SendPageState { subject, problems, notice, status } = state;
    let shown = SendPage {
        frame: Frame::new(portal, signed_in, Section::Clients),
        client: client.id,
        client_name: client.name.to_string(),
        letter: letter.id,
        sheet: LetterSheet::new(portal, client, letter, &local),
        recipient: recipient(client).map(|to| to.as_str().to_owned()),
        reply_to: signed_in.person.email.to_string(),
        version: letter.version,
        subject,
        daily_quota: Throttle::LETTER_PER_PERSON_AND_DAY.limit,
        problems,
        notice,
        mail_page_url: portal.mailer.mail_page_url(),
    };
    Ok(page(status, &shown)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subject_is_one_visible_line() {
        let read =
            |subject: &str| SendInput { subject: subject.to_owned(), ..SendInput::default() }.read_subject();
        assert_eq!(read(" Your lease ").unwrap().as_str(), "Your lease");
        for subject in ["", "x\r\nBcc: eve@evil.example", "x\nBcc: y", "x\u{0}y", "x\u{202e}y"] {
            assert!(read(subject).unwrap_err().of("subject").is_some(), "{subject:?}");
        }
    }
}
