//! Versions of clients and entries. Every change adds one, and none is ever changed.

use crate::clients::types::{ClientVersion, EntryVersion, MAX_VERSIONS_PER_READ, VersionQuery};
use crate::db::{Query, QueryError, Statement, Tx, from_row, query};
use chancery_domain::{
    AccessRequest, Client, ClientId, ContactDetails, DisputeDetails, Entry, EntryId, Version,
};

const CLIENT_VERSIONS: &str = "SELECT v.version, v.name, v.contact, v.email, v.telephone, v.address, v.since_day, \
    v.owner_id, o.email AS owner_email, v.is_archived, v.actor_id, p.email AS actor_email, v.at_ms FROM client_versions v \
    JOIN people o ON o.id = v.owner_id LEFT JOIN people p ON p.id = v.actor_id WHERE v.client_id = ";
const ENTRY_VERSIONS: &str = "SELECT v.version, v.at_ms, v.is_open, v.is_archived, v.actor_id, p.email AS actor_email, \
    v.changed_at_ms, v.amount_minor, v.due_day, v.title, v.text FROM entry_versions v LEFT JOIN people p ON p.id = v.actor_id WHERE v.entry_id = ";

const ADD_CLIENT_VERSION: &str = "INSERT INTO client_versions (client_id, version, name, contact, email, telephone, \
    address, since_day, owner_id, is_archived, actor_id, at_ms) \
    SELECT c.id, c.version, c.name, c.contact, c.email, c.telephone, c.address, c.since_day, c.owner_id, c.is_archived, \
    $2, $3 FROM clients c WHERE c.id = $1";
const ADD_ENTRY_VERSION: &str = "INSERT INTO entry_versions \
    (entry_id, version, at_ms, is_open, is_archived, actor_id, changed_at_ms, amount_minor, due_day, title, text) \
    SELECT e.id, e.version, e.at_ms, e.is_open, e.is_archived, $2, $3, e.amount_minor, e.due_day, e.title, e.text \
    FROM entries e WHERE e.id = $1";

from_row!(ClientVersion {
    version,
    name,
    details: ContactDetails::from_row,
    owner: person("owner_id", "owner_email"),
    is_archived,
    by: author(),
    at: "at_ms"
});

from_row!(EntryVersion {
    version,
    title,
    text,
    at: "at_ms",
    is_open,
    dispute: DisputeDetails::from_row,
    is_archived,
    by: author(),
    changed_at: "changed_at_ms"
});

/// Selects the requested versions of a client or entry, newest first. `None` if none are requested.
fn select(versions: &str, id: i64, current: Version, filter: VersionQuery) -> Option<Query> {
    let mut read = Statement::new(versions);
    read.push_bind(id);
    match filter {
        VersionQuery::Page { before, limit } => {
            let before = before.map_or(i64::MAX, |before| before.0);
            read.push(" AND v.version < ").push_bind(before).push(" ORDER BY v.version DESC LIMIT ");
            read.push_bind(i64::from(limit.min(MAX_VERSIONS_PER_READ)));
        }
        VersionQuery::Only(version) => {
            read.push(" AND v.version = ").push_bind(version.0);
        }
        VersionQuery::CurrentAnd(base) => {
            read.push(" AND v.version IN ").push_list([base.0, current.0]).push(" ORDER BY v.version DESC");
        }
        VersionQuery::None => return None,
    }
    Some(read.build())
}

pub(crate) fn versions_of_client(
    tx: &mut Tx<'_>,
    client: &Client,
    filter: VersionQuery,
) -> Result<Vec<ClientVersion>, QueryError> {
    match select(CLIENT_VERSIONS, client.id.0, client.version, filter) {
        Some(read) => read.fetch_all(tx),
        None => Ok(Vec::new()),
    }
}

pub(crate) fn versions_of_entry(
    tx: &mut Tx<'_>,
    entry: &Entry,
    filter: VersionQuery,
) -> Result<Vec<EntryVersion>, QueryError> {
    match select(ENTRY_VERSIONS, entry.id.0, entry.version, filter) {
        Some(read) => read.fetch_all(tx),
        None => Ok(Vec::new()),
    }
}

/// Stores the client's current state as a version.
pub(crate) fn add_client_version(
    tx: &mut Tx<'_>,
    access_request: &AccessRequest,
    client: ClientId,
) -> Result<(), QueryError> {
    add_version(tx, ADD_CLIENT_VERSION, access_request, client.0)
}

/// Stores the entry's current state as a version.
pub(crate) fn add_entry_version(
    tx: &mut Tx<'_>,
    access_request: &AccessRequest,
    entry: EntryId,
) -> Result<(), QueryError> {
    add_version(tx, ADD_ENTRY_VERSION, access_request, entry.0)
}

fn add_version(
    tx: &mut Tx<'_>,
    sql: &'static str,
    access_request: &AccessRequest,
    id: i64,
) -> Result<(), QueryError> {
    let add =
        query(sql).bind(id).bind(access_request.by.person().map(|person| person.0)).bind(access_request.at.0);
    add.execute(tx)?;
    Ok(())
}
