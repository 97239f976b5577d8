//! How clients come into being, one from a form or many from a file: with their first version, the words that they are found
//! by, the entries that they bring along, and the decisions that allowed them.

use crate::NewClient;
use crate::audit::chain::AuditChain;
use crate::audit::step::Stopped;
use crate::clients::entries::{Entries, NewEntryCounts, leave_room_for};
use crate::clients::rows::{HeldClients, NO_ENTRY_MS};
use crate::clients::search::{ClientWords, WordRow, sort_name, words_of};
use crate::db::both::{Statement, for_both_connections};
use crate::{NewEntry, StoreError};
use chancery_domain::{AuditRow, ClientId, EntryId, PersonId, Version, WriterId};
use chancery_policy::{CreateClient, Permit};
use sqlx::{PgConnection, SqliteConnection};
use std::collections::BTreeSet;

/// Clients that are added together: far within the databases' bounds on parameters, and in a moment.
pub(crate) const MAX_CLIENTS_AT_ONCE: usize = 500;

/// What makes a database ready for very many rows in one transaction, and what ends that.
pub(crate) trait ManyRows {
    const BEGIN_MANY: &'static str;
    const END_MANY: &'static str;
}

/// The indexes are written all over. With SQLite's 2 MB of pages at hand, each is read and written again and again; these are
/// 256 MB, which are given back.
impl ManyRows for SqliteConnection {
    const BEGIN_MANY: &'static str = "PRAGMA cache_size = -262144";
    const END_MANY: &'static str = "PRAGMA cache_size = -2000; PRAGMA shrink_memory";
}

/// PostgreSQL has memory of its own.
impl ManyRows for PgConnection {
    const BEGIN_MANY: &'static str = "";
    const END_MANY: &'static str = "";
}

/// How the next numbers of a table are drawn.
trait DrawNumbers {
    const DRAW: &'static str;
}

/// There is one writer, so those that follow the last one are free. Adding the rows moves it on.
impl DrawNumbers for SqliteConnection {
    const DRAW: &'static str = "WITH RECURSIVE drawn (n) AS \
        (SELECT 1 UNION ALL SELECT n + 1 FROM drawn WHERE n < $2) \
        SELECT seq + n FROM sqlite_sequence, drawn WHERE name = $1";
}

impl DrawNumbers for PgConnection {
    const DRAW: &'static str =
        "SELECT nextval(pg_get_serial_sequence($1, 'id')) FROM generate_series(CAST(1 AS BIGINT), $2)";
}

#[async_trait::async_trait]
pub(crate) trait NewClients {
    /// Says that very many rows are to come, or that they have come.
    async fn expect_many(&mut self, are_to_come: bool) -> Result<(), Stopped>;

    /// The next numbers of a table, in order.
    async fn draw_numbers(&mut self, table: &'static str, numbers: usize) -> Result<Vec<i64>, Stopped>;

    /// Adds the clients and what belongs to them. Gives their numbers, in order.
    async fn add_clients(
        &mut self,
        writer: WriterId,
        new: &[(Permit<CreateClient>, NewClient)],
    ) -> Result<Vec<ClientId>, Stopped>;

    async fn insert_clients(&mut self, new: &[Numbered<'_>]) -> Result<(), Stopped>;
}

/// A client that is new, with the number that was drawn for it.
pub(crate) struct Numbered<'a> {
    id: ClientId,
    owner: PersonId,
    permit: &'a Permit<CreateClient>,
    new: &'a NewClient,
}

impl Numbered<'_> {
    fn since_day(&self) -> Option<i64> {
        self.new.facts.since.map(|day| i64::from(day.0))
    }

    fn audit_row(&self) -> AuditRow {
        let mut row = self.permit.to_audit_row();
        row.asked.client = Some(self.id);
        row
    }
}

for_both_connections! {
    impl NewClients {
        async fn expect_many(&mut self, are_to_come: bool) -> Result<(), Stopped> {
            let statement = if are_to_come { Self::BEGIN_MANY } else { Self::END_MANY };
            sqlx::raw_sql(statement).execute(&mut *self).await?;
            Ok(())
        }

        async fn draw_numbers(&mut self, table: &'static str, numbers: usize) -> Result<Vec<i64>, Stopped> {
            let wanted = i64::try_from(numbers).unwrap_or(i64::MAX);
            let mut drawn: Vec<i64> =
                sqlx::query_scalar(Self::DRAW).bind(table).bind(wanted).fetch_all(&mut *self).await?;
            drawn.sort_unstable();
            match drawn.len() == numbers {
                true => Ok(drawn),
                false => Err(StoreError::Corrupt { what: "the last number given", why: format!("of {table}") }.into()),
            }
        }

        async fn add_clients(
            &mut self,
            writer: WriterId,
            new: &[(Permit<CreateClient>, NewClient)],
        ) -> Result<Vec<ClientId>, Stopped> {
            // A permit to make a client is always for an owner. Numbers begin with 1, so 0 is nobody's.
            let owner = |permit: &Permit<CreateClient>| permit.owner().unwrap_or(PersonId(0));
            let owners: BTreeSet<PersonId> = new.iter().map(|(permit, _)| owner(permit)).collect();
            for owner in &owners {
                self.must_be_member(*owner).await?;
            }
            let entries = || new.iter().flat_map(|(_, new)| &new.entries);
            let authors: BTreeSet<PersonId> = entries().map(|entry| entry.author).collect();
            for author in authors.difference(&owners) {
                self.must_be_known(*author).await?;
            }
            for (_, new) in new {
                leave_room_for(&new.name, 0, new.entries.len())?;
            }

            let numbers = self.draw_numbers("clients", new.len()).await?;
            let numbered: Vec<Numbered<'_>> = numbers
                .into_iter()
                .zip(new)
                .map(|(id, (permit, new))| Numbered { id: ClientId(id), owner: owner(permit), permit, new })
                .collect();
            self.insert_clients(&numbered).await?;

            let words = |client: &Numbered<'_>| {
                let (id, owner, is_archived) = (client.id, client.owner, client.new.is_archived);
                let row = move |word| WordRow { client: id, word, owner, is_archived };
                words_of(id, &client.new.name, &client.new.facts).into_iter().map(row)
            };
            let words: Vec<WordRow> = numbered.iter().flat_map(words).collect();
            self.add_words(&words).await?;

            let entry_numbers = match entries().count() {
                0 => Vec::new(),
                numbers => self.draw_numbers("entries", numbers).await?,
            };
            let mut entry_numbers = entry_numbers.into_iter().map(EntryId);
            // Those of one decision are added together; clients of one file share theirs but for the number.
            let mut together: Vec<(EntryId, ClientId, &NewEntry)> = Vec::new();
            for (place, client) in numbered.iter().enumerate() {
                together.extend(entry_numbers.by_ref().zip(&client.new.entries).map(|(id, entry)| (id, client.id, entry)));
                let (asked, next) = (client.permit.asked(), numbered.get(place + 1));
                let is_last = next.is_none_or(|next| {
                    let next = next.permit.asked();
                    (next.by, next.at) != (asked.by, asked.at)
                });
                if is_last {
                    self.insert_entries(asked, &together).await?;
                    together.clear();
                }
            }

            let decisions: Vec<AuditRow> = numbered.iter().map(Numbered::audit_row).collect();
            self.link(writer, &decisions).await?;
            Ok(numbered.iter().map(|client| client.id).collect())
        }

        async fn insert_clients(&mut self, new: &[Numbered<'_>]) -> Result<(), Stopped> {
            let mut add = Statement::<Self>::new(
                "INSERT INTO clients (id, name, sort_name, contact, email, telephone, address, since_day, owner_id, \
                 version, created_at_ms, archived_at_ms, is_archived, last_entry_at_ms, meeting_notes, billing_disputes, \
                 draft_letters, open_disputes, open_letters, archived_entries) ",
            );
            add.push_values(new, |mut columns, client| {
                let NewClient { name, facts, entries, is_archived } = client.new;
                let (at, counts) = (client.permit.asked().at, NewEntryCounts::of(entries));
                columns
                    .push_bind(client.id.0)
                    .push_bind(name.as_str())
                    .push_bind(sort_name(name))
                    .push_bind(facts.contact.as_str())
                    .push_bind(facts.email.as_str())
                    .push_bind(facts.telephone.as_str())
                    .push_bind(facts.address.as_str())
                    .push_bind(client.since_day())
                    .push_bind(client.owner.0)
                    .push_bind(Version::FIRST.0)
                    .push_bind(at.0)
                    .push_bind(is_archived.then_some(at.0))
                    .push_bind(*is_archived)
                    .push_bind(counts.last_at_ms.unwrap_or(NO_ENTRY_MS))
                    .push_bind(counts.meeting_notes)
                    .push_bind(counts.billing_disputes)
                    .push_bind(counts.draft_letters)
                    .push_bind(counts.open_disputes)
                    .push_bind(counts.open_letters)
                    .push_bind(counts.archived_entries);
            });
            add.build().persistent(new.len() == 1).execute(&mut *self).await?;
            let mut keep = Statement::<Self>::new(
                "INSERT INTO client_versions (client_id, version, name, contact, email, telephone, address, since_day, \
                 owner_id, is_archived, by_id, at_ms) ",
            );
            keep.push_values(new, |mut columns, client| {
                let (facts, asked) = (&client.new.facts, client.permit.asked());
                columns
                    .push_bind(client.id.0)
                    .push_bind(Version::FIRST.0)
                    .push_bind(client.new.name.as_str())
                    .push_bind(facts.contact.as_str())
                    .push_bind(facts.email.as_str())
                    .push_bind(facts.telephone.as_str())
                    .push_bind(facts.address.as_str())
                    .push_bind(client.since_day())
                    .push_bind(client.owner.0)
                    .push_bind(client.new.is_archived)
                    .push_bind(asked.by.person().map(|person| person.0))
                    .push_bind(asked.at.0);
            });
            keep.build().persistent(new.len() == 1).execute(&mut *self).await?;
            Ok(())
        }
    }
}
