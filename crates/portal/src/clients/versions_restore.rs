//! `POST /clients/{id}/versions/restore` and `POST /clients/{id}/entries/{entry}/versions/restore`: makes a new version with
//! the content of an earlier one. Undoing an edit is the same request. If there is a newer version than the page showed,
//! nothing is changed.

use super::done::CompletedChange;
use super::record_query::undoable_href;
use super::undo::{Undo, changed_since, parse_version};
use crate::error::PageError;
use crate::path::{ClientNumber, EntryNumber};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::Version;
use chancery_policy::EditClient;
use chancery_store::{SaveOutcome, VersionRestore};
use chancery_web::{ErrorPage, PostedForm};
use serde::Deserialize;
use std::sync::Arc;

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct RestoreForm {
    /// The version to restore.
    version: String,
    /// The newest version on the page.
    current: String,
}

impl RestoreForm {
    fn read(&self) -> Result<VersionRestore, ErrorPage> {
        let missing = || {
            ErrorPage::invalid_form("`version` and `current` are required. Reload the history and try again.")
        };
        let read = |text: &str| parse_version(text)?.ok_or_else(missing);
        Ok(VersionRestore { to: read(&self.version)?, current: read(&self.current)? })
    }
}

pub(crate) async fn of_client(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    ClientNumber(id): ClientNumber,
    PostedForm(form): PostedForm<RestoreForm>,
) -> Result<Response, PageError> {
    let restore = form.read()?;
    let history = format!("/clients/{id}/versions");
    let step = |permit| portal.store.clients.restore_client_version(permit, restore);
    match portal.with_client_permit::<EditClient, _, _>(&signed_in, id, step).await? {
        SaveOutcome::Saved(saved) => {
            let undo = created_by(restore, saved.version).map(Undo::of_client);
            let href = undoable_href(id, CompletedChange::VersionRestored, undo);
            Ok(Redirect::to(&href).into_response())
        }
        SaveOutcome::Conflict(_) => Err(changed_since(id, history).into()),
        SaveOutcome::NotFound => Err(version_not_found(history).into()),
    }
}

pub(crate) async fn of_entry(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    EntryNumber { client, entry }: EntryNumber,
    PostedForm(form): PostedForm<RestoreForm>,
) -> Result<Response, PageError> {
    let restore = form.read()?;
    let history = format!("/clients/{client}/entries/{entry}/versions");
    let step = |permit| portal.store.clients.restore_entry_version(permit, entry, restore);
    match portal.with_client_permit::<EditClient, _, _>(&signed_in, client, step).await? {
        SaveOutcome::Saved(saved) => {
            let undo = created_by(restore, saved.version).map(|version| Undo::of_subject(version, entry.0));
            let href = undoable_href(client, CompletedChange::EntryVersionRestored, undo);
            Ok(Redirect::to(&href).into_response())
        }
        SaveOutcome::Conflict(_) => Err(changed_since(client, history).into()),
        SaveOutcome::NotFound => Err(version_not_found(history).into()),
    }
}

/// The version that the restore created. Restoring what is the same as the current version creates none.
fn created_by(restore: VersionRestore, saved: Version) -> Option<Version> {
    (saved == restore.current.next()).then_some(saved)
}

fn version_not_found(history: String) -> ErrorPage {
    ErrorPage::missing("Version not found", "There is no version with this number.")
        .advice("The link may be out of date.")
        .next_link(history, "Show history")
}
