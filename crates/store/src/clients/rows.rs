//! Clients as the database has them, and how one is held while it is read or changed.

use crate::audit::step::Stopped;
use crate::db::both::{for_both_connections, stored_row};
use crate::{ClientLine, ClientRecord, EntryCounts, Look, StoreError};
use chancery_domain::{
    Client, ClientId, ClientName, ContactEmail, ContactFacts, Day, Entry, FactLine, PersonId, PersonRef,
    PostalAddress, UnixMillis, Version,
};
use chancery_policy::{Act, Permit};
use sqlx::{PgConnection, SqliteConnection};

/// Stands for the time of the last entry where there is none, and comes before all others.
pub(crate) const NO_ENTRY_MS: i64 = i64::MIN;

stored_row! {
    struct StoredFacts {
        name: String,
        contact: String,
        email: String,
        telephone: String,
        address: String,
        since_day: Option<i64>,
    }
}

impl StoredFacts {
    pub(crate) fn into_facts(self) -> Result<(ClientName, ContactFacts), StoreError> {
        let since = self.since_day.map(|day| {
            i32::try_from(day).map(Day).map_err(|_| StoreError::Corrupt {
                what: "the day since when somebody has been a client",
                why: format!("{day} days after 1970 is out of range"),
            })
        });
        let facts = ContactFacts {
            contact: FactLine::from_stored(self.contact),
            email: ContactEmail::from_stored(self.email),
            telephone: FactLine::from_stored(self.telephone),
            address: PostalAddress::from_stored(self.address),
            since: since.transpose()?,
        };
        Ok((ClientName::from_stored(self.name), facts))
    }
}

stored_row! {
    struct StoredClient {
        id: i64,
        owner_id: i64,
        owner_email: String,
        version: i64,
        created_at_ms: i64,
        archived_at_ms: Option<i64>,
        last_entry_at_ms: i64,
        meeting_notes: i64,
        billing_disputes: i64,
        draft_letters: i64,
        open_disputes: i64,
        open_letters: i64,
        archived_entries: i64,
        ..facts: StoredFacts,
    }
}

/// The columns of `StoredClient`, of `clients c` and its owner `p`.
macro_rules! client_columns {
    () => {
        "c.id, c.owner_id, p.email AS owner_email, c.version, c.created_at_ms, c.archived_at_ms, \
         c.last_entry_at_ms, c.meeting_notes, c.billing_disputes, c.draft_letters, c.open_disputes, \
         c.open_letters, c.archived_entries, c.name, c.contact, c.email, c.telephone, c.address, c.since_day"
    };
}

pub(crate) use client_columns;

pub(crate) fn person_ref(id: i64, email: &str) -> Result<PersonRef, StoreError> {
    let email = email
        .parse()
        .map_err(|error| StoreError::Corrupt { what: "a person's address", why: format!("{error}") })?;
    Ok(PersonRef { id: PersonId(id), email })
}

pub(crate) fn count(stored: i64) -> Result<u64, StoreError> {
    u64::try_from(stored)
        .map_err(|_| StoreError::Corrupt { what: "a count", why: format!("{stored} is negative") })
}

impl StoredClient {
    pub(crate) fn into_client(self) -> Result<Client, StoreError> {
        let (name, facts) = self.facts.into_facts()?;
        Ok(Client {
            id: ClientId(self.id),
            name,
            facts,
            owner: person_ref(self.owner_id, &self.owner_email)?,
            version: Version(self.version),
            created_at: UnixMillis(self.created_at_ms),
            archived_at: self.archived_at_ms.map(UnixMillis),
            last_entry_at: Some(self.last_entry_at_ms).filter(|at| *at != NO_ENTRY_MS).map(UnixMillis),
        })
    }

    pub(crate) fn into_line(self) -> Result<ClientLine, StoreError> {
        let counted = |stored: i64| u32::try_from(count(stored)?).map_err(|_| StoreError::SumTooLarge);
        let (open_disputes, open_letters) = (counted(self.open_disputes)?, counted(self.open_letters)?);
        Ok(ClientLine { client: self.into_client()?, open_disputes, open_letters })
    }

    pub(crate) fn into_record(
        self,
        entries: Vec<Entry>,
        has_more: bool,
        looks: Vec<Look>,
    ) -> Result<ClientRecord, StoreError> {
        let counts = self.entry_counts()?;
        Ok(ClientRecord { client: self.into_client()?, entries, has_more, counts, looks })
    }

    fn entry_counts(&self) -> Result<EntryCounts, StoreError> {
        Ok(EntryCounts {
            meeting_notes: count(self.meeting_notes)?,
            billing_disputes: count(self.billing_disputes)?,
            draft_letters: count(self.draft_letters)?,
            open_disputes: count(self.open_disputes)?,
            open_letters: count(self.open_letters)?,
            archived: count(self.archived_entries)?,
        })
    }
}

const REMOVED_AT: &str = "SELECT removed_at_ms FROM people WHERE id = $1";

/// Nobody changes what is held until the transaction ends: SQLite has one writer anyway.
pub(crate) trait HoldClients {
    const TO_READ: &'static str;
    const TO_CHANGE: &'static str;
}

macro_rules! held {
    ($to_read:literal, $to_change:literal) => {
        const TO_READ: &'static str = concat!(
            "SELECT ",
            client_columns!(),
            " FROM clients c JOIN people p ON p.id = c.owner_id WHERE c.id = $1",
            $to_read
        );
        const TO_CHANGE: &'static str = concat!(
            "SELECT ",
            client_columns!(),
            " FROM clients c JOIN people p ON p.id = c.owner_id WHERE c.id = $1",
            $to_change
        );
    };
}

impl HoldClients for SqliteConnection {
    held!("", "");
}

impl HoldClients for PgConnection {
    held!(" FOR SHARE OF c", " FOR NO KEY UPDATE OF c");
}

#[async_trait::async_trait]
pub(crate) trait HeldClients {
    /// The client that the permit is for, held for reading. None where there is no such client, and was none when the policy
    /// was asked. `OwnerChanged` where it is not whose it was.
    async fn hold_to_read<A: Act>(&mut self, permit: &Permit<A>) -> Result<Option<StoredClient>, Stopped>;

    /// The same, held for changing.
    async fn hold_to_change<A: Act>(&mut self, permit: &Permit<A>) -> Result<Option<StoredClient>, Stopped>;

    /// Refuses with `NoSuchPerson` somebody who is not in the firm, or not any more. They are not held: whoever is removed
    /// a moment later keeps their clients until those are given to somebody else, and signing in must not wait for an import.
    async fn must_be_member(&mut self, person: PersonId) -> Result<(), Stopped>;

    /// Refuses with `NoSuchPerson` somebody who never was in the firm.
    async fn must_be_known(&mut self, person: PersonId) -> Result<(), Stopped>;
}

fn still_owned<A: Act>(
    permit: &Permit<A>,
    found: Option<StoredClient>,
) -> Result<Option<StoredClient>, Stopped> {
    match (permit.client(), permit.owner(), found) {
        (_, None, None) => Ok(None),
        (_, Some(owner), Some(client)) if client.owner_id == owner.0 => Ok(Some(client)),
        (client, _, _) => Err(StoreError::OwnerChanged(client.unwrap_or(ClientId(0))).into()),
    }
}

/// No client has this number.
fn number<A: Act>(permit: &Permit<A>) -> i64 {
    permit.client().map_or(i64::MIN, |client| client.0)
}

for_both_connections! {
    impl HeldClients {
        async fn hold_to_read<A: Act>(&mut self, permit: &Permit<A>) -> Result<Option<StoredClient>, Stopped> {
            let found = sqlx::query_as(Self::TO_READ).bind(number(permit)).fetch_optional(&mut *self).await?;
            still_owned(permit, found)
        }

        async fn hold_to_change<A: Act>(&mut self, permit: &Permit<A>) -> Result<Option<StoredClient>, Stopped> {
            let found = sqlx::query_as(Self::TO_CHANGE).bind(number(permit)).fetch_optional(&mut *self).await?;
            still_owned(permit, found)
        }

        async fn must_be_member(&mut self, person: PersonId) -> Result<(), Stopped> {
            let found: Option<Option<i64>> =
                sqlx::query_scalar(REMOVED_AT).bind(person.0).fetch_optional(&mut *self).await?;
            match found {
                Some(None) => Ok(()),
                _ => Err(StoreError::NoSuchPerson(person).into()),
            }
        }

        async fn must_be_known(&mut self, person: PersonId) -> Result<(), Stopped> {
            let found: Option<Option<i64>> =
                sqlx::query_scalar(REMOVED_AT).bind(person.0).fetch_optional(&mut *self).await?;
            found.map(|_| ()).ok_or_else(|| StoreError::NoSuchPerson(person).into())
        }
    }
}
