//! The versions of clients and of entries: every change adds one, and none is ever changed.

use crate::clients::rows::{changed_by, name_and_facts, person_ref};
use crate::clients::types::{ClientVersion, EntryVersion, MAX_VERSIONS_AT_ONCE, VersionsWanted};
use crate::db::error_codes::with_timeout;
use crate::db::{Conn, FromRow, Query, Row, Statement, query};
use chancery_domain::{
    Asked, Client, ClientId, Entry, EntryId, EntryText, EntryTitle, PersonRef, UnixMillis, Version,
};

const CLIENT_VERSIONS: &str = "SELECT v.version, v.name, v.contact, v.email, v.telephone, v.address, v.since_day, \
    v.owner_id, o.email AS owner_email, v.is_archived, v.by_id, p.email AS by_email, v.at_ms FROM client_versions v \
    JOIN people o ON o.id = v.owner_id LEFT JOIN people p ON p.id = v.by_id WHERE v.client_id = ";
const ENTRY_VERSIONS: &str = "SELECT v.version, v.at_ms, v.is_open, v.is_archived, v.by_id, p.email AS by_email, \
    v.changed_at_ms, v.title, v.text FROM entry_versions v LEFT JOIN people p ON p.id = v.by_id WHERE v.entry_id = ";

const ADD_CLIENT_VERSION: &str = "INSERT INTO client_versions (client_id, version, name, contact, email, telephone, \
    address, since_day, owner_id, is_archived, by_id, at_ms) \
    SELECT c.id, c.version, c.name, c.contact, c.email, c.telephone, c.address, c.since_day, c.owner_id, c.is_archived, \
    $2, $3 FROM clients c WHERE c.id = $1";
const ADD_ENTRY_VERSION: &str = "INSERT INTO entry_versions \
    (entry_id, version, at_ms, is_open, is_archived, by_id, changed_at_ms, title, text) \
    SELECT e.id, e.version, e.at_ms, e.is_open, e.is_archived, $2, $3, e.title, e.text FROM entries e WHERE e.id = $1";

fn author(row: &Row) -> Result<Option<PersonRef>, sqlx::Error> {
    changed_by(row.get("by_id")?, row.get::<Option<String>>("by_email")?.as_deref())
}

impl FromRow for ClientVersion {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let (name, facts) = name_and_facts(row)?;
        Ok(Self {
            version: Version(row.get("version")?),
            name,
            facts,
            owner: person_ref(row.get("owner_id")?, &row.get::<String>("owner_email")?)?,
            is_archived: row.get("is_archived")?,
            by: author(row)?,
            at: UnixMillis(row.get("at_ms")?),
        })
    }
}

impl FromRow for EntryVersion {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            version: Version(row.get("version")?),
            title: EntryTitle::from_stored(row.get("title")?),
            text: EntryText::from_stored(row.get("text")?),
            at: UnixMillis(row.get("at_ms")?),
            is_open: row.get("is_open")?,
            is_archived: row.get("is_archived")?,
            by: author(row)?,
            changed_at: UnixMillis(row.get("changed_at_ms")?),
        })
    }
}

/// The versions of the thing with this number that are wanted, newest first. None where none are.
fn select(versions: &str, id: i64, now: Version, wanted: VersionsWanted) -> Option<Query<'static>> {
    let mut read = Statement::new(versions);
    read.push_bind(id);
    match wanted {
        VersionsWanted::Page { before, limit } => {
            let before = before.map_or(i64::MAX, |before| before.0);
            read.push(" AND v.version < ").push_bind(before).push(" ORDER BY v.version DESC LIMIT ");
            read.push_bind(i64::from(limit.min(MAX_VERSIONS_AT_ONCE)));
        }
        VersionsWanted::NowAnd(base) => {
            read.push(" AND v.version IN ").push_list([base.0, now.0]).push(" ORDER BY v.version DESC");
        }
        VersionsWanted::None => return None,
    }
    Some(read.build())
}

pub(crate) async fn versions_of_client(
    conn: &mut Conn<'_>,
    client: &Client,
    wanted: VersionsWanted,
) -> Result<Vec<ClientVersion>, sqlx::Error> {
    match select(CLIENT_VERSIONS, client.id.0, client.version, wanted) {
        Some(read) => read.fetch_all(conn).await,
        None => Ok(Vec::new()),
    }
}

pub(crate) async fn versions_of_entry(
    conn: &mut Conn<'_>,
    entry: &Entry,
    wanted: VersionsWanted,
) -> Result<Vec<EntryVersion>, sqlx::Error> {
    match select(ENTRY_VERSIONS, entry.id.0, entry.version, wanted) {
        Some(read) => read.fetch_all(conn).await,
        None => Ok(Vec::new()),
    }
}

/// Stores the client as it is now as a version.
pub(crate) async fn add_client_version(
    conn: &mut Conn<'_>,
    asked: &Asked,
    client: ClientId,
) -> Result<(), sqlx::Error> {
    add_version(conn, ADD_CLIENT_VERSION, asked, client.0).await
}

/// Stores the entry as it is now as a version.
pub(crate) async fn add_entry_version(
    conn: &mut Conn<'_>,
    asked: &Asked,
    entry: EntryId,
) -> Result<(), sqlx::Error> {
    add_version(conn, ADD_ENTRY_VERSION, asked, entry.0).await
}

async fn add_version(
    conn: &mut Conn<'_>,
    sql: &'static str,
    asked: &Asked,
    id: i64,
) -> Result<(), sqlx::Error> {
    let add = query(sql).bind(id).bind(asked.by.person().map(|person| person.0)).bind(asked.at.0);
    with_timeout(add.execute(conn)).await?;
    Ok(())
}
