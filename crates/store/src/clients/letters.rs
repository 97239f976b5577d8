//! Letters that leave the firm: reads one letter with its client, and sends it by email.
//!
//! 1. The sender saw a version of the letter and an address of the client. If either has changed, nothing is sent.
//! 2. One transaction counts the letter against the sender's quota, marks it as sent, records the recipient, and puts the email
//!    into the outbox, next to the decision in the audit log. So a letter is sent once, however often it is submitted.
//! 3. A sent letter cannot be changed (`edit_entry`, and triggers on both databases).

use crate::clients::entries::{find_entry, save_entry};
use crate::clients::locks::lock_for_change;
use crate::clients::reads::view_client;
use crate::clients::records::Clients;
use crate::clients::rows::StoredClient;
use crate::clients::types::{LetterEmail, LetterOutcome, OpenedLetter};
use crate::clients::unsaved_rows::{FormOfPerson, UnsavedForm, find_unsaved_text};
use crate::db::{QueryError, Tx, query};
use crate::outbox::messages::enqueue;
use crate::throttles::counts as throttles;
use crate::{ClientError, NewMessage};
use chancery_domain::{Entry, EntryId, EntryKind, LetterHeading, ThrottleDecision, ThrottleKey};
use chancery_policy::{AuthzAction, EditClient, Permit, ReadClient};

const RECORD_SENT: &str = "INSERT INTO sent_letters (entry_id, sent_at_ms, sent_by, sent_to, subject, firm_name, \
    letterhead, recipient, printed_date, event_id) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";

const IS_SENT: &str = "SELECT COUNT(*) FROM sent_letters WHERE entry_id = $1";

/// Whether the entry is a letter that was sent by email. Reads nothing else of it.
pub(crate) fn is_sent(tx: &mut Tx<'_>, entry: EntryId) -> Result<bool, QueryError> {
    let found: i64 = query(IS_SENT).bind(entry.0).fetch_one(tx)?;
    Ok(found > 0)
}

/// The letter, and counts a view of the client. `None` if the client has no such letter.
fn read<A: AuthzAction>(
    tx: &mut Tx<'_>,
    permit: &Permit<A>,
    letter: EntryId,
) -> Result<Option<OpenedLetter>, ClientError> {
    let Some(StoredClient { client, .. }) = view_client(tx, permit)? else { return Ok(None) };
    let entry = find_entry(tx, client.id, letter)?;
    let Some(letter) = entry.filter(|entry| entry.kind == EntryKind::DraftLetter) else {
        return Ok(None);
    };
    let has_unsaved_text = match permit.by().person() {
        Some(person) if letter.sent.is_none() => {
            let form = UnsavedForm::Entry(letter.id);
            find_unsaved_text(tx, FormOfPerson { person, client: client.id, form })?.is_some()
        }
        _ => false,
    };
    Ok(Some(OpenedLetter { client, letter, has_unsaved_text }))
}

fn send(
    tx: &mut Tx<'_>,
    permit: &Permit<EditClient>,
    email: &LetterEmail,
) -> Result<LetterOutcome, ClientError> {
    let Some(found) = lock_for_change(tx, permit)? else { return Ok(LetterOutcome::NotFound) };
    let Some(sender) = permit.by().person() else { return Ok(LetterOutcome::NotFound) };
    let entry = find_entry(tx, found.client.id, email.letter)?;
    let letter = entry.filter(|entry| entry.kind == EntryKind::DraftLetter && entry.archived_at.is_none());
    let Some(letter) = letter else { return Ok(LetterOutcome::NotFound) };
    if letter.sent.is_some() {
        return Ok(LetterOutcome::AlreadySent);
    }
    if letter.version != email.version {
        return Ok(LetterOutcome::LetterChanged);
    }
    if found.client.details.email != email.to {
        return Ok(LetterOutcome::RecipientChanged);
    }
    let now = permit.access_request().at;
    let counted = throttles::count(tx, ThrottleKey::LetterPerPersonAndDay(sender), now)?;
    if let ThrottleDecision::Denied(count) = counted {
        return Ok(LetterOutcome::QuotaExceeded { until: count.expires_at });
    }
    let NewMessage { event_id, .. } = &email.message;
    let LetterHeading { firm_name, letterhead, recipient, date } = &email.heading;
    let record = query(RECORD_SENT)
        .bind(letter.id.0)
        .bind(now.0)
        .bind(sender.0)
        .bind(email.to.as_str())
        .bind(email.subject.as_str())
        .bind(firm_name.as_str())
        .bind(letterhead.as_str())
        .bind(recipient.as_str())
        .bind(date.as_str())
        .bind(event_id.as_str());
    // The entry is saved first: once the letter is on record as sent, it cannot be changed.
    let sent = Entry { is_open: false, ..letter.clone() };
    save_entry(tx, permit.access_request(), &letter, sent)?;
    record.execute(tx)?;
    enqueue(tx, std::slice::from_ref(&email.message))?;
    Ok(LetterOutcome::Sent)
}

impl Clients {
    /// The letter with its client, to show or print it. `None` if the client has no such letter.
    pub async fn read_letter(
        &self,
        permit: Permit<ReadClient>,
        letter: EntryId,
    ) -> Result<Option<OpenedLetter>, ClientError> {
        self.audited.run(vec![permit.to_audit_row()], move |tx| read(tx, &permit, letter)).await
    }

    /// The same before it is sent or copied, for which the person must be allowed to edit the record.
    pub async fn read_letter_for_change(
        &self,
        permit: Permit<EditClient>,
        letter: EntryId,
    ) -> Result<Option<OpenedLetter>, ClientError> {
        self.audited.run(vec![permit.to_audit_row()], move |tx| read(tx, &permit, letter)).await
    }

    /// Marks the letter as sent and puts its email into the outbox. Wake the outbox's worker after `Sent`.
    pub async fn send_letter(
        &self,
        permit: Permit<EditClient>,
        email: &LetterEmail,
    ) -> Result<LetterOutcome, ClientError> {
        let email = email.clone();
        self.audited.run(vec![permit.to_audit_row()], move |tx| send(tx, &permit, &email)).await
    }
}
