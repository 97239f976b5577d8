//! `POST /clients/{id}`: changes a client's name and details. The previous values are stored as a version.

use super::conflict::{CONTINUE_EDITING, Conflict, ConflictField};
use super::details_form::{DetailsForm, DetailsInput};
use super::done::CompletedChange;
use super::record::{self, OpenForm, RecordPageState};
use super::record_query::{TimelineView, undoable_href};
use super::undo::Undo;
use super::unsaved::record_form::RecordForm;
use crate::error::{PageError, client_not_found};
use crate::path::ClientNumber;
use crate::person_names::PersonNames;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::time_format::DisplayTime;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{Client, ClientId, ClientName, ContactDetails};
use chancery_policy::{EditClient, ReadClient};
use chancery_store::{ClientChange, ClientVersion, SaveOutcome, VersionQuery};
use chancery_web::{ErrorPage, Notice, PostedForm};
use std::sync::Arc;

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    ClientNumber(id): ClientNumber,
    RecordForm { signed_in, body: PostedForm(typed), .. }: RecordForm<PostedForm<DetailsInput>>,
) -> Result<Response, PageError> {
    let invalid_version = || {
        ErrorPage::invalid_form(
            "`version` is missing or not a number. Reload the record and edit the details again.",
        )
    };
    let version = typed.version().ok_or_else(invalid_version)?;
    if typed.resolve == CONTINUE_EDITING {
        portal.ensure_allowed_on_client::<EditClient>(&signed_in, id).await?;
        return show_conflict(&portal, &signed_in, id, typed).await;
    }
    let local = signed_in.local_time(&portal);
    let mut read = typed.read(&local, None);
    if read.as_ref().is_err_and(|problems| problems.of("email").is_some()) {
        // An address that predates today's rule stays valid until it is changed.
        portal.ensure_allowed_on_client::<EditClient>(&signed_in, id).await?;
        let find = |permit| portal.store.clients.client_versions(permit, VersionQuery::None);
        let found = portal.with_client_permit::<ReadClient, _, _>(&signed_in, id, find).await?;
        let (stored, _) = found.ok_or_else(client_not_found)?;
        read = typed.read(&local, Some(&stored.details.email));
    }
    let (name, details) = match read {
        Ok(read) => read,
        Err(problems) => {
            portal.ensure_allowed_on_client::<EditClient>(&signed_in, id).await?;
            let form = DetailsForm { problems, ..DetailsForm::typed(typed) };
            let (view, status) = (TimelineView::default(), StatusCode::UNPROCESSABLE_ENTITY);
            let state = RecordPageState { view, open: OpenForm::Details(form), notice: None, status };
            return record::show(&portal, &signed_in, id, state).await;
        }
    };
    let change = ClientChange { version, name, details };
    let edit = |permit| portal.store.clients.edit_client(permit, change.clone());
    match portal.with_client_permit::<EditClient, _, _>(&signed_in, id, edit).await? {
        SaveOutcome::Saved(saved) => {
            // Saving without a change makes no version.
            let undo = (saved.version == version.next()).then(|| Undo::of_client(saved.version));
            let href = undoable_href(id, CompletedChange::DetailsSaved, undo);
            Ok(Redirect::to(&href).into_response())
        }
        SaveOutcome::Conflict(_) => show_conflict(&portal, &signed_in, id, typed).await,
        SaveOutcome::NotFound => Err(client_not_found().into()),
    }
}

/// The values of the fields with their labels.
pub(super) fn labelled_fields(name: &ClientName, details: &ContactDetails) -> [(&'static str, String); 6] {
    let ContactDetails { contact, email, telephone, address, since } = details;
    [
        ("Name", name.to_string()),
        ("Contact", contact.to_string()),
        ("Email", email.to_string()),
        ("Telephone", telephone.to_string()),
        ("Address", address.to_string()),
        ("Client since", since.map_or_else(String::new, |day| day.to_string())),
    ]
}

/// The changes to a client since the user opened it. Editing details is not the only change that creates a version.
fn changes_since(base: Option<&ClientVersion>, now: &Client, names: &PersonNames) -> Vec<String> {
    let mut changes = Vec::new();
    if let Some(base) = base {
        if (&base.name, &base.details) != (&now.name, &now.details) {
            changes.push("saved these details".to_owned());
        }
        if base.owner.id != now.owner.id {
            let owner = names.text(now.owner.id, &now.owner.email);
            changes.push(format!("reassigned this client to {owner}"));
        }
        match (base.is_archived, now.archived_at.is_some()) {
            (false, true) => changes.push("archived this client".to_owned()),
            (true, false) => changes.push("restored this client".to_owned()),
            _ => {}
        }
    }
    if changes.is_empty() {
        changes.push("saved this client".to_owned());
    }
    changes
}

async fn show_conflict(
    portal: &Portal,
    signed_in: &SignedIn,
    id: ClientId,
    typed: DetailsInput,
) -> Result<Response, PageError> {
    let query = typed.version().map_or(VersionQuery::None, VersionQuery::CurrentAnd);
    let read = |permit| portal.store.clients.client_versions(permit, query);
    let found = portal.with_client_permit::<ReadClient, _, _>(signed_in, id, read).await?;
    let (current, versions) = found.ok_or_else(client_not_found)?;
    let base = versions.iter().find(|version| Some(version.version) == typed.version());
    let names = PersonNames::read(portal).await?;
    let changes = changes_since(base, &current, &names);
    let base = base.map(|base| labelled_fields(&base.name, &base.details));
    let newest = versions.iter().find(|version| version.version == current.version);

    let yours = [&typed.name, &typed.contact, &typed.email, &typed.telephone, &typed.address, &typed.since];
    let now = labelled_fields(&current.name, &current.details);
    let fields = now.iter().zip(yours).enumerate().map(|(index, ((label, current), yours))| {
        let base = base.as_ref().and_then(|base| base.get(index)).map(|(_, base)| base.as_str());
        ConflictField::new(label, yours, current, base)
    });
    let is_merging = typed.resolve == CONTINUE_EDITING && typed.version() == Some(current.version);
    let author = newest.and_then(|newest| newest.by.as_ref());
    let conflict = Conflict {
        by: author.map(|person| names.text(person.id, &person.email)),
        is_own: author.is_some_and(|person| person.id == signed_in.person.id),
        at: newest.map(|newest| DisplayTime::new(newest.at, &signed_in.local_time(portal))),
        version: current.version.0,
        is_merging,
        fields: fields.collect(),
    };
    let headline = conflict.headline();
    let mut text = conflict.notice_text(typed.version().unwrap_or(current.version), &changes);
    if current.archived_at.is_some() {
        text.push_str(" The client is archived. It stays hidden from the list until you restore it.");
    }
    let typed = DetailsInput { version: current.version.to_string(), ..typed };
    let form = DetailsForm { conflict: Some(conflict), ..DetailsForm::typed(typed) };
    let (notice, status) = match is_merging {
        true => (Notice::warning("Not saved yet.", text), StatusCode::OK),
        false => (Notice::warning(headline, text), StatusCode::CONFLICT),
    };
    let (view, notice) = (TimelineView::default(), Some(notice));
    record::show(
        portal,
        signed_in,
        id,
        RecordPageState { view, open: OpenForm::Details(form), notice, status },
    )
    .await
}
