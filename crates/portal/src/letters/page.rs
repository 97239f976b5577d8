//! `GET /clients/{id}/letters/{entry}`: a letter on the firm's letterhead, to print, copy, send or copy as a new draft.

use super::document::LetterSheet;
use crate::authz::capabilities::ClientCapabilities;
use crate::clients::entry_view::SentView;
use crate::error::{PageError, letter_not_found};
use crate::frame::{Frame, Section};
use crate::path::EntryNumber;
use crate::person_names::PersonNames;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use askama::Template;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use chancery_domain::{ClientId, EntryId};
use chancery_policy::ReadClient;
use chancery_store::OpenedLetter;
use chancery_web::{Notice, page};
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Template)]
#[template(path = "letters/letter.html")]
struct LetterPage<'a> {
    frame: Frame<'a>,
    client: ClientId,
    client_name: String,
    letter: EntryId,
    sheet: LetterSheet,
    /// The letter's text as it was typed, to copy it.
    text: String,
    is_draft: bool,
    is_archived: bool,
    sent: Option<SentView>,
    can: ClientCapabilities,
    notice: Option<Notice>,
}

impl LetterPage<'_> {
    fn can_send(&self) -> bool {
        self.can.edit && self.sent.is_none() && !self.is_archived
    }
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    EntryNumber { client, entry }: EntryNumber,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Response, PageError> {
    let OpenedLetter { client, letter, has_unsaved_text } = read(&portal, &signed_in, client, entry).await?;
    let (names, local) = (PersonNames::read(&portal).await?, signed_in.local_time(&portal));
    let sent = letter.sent.as_ref().map(|sent| SentView::new(sent, &names, &local));
    let is_undelivered = sent.is_some() && portal.store.outbox.is_letter_undelivered(letter.id).await?;
    let notice = match (query.get("done").map(String::as_str), &sent) {
        (_, Some(sent)) if is_undelivered => {
            let text = format!(
                "The mail server did not accept the email to {}. Check the address, then copy the letter as a new draft \
                 and send that.",
                sent.to
            );
            Some(Notice::warning("Not delivered.", text))
        }
        (Some("sent"), Some(sent)) => {
            Some(Notice::success("Letter sent.", format!("It is on its way to {}.", sent.to)))
        }
        (Some("already-sent"), Some(_)) => {
            Some(Notice::warning("Already sent.", "This letter was sent before. It was not sent again."))
        }
        _ => has_unsaved_text.then(|| unsaved_changes(client.id, letter.id)),
    };
    let shown = LetterPage {
        frame: Frame::new(&portal, &signed_in, Section::Clients),
        client: client.id,
        client_name: client.name.to_string(),
        letter: letter.id,
        sheet: LetterSheet::new(&portal, &client, &letter, &local),
        text: letter.text.to_string(),
        is_draft: letter.is_open,
        is_archived: letter.archived_at.is_some(),
        sent,
        can: ClientCapabilities::of(&portal.policy, signed_in.principal(), &client),
        notice,
    };
    Ok(page(StatusCode::OK, &shown)?)
}

/// The letter with its client, which the policy must allow to read.
pub(super) async fn read(
    portal: &Portal,
    signed_in: &SignedIn,
    client: ClientId,
    letter: EntryId,
) -> Result<OpenedLetter, PageError> {
    let read = |permit| portal.store.clients.read_letter(permit, letter);
    let found = portal.with_client_permit::<ReadClient, _, _>(signed_in, client, read).await?;
    Ok(found.ok_or_else(|| letter_not_found(client))?)
}

/// For a person who typed changes of the letter and has not saved them.
pub(super) fn unsaved_changes(client: ClientId, letter: EntryId) -> Notice {
    let text = "The letter below is the saved version, without them.";
    let mut notice = Notice::warning("You have unsaved changes.", text);
    let edit = format!("/clients/{client}?open=entry-{letter}#entry-{letter}");
    notice.link = Some((edit, "Continue editing"));
    notice
}

/// The URL of a letter's page.
pub(super) fn href(client: ClientId, letter: EntryId) -> String {
    format!("/clients/{client}/letters/{letter}")
}
