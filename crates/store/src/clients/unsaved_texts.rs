//! Unsaved text of a record's forms, per person. It takes the permit to edit the record, on every call.
//!
//! 1. Opening a form records its session (`open_form`) and returns the person's unsaved text.
//! 2. The form is stored again and again while the person types (`save_unsaved_text`). The decision is recorded with the
//!    first text of a form, and when text is given back, not every few seconds.
//! 3. Text that arrives after the session ended replaces that of the form that the session opened
//!    (`save_text_of_ended_session`). Only the same person gets it, after signing in, with a permit.
//! 4. Saving the form deletes it (`records`), and so does discarding it.

use crate::clients::entries::has_entry;
use crate::clients::letters::is_sent;
use crate::clients::locks::lock_for_reading;
use crate::clients::records::Clients;
use crate::clients::rows::StoredClient;
use crate::clients::unsaved_rows::{
    FormOfPerson, NewUnsavedText, UnsavedForm, UnsavedText, delete_expired, delete_unsaved_text,
    find_opened_by_session, find_unsaved_text, put_unsaved_text, save_after_session, set_form_session,
};
use crate::db::{COMMAND_RETRY_LIMIT, Tx};
use crate::{ClientError, DbError};
use chancery_domain::{ClientId, PersonId, TokenHash, UnixMillis};
use chancery_policy::{EditClient, Permit};

/// The form of the permit's person. `None` if there is no such client or entry, or the principal is not a person.
fn form_of_person(
    tx: &mut Tx<'_>,
    permit: &Permit<EditClient>,
    form: UnsavedForm,
) -> Result<Option<FormOfPerson>, ClientError> {
    let Some(StoredClient { client, .. }) = lock_for_reading(tx, permit)? else { return Ok(None) };
    let client = client.id;
    if let UnsavedForm::Entry(entry) = form
        && !has_entry(tx, client, entry)?
    {
        return Ok(None);
    }
    Ok(permit.by().person().map(|person| FormOfPerson { person, client, form }))
}

impl Clients {
    /// The person's unsaved text of this form, if any.
    pub async fn open_form(
        &self,
        permit: Permit<EditClient>,
        form: UnsavedForm,
        session: TokenHash,
    ) -> Result<Option<UnsavedText>, ClientError> {
        self.audited
            .run_as(vec![permit.by()], move |tx| {
                let Some(of) = form_of_person(tx, &permit, form)? else {
                    return Ok((None, Vec::new()));
                };
                let Some(text) = find_unsaved_text(tx, of)? else {
                    put_unsaved_text(tx, of, session, "", permit.access_request().at)?;
                    return Ok((None, Vec::new()));
                };
                set_form_session(tx, of, session, permit.access_request().at)?;
                Ok((Some(text), vec![permit.to_audit_row()]))
            })
            .await
    }

    /// False if there is no such client or entry. Fails with `LetterSent` for a letter that was sent by email.
    pub async fn save_unsaved_text(
        &self,
        permit: Permit<EditClient>,
        text: NewUnsavedText<'_>,
    ) -> Result<bool, ClientError> {
        let NewUnsavedText { form, session, fields } = text;
        let fields = fields.to_owned();
        self.audited
            .run_as(vec![permit.by()], move |tx| {
                let decision = vec![permit.to_audit_row()];
                let Some(of) = form_of_person(tx, &permit, form)? else {
                    return Ok((false, decision));
                };
                if let UnsavedForm::Entry(letter) = of.form
                    && is_sent(tx, letter)?
                {
                    return Err(ClientError::LetterSent { client: of.client, letter });
                }
                let is_first = find_unsaved_text(tx, of)?.is_none();
                let at = permit.access_request().at;
                put_unsaved_text(tx, of, session, &fields, at)?;
                Ok((true, if is_first { decision } else { Vec::new() }))
            })
            .await
    }

    /// False if there is no such client or entry.
    pub async fn discard_unsaved_text(
        &self,
        permit: Permit<EditClient>,
        form: UnsavedForm,
    ) -> Result<bool, ClientError> {
        self.audited
            .run(vec![permit.to_audit_row()], move |tx| {
                let Some(of) = form_of_person(tx, &permit, form)? else { return Ok(false) };
                delete_unsaved_text(tx, of)?;
                Ok(true)
            })
            .await
    }

    /// Stores text that a browser sent after its session ended, for the person who had opened the form in that session.
    /// False if that session had not opened this form lately, or for someone else. Nobody is signed in, so nothing is
    /// given back.
    pub async fn save_text_of_ended_session(
        &self,
        person: PersonId,
        client: ClientId,
        text: NewUnsavedText<'_>,
        now: UnixMillis,
    ) -> Result<bool, DbError> {
        let NewUnsavedText { form, session, fields } = text;
        let of = FormOfPerson { person, client, form };
        // Anyone can send such a request, so most of them must not take the write lock.
        let found: Option<i64> = self.db.fetch_optional(find_opened_by_session(of, session, now)).await?;
        if found.is_none() {
            return Ok(false);
        }
        let save = save_after_session(of, session, fields, now);
        Ok(self.db.execute(save, COMMAND_RETRY_LIMIT).await? > 0)
    }

    /// Deletes up to `limit` old texts and returns how many.
    pub async fn delete_expired_unsaved_texts(&self, now: UnixMillis, limit: u32) -> Result<u64, DbError> {
        Ok(self.db.execute(delete_expired(now, limit), COMMAND_RETRY_LIMIT).await?)
    }
}
