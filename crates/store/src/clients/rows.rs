//! Database rows of clients.

use crate::ClientError;
use crate::clients::types::{ClientSummary, EntryCounts};
use crate::db::{FromRow, QueryError, Row, Tx, from_row, query};
use chancery_domain::{Client, ContactDetails, DisputeDetails, PersonId};

/// The columns of `Client`, `ClientSummary` and `StoredClient`, from clients `c` and their owners `p`.
pub(crate) const SELECT_CLIENTS: &str = "SELECT c.id, c.owner_id, p.email AS owner_email, c.version, c.created_at_ms, \
    c.archived_at_ms, c.last_entry_at_ms, c.meeting_notes, c.billing_disputes, c.draft_letters, c.open_disputes, \
    c.open_letters, c.archived_entries, c.next_due_day, c.name, c.contact, c.email, c.telephone, c.address, c.since_day";

const REMOVED_AT: &str = "SELECT removed_at_ms FROM people WHERE id = $1";

// What a dispute, or a version of one, has besides its text.
from_row!(DisputeDetails { amount: "amount_minor", due: "due_day" });

from_row!(ContactDetails { contact, email, telephone, address, since: "since_day" });

impl FromRow for Client {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        // Without entries, the column has the time of creation, for the order of the list.
        let mut entries: i64 = 0;
        for column in ["meeting_notes", "billing_disputes", "draft_letters"] {
            entries += row.get::<i64>(column)?;
        }
        let last_entry_at = row.get("last_entry_at_ms")?;
        Ok(Self {
            id: row.get("id")?,
            name: row.get("name")?,
            details: ContactDetails::from_row(row)?,
            owner: row.person("owner_id", "owner_email")?,
            version: row.get("version")?,
            created_at: row.get("created_at_ms")?,
            archived_at: row.get("archived_at_ms")?,
            last_entry_at: (entries > 0).then_some(last_entry_at),
        })
    }
}

from_row!(ClientSummary { client: Client::from_row, open_disputes, open_letters, next_due: "next_due_day" });

/// A client with its entry counts.
pub(crate) struct StoredClient {
    pub(crate) client: Client,
    pub(crate) counts: EntryCounts,
}

from_row!(EntryCounts {
    meeting_notes,
    billing_disputes,
    draft_letters,
    open_disputes,
    open_letters,
    archived: "archived_entries"
});
from_row!(StoredClient { client: Client::from_row, counts: EntryCounts::from_row });

/// Fails with `NoSuchPerson` unless the person is an active member of the firm. The person is not locked: one who is
/// removed a moment later keeps their clients until those are reassigned, and sign-ins must not wait for an import.
pub(crate) fn ensure_active_member(tx: &mut Tx<'_>, person: PersonId) -> Result<(), ClientError> {
    match removed_at(tx, person)? {
        Some(None) => Ok(()),
        _ => Err(ClientError::NoSuchPerson(person)),
    }
}

/// Fails with `NoSuchPerson` if the person was never in the firm.
pub(crate) fn ensure_person_exists(tx: &mut Tx<'_>, person: PersonId) -> Result<(), ClientError> {
    removed_at(tx, person)?.map(|_| ()).ok_or(ClientError::NoSuchPerson(person))
}

/// When the person was removed. The outer `None` means that there is no such person.
fn removed_at(tx: &mut Tx<'_>, person: PersonId) -> Result<Option<Option<i64>>, QueryError> {
    query(REMOVED_AT).bind(person.0).fetch_optional(tx)
}
