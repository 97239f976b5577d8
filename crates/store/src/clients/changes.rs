//! Changes of a client: details, archive state and owner. Each creates a new version.

use crate::clients::locks::MAX_CLIENTS_PER_STATEMENT;
use crate::clients::rows::StoredClient;
use crate::clients::search::{replace_search_terms, search_terms_of, sort_name};
use crate::clients::types::{ArchiveChange, ClientChange, SaveOutcome};
use crate::clients::versions::add_client_version;
use crate::db::{QueryError, Statement, Tx, query};
use chancery_domain::{AccessRequest, Client, ClientId, PersonId};

const SET_DETAILS: &str = "UPDATE clients SET version = $2, name = $3, sort_name = $4, contact = $5, email = $6, \
    telephone = $7, address = $8, since_day = $9 WHERE id = $1";
const SET_ARCHIVED: &str =
    "UPDATE clients SET version = version + 1, archived_at_ms = $2, is_archived = $3 WHERE id = $1";
const SET_TERMS_ARCHIVED: &str = "UPDATE client_search_terms SET is_archived = $2 WHERE client_id = $1";

/// Saves changed fields if the version is still the one that the editor saw.
pub(crate) fn change_client(
    tx: &mut Tx<'_>,
    access_request: &AccessRequest,
    StoredClient { client: current, .. }: StoredClient,
    change: &ClientChange,
) -> Result<SaveOutcome<Client>, QueryError> {
    if current.version != change.version {
        return Ok(SaveOutcome::Conflict(current));
    }
    let changed = Client { name: change.name.clone(), details: change.details.clone(), ..current.clone() };
    if changed == current {
        return Ok(SaveOutcome::Saved(current));
    }
    let saved = Client { version: current.version.next(), ..changed };
    let details = &saved.details;
    let set = query(SET_DETAILS)
        .bind(saved.id.0)
        .bind(saved.version.0)
        .bind(saved.name.as_str())
        .bind(sort_name(&saved.name))
        .bind(details.contact.as_str())
        .bind(details.email.as_str())
        .bind(details.telephone.as_str())
        .bind(details.address.as_str())
        .bind(details.since.map(|day| i64::from(day.0)));
    set.execute(tx)?;
    add_client_version(tx, access_request, saved.id)?;
    if search_terms_of(saved.id, &saved.name, &saved.details)
        != search_terms_of(current.id, &current.name, &current.details)
    {
        replace_search_terms(tx, &saved)?;
    }
    Ok(SaveOutcome::Saved(saved))
}

pub(crate) fn archive_client(
    tx: &mut Tx<'_>,
    access_request: &AccessRequest,
    StoredClient { client: current, .. }: StoredClient,
    ArchiveChange { is_archived, version }: ArchiveChange,
) -> Result<SaveOutcome<Client>, QueryError> {
    if version.is_some_and(|version| version != current.version) {
        return Ok(SaveOutcome::Conflict(current));
    }
    if current.archived_at.is_some() == is_archived {
        return Ok(SaveOutcome::Saved(current));
    }
    let archived_at = is_archived.then_some(access_request.at);
    let set = query(SET_ARCHIVED).bind(current.id.0).bind(archived_at.map(|at| at.0)).bind(is_archived);
    set.execute(tx)?;
    query(SET_TERMS_ARCHIVED).bind(current.id.0).bind(is_archived).execute(tx)?;
    add_client_version(tx, access_request, current.id)?;
    Ok(SaveOutcome::Saved(Client { version: current.version.next(), archived_at, ..current }))
}

/// Gives the clients a new owner, with the principal and time of one decision.
pub(crate) fn set_owner(
    tx: &mut Tx<'_>,
    access_request: &AccessRequest,
    clients: &[ClientId],
    to: PersonId,
) -> Result<(), QueryError> {
    for clients in clients.chunks(MAX_CLIENTS_PER_STATEMENT) {
        for update in [
            ("UPDATE clients SET version = version + 1, owner_id = ", " WHERE id IN "),
            ("UPDATE client_search_terms SET owner_id = ", " WHERE client_id IN "),
        ] {
            let mut set = Statement::new(update.0);
            set.push_bind(to.0).push(update.1).push_list(clients.iter().map(|client| client.0));
            set.build().persistent(clients.len() == 1).execute(tx)?;
        }
        for client in clients {
            add_client_version(tx, access_request, *client)?;
        }
    }
    Ok(())
}
