//! `POST /clients/{id}/entries/{entry}`: changes an entry. What it said before is kept as a version.

use super::conflict::{Conflict, FieldInConflict};
use super::done::Done;
use super::entry_form::{EntryForm, EntryTyped};
use super::entry_view::kind_words;
use super::record::{self, Open, Showing};
use super::record_query::{RecordQuery, Tab, View};
use crate::error::{PageError, no_such_entry};
use crate::path::EntryNumber;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::when::{Moment, in_utc};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{ClientId, Entry, EntryId, EntryKind, Version};
use chancery_policy::{EditClient, ReadClient};
use chancery_store::{Changed, EntryChange, EntryVersion, VersionsWanted};
use chancery_web::{ErrorPage, Notice, Posted};
use std::sync::Arc;

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    EntryNumber { client, entry }: EntryNumber,
    Posted(typed): Posted<EntryTyped>,
) -> Result<Response, PageError> {
    let unclear =
        || ErrorPage::bad_form("`version` does not say which version of the entry was on the page.");
    let version = Version(typed.version.parse().map_err(|_| unclear())?);
    // What kind it is, the store knows; a form that does not say it may speak of what can be open.
    let kind = typed.kind.parse().unwrap_or(EntryKind::DraftLetter);
    let read = match typed.read(kind, portal.clock.now()) {
        Ok(read) => read,
        Err(problems) => {
            portal.ensure_allowed_on_client::<EditClient>(&who, client).await?;
            let saved = record::saved_entry(&portal, &who, client, entry).await?;
            let is_archived = saved.archived_at.is_some();
            let form =
                EntryForm { problems, is_archived, ..EntryForm::typed(saved.kind, Some(entry), typed) };
            let (view, status) = (View::default(), StatusCode::UNPROCESSABLE_ENTITY);
            let showing = Showing { view, open: Open::Entry(form), notice: None, status };
            return record::show(&portal, &who, client, showing).await;
        }
    };
    let is_at_said = !typed.at.trim().is_empty();
    let change = EntryChange {
        entry,
        version,
        title: read.title,
        text: read.text,
        at: is_at_said.then_some(read.at),
        is_open: read.is_open,
    };
    let edit = |permit| portal.store.clients.edit_entry(permit, change.clone());
    match portal.with_client_permit::<EditClient, _, _>(&who, client, edit).await? {
        Changed::Saved(saved) => {
            let saved = match saved.archived_at.is_some() && typed.restore.is_some() {
                true => restored(&portal, &who, client, entry).await?,
                false => saved,
            };
            // To where it is to be seen.
            let tab = if saved.archived_at.is_some() { Tab::Archived } else { Tab::default() };
            let view = View { tab, older: None };
            let query = RecordQuery { view, open: None, done: Some(Done::EntrySaved) };
            Ok(Redirect::to(&format!("{}#entry-{entry}", query.href(client))).into_response())
        }
        Changed::Conflict(theirs) => in_conflict(&portal, &who, client, typed, version, theirs).await,
        Changed::Gone => Err(no_such_entry(client).into()),
    }
}

async fn restored(
    portal: &Portal,
    who: &SignedIn,
    client: ClientId,
    entry: EntryId,
) -> Result<Entry, PageError> {
    let restore = |permit| portal.store.clients.set_entry_archived(permit, entry, false);
    match portal.with_client_permit::<EditClient, _, _>(who, client, restore).await? {
        Changed::Saved(entry) | Changed::Conflict(entry) => Ok(entry),
        Changed::Gone => Err(no_such_entry(client).into()),
    }
}

/// What was done to an entry since somebody opened it.
fn deeds_between(base: Option<&EntryVersion>, now: &Entry, what: &str) -> Vec<String> {
    let mut deeds = Vec::new();
    if let Some(base) = base {
        let (was, is) =
            ((&base.title, &base.text, base.at, base.is_open), (&now.title, &now.text, now.at, now.is_open));
        if was != is {
            deeds.push(format!("saved this {what}"));
        }
        match (base.is_archived, now.archived_at.is_some()) {
            (false, true) => deeds.push(format!("archived this {what}")),
            (true, false) => deeds.push(format!("took this {what} out of the archive")),
            _ => {}
        }
    }
    if deeds.is_empty() {
        deeds.push(format!("saved this {what}"));
    }
    deeds
}

/// Yours and theirs, side by side. Yours is still in the form, which now saves over theirs.
async fn in_conflict(
    portal: &Portal,
    who: &SignedIn,
    client: ClientId,
    typed: EntryTyped,
    seen: Version,
    theirs: Entry,
) -> Result<Response, PageError> {
    let wanted = VersionsWanted::NowAnd(seen);
    let read = |permit| portal.store.clients.entry_versions(permit, theirs.id, wanted);
    let found = portal.with_client_permit::<ReadClient, _, _>(who, client, read).await?;
    let (theirs, versions) = found.ok_or_else(|| no_such_entry(client))?;
    let base = versions.iter().find(|version| version.version == seen);
    let newest = versions.iter().find(|version| version.version == theirs.version);
    let words = kind_words(theirs.kind);
    let state = |is_open: bool| if is_open { "Yes" } else { "No" };

    // A form that does not say when leaves it as it is.
    let yours_at = match typed.at.trim() {
        "" => in_utc(theirs.at),
        at => format!("{} UTC", at.replacen('T', " ", 1)),
    };
    let mut fields = vec![
        FieldInConflict::new(
            "Title",
            &typed.title,
            theirs.title.as_str(),
            base.map(|base| base.title.as_str()),
        ),
        FieldInConflict::new(
            words.text_label,
            &typed.text,
            theirs.text.as_str(),
            base.map(|base| base.text.as_str()),
        ),
        FieldInConflict::new(
            "When it happened",
            &yours_at,
            &in_utc(theirs.at),
            base.map(|base| in_utc(base.at)).as_deref(),
        ),
    ];
    if theirs.kind.can_be_open() {
        let yours = state(typed.is_open.is_some());
        let base = base.map(|base| state(base.is_open));
        fields.push(FieldInConflict::new(words.open_label, yours, state(theirs.is_open), base));
    }
    let conflict = Conflict {
        by: newest.and_then(|newest| newest.by.as_ref()).map(|person| person.email.to_string()),
        at: newest.map(|newest| Moment::new(newest.changed_at, portal.clock.now())),
        version: theirs.version.0,
        fields,
    };
    let mut told = conflict.meanwhile(seen, &deeds_between(base, &theirs, words.lower));
    told.push_str(" Yours is kept below; compare before you save.");
    let is_archived = theirs.archived_at.is_some();
    if is_archived {
        told.push_str(" It is archived now; the box below your text takes it out when you save.");
    }
    // Whoever did not know that it was archived does not mean to write into the archive.
    let restores = is_archived && (typed.restore.is_some() || base.is_none_or(|base| !base.is_archived));
    let form = EntryForm {
        version: Some(theirs.version),
        conflict: Some(conflict),
        is_archived,
        restores,
        ..EntryForm::typed(theirs.kind, Some(theirs.id), typed)
    };
    let notice = Some(Notice::warning("Changed meanwhile.", told));
    let (view, status) = (View::default(), StatusCode::CONFLICT);
    record::show(portal, who, client, Showing { view, open: Open::Entry(form), notice, status }).await
}
