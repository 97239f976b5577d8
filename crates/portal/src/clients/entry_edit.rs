//! `POST /clients/{id}/entries/{entry}`: changes an entry. The previous text is stored as a version.

use super::conflict::{CONTINUE_EDITING, Conflict, ConflictField};
use super::done::CompletedChange;
use super::entry_form::{EntryForm, EntryInput, amount_field, day_field};
use super::entry_view::entry_kind_labels;
use super::record::{self, OpenForm, RecordPageState};
use super::record_query::{RecordQuery, Tab, TimelineView, entry_href};
use super::undo::Undo;
use super::unsaved::record_form::RecordForm;
use crate::error::{PageError, entry_not_found};
use crate::path::EntryNumber;
use crate::person_names::PersonNames;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::time_format::{DisplayTime, comparable_time};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{ClientId, Entry, EntryId, EntryKind, Version};
use chancery_policy::{EditClient, ReadClient};
use chancery_store::{ArchiveChange, EntryChange, EntryVersion, SaveOutcome, VersionQuery};
use chancery_web::{ErrorPage, Notice, PostedForm};
use std::sync::Arc;

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    EntryNumber { client, entry }: EntryNumber,
    RecordForm { signed_in, body: PostedForm(typed), previous_texts, .. }: RecordForm<PostedForm<EntryInput>>,
) -> Result<Response, PageError> {
    let typed = EntryInput { previous_texts, ..typed };
    let invalid_version = || {
        ErrorPage::invalid_form(
            "`version` is missing or not a number. Reload the record and edit the entry again.",
        )
    };
    let version = Version(typed.version.parse().map_err(|_| invalid_version())?);
    // The store knows the kind. For a form without it, assume one that can be open, so that `is_open` is not lost.
    let kind = typed.kind.parse().unwrap_or(EntryKind::DraftLetter);
    if typed.resolve == CONTINUE_EDITING {
        portal.ensure_allowed_on_client::<EditClient>(&signed_in, client).await?;
        let saved = record::saved_entry(&portal, &signed_in, client, entry).await?;
        return show_conflict(&portal, &signed_in, client, typed, version, saved).await;
    }
    let currency = portal.settings.invoice_terms.currency;
    let read = match typed.read(kind, portal.clock.now(), &signed_in.local_time(&portal), currency) {
        Ok(read) => read,
        Err(problems) => {
            portal.ensure_allowed_on_client::<EditClient>(&signed_in, client).await?;
            let saved = record::saved_entry(&portal, &signed_in, client, entry).await?;
            let is_archived = saved.archived_at.is_some();
            let form =
                EntryForm { problems, is_archived, ..EntryForm::typed(saved.kind, Some(entry), typed) };
            let (view, status) = (TimelineView::default(), StatusCode::UNPROCESSABLE_ENTITY);
            let state = RecordPageState { view, open: OpenForm::Entry(form), notice: None, status };
            return record::show(&portal, &signed_in, client, state).await;
        }
    };
    let has_date = !typed.at.trim().is_empty();
    let change = EntryChange {
        entry,
        version,
        title: read.title,
        text: read.text,
        at: has_date.then_some(read.at),
        is_open: read.is_open,
        dispute: read.dispute,
    };
    let edit = |permit| portal.store.clients.edit_entry(permit, change.clone());
    match portal.with_client_permit::<EditClient, _, _>(&signed_in, client, edit).await? {
        SaveOutcome::Saved(saved) => {
            let saved = match saved.archived_at.is_some() && typed.restore.is_some() {
                true => restore_entry_now(&portal, &signed_in, client, entry).await?,
                false => saved,
            };
            // Show the tab that contains the entry.
            let tab = if saved.archived_at.is_some() { Tab::Archived } else { Tab::default() };
            let view = TimelineView { tab, ..TimelineView::default() };
            // Saving without a change makes no version, and saving with a restore makes two.
            let undo = (saved.version == version.next()).then(|| Undo::of_subject(saved.version, entry.0));
            let query = RecordQuery { view, undo, ..RecordQuery::default() };
            Ok(Redirect::to(&entry_href(client, query, CompletedChange::EntrySaved, entry)).into_response())
        }
        SaveOutcome::Conflict(current) => {
            show_conflict(&portal, &signed_in, client, typed, version, current).await
        }
        SaveOutcome::NotFound => Err(entry_not_found(client).into()),
    }
}

async fn restore_entry_now(
    portal: &Portal,
    signed_in: &SignedIn,
    client: ClientId,
    entry: EntryId,
) -> Result<Entry, PageError> {
    let restore = |permit| portal.store.clients.set_entry_archived(permit, entry, ArchiveChange::RESTORE);
    match portal.with_client_permit::<EditClient, _, _>(signed_in, client, restore).await? {
        SaveOutcome::Saved(entry) | SaveOutcome::Conflict(entry) => Ok(entry),
        SaveOutcome::NotFound => Err(entry_not_found(client).into()),
    }
}

/// The changes to an entry since the user opened it.
fn changes_since(base: Option<&EntryVersion>, now: &Entry, what: &str) -> Vec<String> {
    let mut changes = Vec::new();
    if let Some(base) = base {
        let was = (&base.title, &base.text, base.at, base.is_open, base.dispute);
        if was != (&now.title, &now.text, now.at, now.is_open, now.dispute) {
            changes.push(format!("saved this {what}"));
        }
        match (base.is_archived, now.archived_at.is_some()) {
            (false, true) => changes.push(format!("archived this {what}")),
            (true, false) => changes.push(format!("restored this {what}")),
            _ => {}
        }
    }
    if changes.is_empty() {
        changes.push(format!("saved this {what}"));
    }
    changes
}

/// Shows how both versions differ. The user's text stays in the form, which is based on the other version now.
async fn show_conflict(
    portal: &Portal,
    signed_in: &SignedIn,
    client: ClientId,
    typed: EntryInput,
    base_version: Version,
    current: Entry,
) -> Result<Response, PageError> {
    let query = VersionQuery::CurrentAnd(base_version);
    let read = |permit| portal.store.clients.entry_versions(permit, current.id, query);
    let found = portal.with_client_permit::<ReadClient, _, _>(signed_in, client, read).await?;
    let (current, versions) = found.ok_or_else(|| entry_not_found(client))?;
    let base = versions.iter().find(|version| version.version == base_version);
    let newest = versions.iter().find(|version| version.version == current.version);
    let labels = entry_kind_labels(current.kind);
    let state = |is_open: bool| if is_open { "Yes" } else { "No" };

    let (names, local) = (PersonNames::read(portal).await?, signed_in.local_time(portal));
    // A form without a time leaves it unchanged.
    let yours_at = match typed.parse_time(current.at, &local) {
        Some(at) => comparable_time(at, &local),
        None => typed.at.clone(),
    };
    let mut fields = vec![
        ConflictField::new(
            "Title",
            &typed.title,
            current.title.as_str(),
            base.map(|base| base.title.as_str()),
        ),
        ConflictField::new(
            labels.text_label,
            &typed.text,
            current.text.as_str(),
            base.map(|base| base.text.as_str()),
        ),
        ConflictField::new(
            "Date",
            &yours_at,
            &comparable_time(current.at, &local),
            base.map(|base| comparable_time(base.at, &local)).as_deref(),
        ),
    ];
    if current.kind.can_be_open() {
        let yours = state(typed.is_open());
        let base = base.map(|base| state(base.is_open));
        fields.push(ConflictField::new(labels.open_label, yours, state(current.is_open), base));
    }
    if current.kind == EntryKind::BillingDispute {
        let currency = portal.settings.invoice_terms.currency;
        let base = base.map(|base| base.dispute);
        fields.push(ConflictField::new(
            "Amount",
            typed.amount.as_deref().unwrap_or_default(),
            &amount_field(current.dispute.amount, currency),
            base.map(|base| amount_field(base.amount, currency)).as_deref(),
        ));
        fields.push(ConflictField::new(
            "Due",
            typed.due.as_deref().unwrap_or_default(),
            &day_field(current.dispute.due),
            base.map(|base| day_field(base.due)).as_deref(),
        ));
    }
    let is_merging = typed.resolve == CONTINUE_EDITING && current.version == base_version;
    let author = newest.and_then(|newest| newest.by.as_ref());
    let conflict = Conflict {
        by: author.map(|person| names.text(person.id, &person.email)),
        is_own: author.is_some_and(|person| person.id == signed_in.person.id),
        at: newest.map(|newest| DisplayTime::new(newest.changed_at, &local)),
        version: current.version.0,
        is_merging,
        fields,
    };
    let headline = conflict.headline();
    let mut text = conflict.notice_text(base_version, &changes_since(base, &current, labels.lower));
    let is_archived = current.archived_at.is_some();
    if is_archived {
        text.push_str(" It is archived now. Select “Restore from archive” to restore it when you save.");
    }
    // A user who did not know that the entry was archived does not mean to edit the archive.
    let restore_checked =
        is_archived && (typed.restore.is_some() || base.is_none_or(|base| !base.is_archived));
    let form = EntryForm {
        version: Some(current.version),
        conflict: Some(conflict),
        is_archived,
        restore_checked,
        ..EntryForm::typed(current.kind, Some(current.id), typed)
    };
    let (notice, status) = match is_merging {
        true => (Notice::warning("Not saved yet.", text), StatusCode::OK),
        false => (Notice::warning(headline, text), StatusCode::CONFLICT),
    };
    let (view, notice) = (TimelineView::default(), Some(notice));
    record::show(
        portal,
        signed_in,
        client,
        RecordPageState { view, open: OpenForm::Entry(form), notice, status },
    )
    .await
}
