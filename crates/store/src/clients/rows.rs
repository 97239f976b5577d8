//! Clients as the database has them, and how one is locked while it is read or changed.

use crate::clients::types::{ClientLine, EntryCounts};
use crate::db::{Conn, Dialect, FromRow, Row, Statement, TxError, corrupt, query};
use crate::{ClientError, ClientRecord, Look};
use chancery_domain::{
    Client, ClientId, ClientName, ContactEmail, ContactFacts, Day, Entry, FactLine, PersonId, PersonRef,
    PostalAddress, UnixMillis, Version,
};
use chancery_policy::{Act, Permit};

/// Stands for the time of the last entry where there is none, and comes before all others.
pub(crate) const NO_ENTRY_MS: i64 = i64::MIN;

/// What `Client`, `ClientLine` and `StoredClient` are read from: columns of clients `c` and their owners `p`.
pub(crate) const SELECT_CLIENTS: &str = "SELECT c.id, c.owner_id, p.email AS owner_email, c.version, c.created_at_ms, \
    c.archived_at_ms, c.last_entry_at_ms, c.meeting_notes, c.billing_disputes, c.draft_letters, c.open_disputes, \
    c.open_letters, c.archived_entries, c.name, c.contact, c.email, c.telephone, c.address, c.since_day";

const REMOVED_AT: &str = "SELECT removed_at_ms FROM people WHERE id = $1";

pub(crate) fn person_ref(id: i64, email: &str) -> Result<PersonRef, sqlx::Error> {
    let email = email.parse().map_err(|error| corrupt("a person's address", error))?;
    Ok(PersonRef { id: PersonId(id), email })
}

/// None: the command line.
pub(crate) fn changed_by(id: Option<i64>, email: Option<&str>) -> Result<Option<PersonRef>, sqlx::Error> {
    id.map(|id| person_ref(id, email.unwrap_or_default())).transpose()
}

pub(crate) fn count(stored: i64) -> Result<u64, sqlx::Error> {
    u64::try_from(stored).map_err(|_| corrupt("a count", format!("{stored} is negative")))
}

/// A client's name and details, of a client or of a version of it.
pub(crate) fn name_and_facts(row: &Row) -> Result<(ClientName, ContactFacts), sqlx::Error> {
    let since = row.get::<Option<i64>>("since_day")?.map(|day| {
        i32::try_from(day).map(Day).map_err(|_| {
            let why = format!("{day} days after 1970 is out of range");
            corrupt("the day since when somebody has been a client", why)
        })
    });
    let facts = ContactFacts {
        contact: FactLine::from_stored(row.get("contact")?),
        email: ContactEmail::from_stored(row.get("email")?),
        telephone: FactLine::from_stored(row.get("telephone")?),
        address: PostalAddress::from_stored(row.get("address")?),
        since: since.transpose()?,
    };
    Ok((ClientName::from_stored(row.get("name")?), facts))
}

impl FromRow for Client {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let (name, facts) = name_and_facts(row)?;
        let last_entry_at_ms = Some(row.get("last_entry_at_ms")?);
        Ok(Self {
            id: ClientId(row.get("id")?),
            name,
            facts,
            owner: person_ref(row.get("owner_id")?, &row.get::<String>("owner_email")?)?,
            version: Version(row.get("version")?),
            created_at: UnixMillis(row.get("created_at_ms")?),
            archived_at: row.get::<Option<i64>>("archived_at_ms")?.map(UnixMillis),
            last_entry_at: last_entry_at_ms.filter(|at| *at != NO_ENTRY_MS).map(UnixMillis),
        })
    }
}

impl FromRow for ClientLine {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let few = |column| {
            let stored: i64 = row.get(column)?;
            u32::try_from(stored).map_err(|_| corrupt("a count", format!("{stored} is out of range")))
        };
        Ok(Self {
            client: Client::from_row(row)?,
            open_disputes: few("open_disputes")?,
            open_letters: few("open_letters")?,
        })
    }
}

/// A client with what is counted of its entries.
pub(crate) struct StoredClient {
    pub(crate) client: Client,
    pub(crate) counts: EntryCounts,
}

impl FromRow for StoredClient {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let counts = EntryCounts {
            meeting_notes: count(row.get("meeting_notes")?)?,
            billing_disputes: count(row.get("billing_disputes")?)?,
            draft_letters: count(row.get("draft_letters")?)?,
            open_disputes: count(row.get("open_disputes")?)?,
            open_letters: count(row.get("open_letters")?)?,
            archived: count(row.get("archived_entries")?)?,
        };
        Ok(Self { client: Client::from_row(row)?, counts })
    }
}

impl StoredClient {
    pub(crate) fn into_record(self, entries: Vec<Entry>, has_more: bool, looks: Vec<Look>) -> ClientRecord {
        ClientRecord { client: self.client, entries, has_more, counts: self.counts, looks }
    }
}

/// What rows are locked for, until the transaction ends. SQLite has one writer and needs no locks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockFor {
    Reading,
    Changing,
}

impl LockFor {
    pub(crate) fn suffix(self, dialect: Dialect) -> &'static str {
        match (dialect, self) {
            (Dialect::Sqlite, _) => "",
            (Dialect::Postgres, Self::Reading) => " FOR SHARE OF c",
            (Dialect::Postgres, Self::Changing) => " FOR NO KEY UPDATE OF c",
        }
    }
}

pub(crate) async fn lock_client(
    conn: &mut Conn<'_>,
    client: ClientId,
    purpose: LockFor,
) -> Result<Option<StoredClient>, sqlx::Error> {
    let mut read = Statement::new(SELECT_CLIENTS);
    read.push(" FROM clients c JOIN people p ON p.id = c.owner_id WHERE c.id = ").push_bind(client.0);
    read.push(purpose.suffix(conn.dialect()));
    read.build().fetch_optional(conn).await
}

/// The client that the permit is for, locked. None where there is no such client, and was none when the policy was asked.
/// `OwnerChanged` where it is not whose it was.
async fn lock_permitted<A: Act>(
    conn: &mut Conn<'_>,
    permit: &Permit<A>,
    purpose: LockFor,
) -> Result<Option<StoredClient>, TxError<ClientError>> {
    // No client has the smallest number.
    let client = permit.client().unwrap_or(ClientId(i64::MIN));
    match (permit.owner(), lock_client(conn, client, purpose).await?) {
        (None, None) => Ok(None),
        (Some(owner), Some(found)) if found.client.owner.id == owner => Ok(Some(found)),
        _ => Err(ClientError::OwnerChanged(permit.client().unwrap_or(ClientId(0))).into()),
    }
}

pub(crate) async fn lock_for_read<A: Act>(
    conn: &mut Conn<'_>,
    permit: &Permit<A>,
) -> Result<Option<StoredClient>, TxError<ClientError>> {
    lock_permitted(conn, permit, LockFor::Reading).await
}

pub(crate) async fn lock_for_change<A: Act>(
    conn: &mut Conn<'_>,
    permit: &Permit<A>,
) -> Result<Option<StoredClient>, TxError<ClientError>> {
    lock_permitted(conn, permit, LockFor::Changing).await
}

/// Rejects with `NoSuchPerson` somebody who is not in the firm, or not any more. They are not locked: whoever is removed
/// a moment later keeps their clients until those are given to somebody else, and signing in must not wait for an import.
pub(crate) async fn must_be_member(
    conn: &mut Conn<'_>,
    person: PersonId,
) -> Result<(), TxError<ClientError>> {
    match removed_at(conn, person).await? {
        Some(None) => Ok(()),
        _ => Err(ClientError::NoSuchPerson(person).into()),
    }
}

/// Rejects with `NoSuchPerson` somebody who never was in the firm.
pub(crate) async fn must_be_known(conn: &mut Conn<'_>, person: PersonId) -> Result<(), TxError<ClientError>> {
    removed_at(conn, person).await?.map(|_| ()).ok_or_else(|| ClientError::NoSuchPerson(person).into())
}

/// When the person was removed. None where there is no such person.
async fn removed_at(conn: &mut Conn<'_>, person: PersonId) -> Result<Option<Option<i64>>, sqlx::Error> {
    query(REMOVED_AT).bind(person.0).fetch_optional(conn).await
}
