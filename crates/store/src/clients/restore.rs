//! Restores the content of an earlier version as a new one. Undoing an edit is the same step. Owner and archive state
//! stay as they are: changing those has permits and steps of its own.

use crate::ClientError;
use crate::clients::changes::change_client;
use crate::clients::entries::{change_entry, find_entry};
use crate::clients::locks::lock_for_change;
use crate::clients::records::Clients;
use crate::clients::types::{ClientChange, EntryChange, SaveOutcome, VersionQuery, VersionRestore};
use crate::clients::versions::{versions_of_client, versions_of_entry};
use chancery_domain::{Client, Entry, EntryId};
use chancery_policy::{EditClient, Permit};

impl Clients {
    /// Restores name and contact details. `NotFound` if there is no such client or version.
    pub async fn restore_client_version(
        &self,
        permit: Permit<EditClient>,
        restore: VersionRestore,
    ) -> Result<SaveOutcome<Client>, ClientError> {
        self.audited
            .run(vec![permit.to_audit_row()], move |tx| {
                let Some(found) = lock_for_change(tx, &permit)? else {
                    return Ok(SaveOutcome::NotFound);
                };
                let filter = VersionQuery::Only(restore.to);
                let versions = versions_of_client(tx, &found.client, filter)?;
                let Some(earlier) = versions.into_iter().next() else {
                    return Ok(SaveOutcome::NotFound);
                };
                let change =
                    ClientChange { version: restore.current, name: earlier.name, details: earlier.details };
                Ok(change_client(tx, permit.access_request(), found, &change)?)
            })
            .await
    }

    /// Restores title, text, date, status and a dispute's details. `NotFound` if there is no such client, entry or
    /// version.
    pub async fn restore_entry_version(
        &self,
        permit: Permit<EditClient>,
        entry: EntryId,
        restore: VersionRestore,
    ) -> Result<SaveOutcome<Entry>, ClientError> {
        self.audited
            .run(vec![permit.to_audit_row()], move |tx| {
                let Some(found) = lock_for_change(tx, &permit)? else {
                    return Ok(SaveOutcome::NotFound);
                };
                let client = found.client.id;
                let Some(current) = find_entry(tx, client, entry)? else {
                    return Ok(SaveOutcome::NotFound);
                };
                let filter = VersionQuery::Only(restore.to);
                let versions = versions_of_entry(tx, &current, filter)?;
                let Some(earlier) = versions.into_iter().next() else {
                    return Ok(SaveOutcome::NotFound);
                };
                let change = EntryChange {
                    entry,
                    version: restore.current,
                    title: earlier.title,
                    text: earlier.text,
                    at: Some(earlier.at),
                    is_open: earlier.is_open,
                    dispute: Some(earlier.dispute),
                };
                change_entry(tx, permit.access_request(), client, &change)
            })
            .await
    }
}
