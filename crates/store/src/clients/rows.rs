//! Database rows of clients.

use crate::clients::types::{ClientSummary, EntryCounts};
use crate::db::{Conn, FromRow, Row, TxError, corrupt, query};
use crate::{ClientError, ClientRecord, RecordView};
use chancery_domain::{
    Client, ClientId, ClientName, ContactDetails, ContactEmail, ContactField, Day, DisputeDetails, Entry,
    MinorUnits, PersonId, PersonRef, PostalAddress, Telephone, UnixMillis, Version,
};

/// The columns of `Client`, `ClientSummary` and `StoredClient`, from clients `c` and their owners `p`.
pub(crate) const SELECT_CLIENTS: &str = "SELECT c.id, c.owner_id, p.email AS owner_email, c.version, c.created_at_ms, \
    c.archived_at_ms, c.last_entry_at_ms, c.meeting_notes, c.billing_disputes, c.draft_letters, c.open_disputes, \
    c.open_letters, c.archived_entries, c.next_due_day, c.name, c.contact, c.email, c.telephone, c.address, c.since_day";

const REMOVED_AT: &str = "SELECT removed_at_ms FROM people WHERE id = $1";

pub(crate) fn person_ref(id: i64, email: &str) -> Result<PersonRef, sqlx::Error> {
    let email = email.parse().map_err(|error| corrupt("a person's address", error))?;
    Ok(PersonRef { id: PersonId(id), email })
}

/// `None` for the command line.
pub(crate) fn optional_person_ref(
    id: Option<i64>,
    email: Option<&str>,
) -> Result<Option<PersonRef>, sqlx::Error> {
    id.map(|id| person_ref(id, email.unwrap_or_default())).transpose()
}

pub(crate) fn count(stored: i64) -> Result<u64, sqlx::Error> {
    u64::try_from(stored).map_err(|_| corrupt("a count", format!("{stored} is negative")))
}

pub(crate) fn optional_day(row: &Row, column: &str) -> Result<Option<Day>, sqlx::Error> {
    let day = row.get::<Option<i64>>(column)?.map(|day| {
        i32::try_from(day)
            .map(Day)
            .map_err(|_| corrupt("a date", format!("{day} days after 1970 is out of range")))
    });
    day.transpose()
}

/// What a dispute, or a version of one, has besides its text.
pub(crate) fn dispute_details(row: &Row) -> Result<DisputeDetails, sqlx::Error> {
    Ok(DisputeDetails {
        amount: row.get::<Option<i64>>("amount_minor")?.map(MinorUnits),
        due: optional_day(row, "due_day")?,
    })
}

/// The name and details of a client or a client version.
pub(crate) fn name_and_details(row: &Row) -> Result<(ClientName, ContactDetails), sqlx::Error> {
    let details = ContactDetails {
        contact: ContactField::from_stored(row.get("contact")?),
        email: ContactEmail::from_stored(row.get("email")?),
        telephone: Telephone::from_stored(row.get("telephone")?),
        address: PostalAddress::from_stored(row.get("address")?),
        since: optional_day(row, "since_day")?,
    };
    Ok((ClientName::from_stored(row.get("name")?), details))
}

impl FromRow for Client {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let (name, details) = name_and_details(row)?;
        // Without entries, the column has the time of creation, for the order of the list.
        let mut entries: i64 = 0;
        for column in ["meeting_notes", "billing_disputes", "draft_letters"] {
            entries += row.get::<i64>(column)?;
        }
        let last_entry_at = UnixMillis(row.get("last_entry_at_ms")?);
        Ok(Self {
            id: ClientId(row.get("id")?),
            name,
            details,
            owner: person_ref(row.get("owner_id")?, &row.get::<String>("owner_email")?)?,
            version: Version(row.get("version")?),
            created_at: UnixMillis(row.get("created_at_ms")?),
            archived_at: row.get::<Option<i64>>("archived_at_ms")?.map(UnixMillis),
            last_entry_at: (entries > 0).then_some(last_entry_at),
        })
    }
}

impl FromRow for ClientSummary {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let count_column = |column| {
            let stored: i64 = row.get(column)?;
            u32::try_from(stored).map_err(|_| corrupt("a count", format!("{stored} is out of range")))
        };
        Ok(Self {
            client: Client::from_row(row)?,
            open_disputes: count_column("open_disputes")?,
            open_letters: count_column("open_letters")?,
            next_due: optional_day(row, "next_due_day")?,
        })
    }
}

/// A client with its entry counts.
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
    pub(crate) fn into_record(
        self,
        entries: Vec<Entry>,
        has_more: bool,
        views: Vec<RecordView>,
    ) -> ClientRecord {
        ClientRecord { client: self.client, entries, has_more, counts: self.counts, views }
    }
}

/// Fails with `NoSuchPerson` unless the person is an active member of the firm. The person is not locked: one who is
/// removed a moment later keeps their clients until those are reassigned, and sign-ins must not wait for an import.
pub(crate) async fn ensure_active_member(
    conn: &mut Conn<'_>,
    person: PersonId,
) -> Result<(), TxError<ClientError>> {
    match removed_at(conn, person).await? {
        Some(None) => Ok(()),
        _ => Err(ClientError::NoSuchPerson(person).into()),
    }
}

/// Fails with `NoSuchPerson` if the person was never in the firm.
pub(crate) async fn ensure_person_exists(
    conn: &mut Conn<'_>,
    person: PersonId,
) -> Result<(), TxError<ClientError>> {
    removed_at(conn, person).await?.map(|_| ()).ok_or_else(|| ClientError::NoSuchPerson(person).into())
}

/// When the person was removed. The outer `None` means that there is no such person.
async fn removed_at(conn: &mut Conn<'_>, person: PersonId) -> Result<Option<Option<i64>>, sqlx::Error> {
    query(REMOVED_AT).bind(person.0).fetch_optional(conn).await
}
