//! How clients come into being, one from a form or many from a file: with their first version, the words that they are found
//! by, and the entries that they bring along.

use crate::ClientError;
use crate::DbError;
use crate::audit::step::AuditedSteps;
use crate::clients::entries::{NewEntryCounts, insert_entries, leave_room_for};
use crate::clients::rows::{NO_ENTRY_MS, must_be_known, must_be_member};
use crate::clients::search::{WordRow, add_words, sort_name, words_of};
use crate::clients::types::{NewClient, NewEntry};
use crate::db::Db;
use crate::db::{Conn, Dialect, Statement, TxError, query};
use chancery_domain::{AuditRow, ClientId, EntryId, PersonId, Version};
use chancery_policy::{CreateClient, Permit};
use std::collections::BTreeSet;
use std::time::Duration;

/// Clients that are added together: far within the databases' bounds on parameters, and in a moment.
pub(crate) const MAX_CLIENTS_AT_ONCE: usize = 500;

/// There is one writer, so those that follow the last number are free. Adding the rows moves it on.
const DRAW_SQLITE: &str = "WITH RECURSIVE drawn (n) AS \
    (SELECT 1 UNION ALL SELECT n + 1 FROM drawn WHERE n < $2) \
    SELECT seq + n FROM sqlite_sequence, drawn WHERE name = $1";
const DRAW_POSTGRES: &str =
    "SELECT nextval(pg_get_serial_sequence($1, 'id')) FROM generate_series(CAST(1 AS BIGINT), $2)";

/// Makes the database ready for very many rows in one transaction. PostgreSQL has memory of its own.
///
/// The indexes are written all over. With SQLite's 2 MB of pages at hand, each is read and written again and again; these are
/// 256 MB, which `end_many` gives back.
pub(crate) async fn begin_many(conn: &mut Conn<'_>) -> Result<(), sqlx::Error> {
    if conn.dialect() == Dialect::Sqlite {
        query("PRAGMA cache_size = -262144").persistent(false).execute(conn).await?;
    }
    Ok(())
}

pub(crate) async fn end_many(conn: &mut Conn<'_>) -> Result<(), sqlx::Error> {
    if conn.dialect() == Dialect::Sqlite {
        query("PRAGMA cache_size = -2000").persistent(false).execute(conn).await?;
        query("PRAGMA shrink_memory").persistent(false).execute(conn).await?;
    }
    Ok(())
}

/// However large a file is, whoever waits for it this long has something to look into.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(3_600);

const ANY: &str = "SELECT COUNT(*) FROM (SELECT id FROM clients LIMIT 1) AS some_client";

/// The next numbers of a table, in order.
pub(crate) async fn draw_numbers(
    conn: &mut Conn<'_>,
    table: &'static str,
    numbers: usize,
) -> Result<Vec<i64>, TxError<ClientError>> {
    let draw = query(match conn.dialect() {
        Dialect::Sqlite => DRAW_SQLITE,
        Dialect::Postgres => DRAW_POSTGRES,
    });
    let wanted = i64::try_from(numbers).unwrap_or(i64::MAX);
    let mut drawn: Vec<i64> = draw.bind(table).bind(wanted).fetch_all(conn).await?;
    drawn.sort_unstable();
    match drawn.len() == numbers {
        true => Ok(drawn),
        false => Err(DbError::Corrupt { what: "the last number given", why: format!("of {table}") }.into()),
    }
}

/// A client that is new, with the number that was drawn for it.
struct Numbered<'a> {
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
        self.permit.to_audit_row_of(self.id)
    }

    fn words(&self) -> impl Iterator<Item = WordRow> + use<> {
        let (client, owner, is_archived) = (self.id, self.owner, self.new.is_archived);
        let words = words_of(client, &self.new.name, &self.new.facts);
        words.into_iter().map(move |word| WordRow { client, word, owner, is_archived })
    }

    /// Whether the other was decided for the same principal at the same time; clients of one file are.
    fn is_decided_with(&self, other: &Self) -> bool {
        let (one, other) = (self.permit.asked(), other.permit.asked());
        (one.by, one.at) == (other.by, other.at)
    }
}

/// Adds the clients and what belongs to them. Gives the decisions that allowed them, with their numbers, in order.
pub(crate) async fn add_clients(
    conn: &mut Conn<'_>,
    new: &[(Permit<CreateClient>, NewClient)],
) -> Result<Vec<AuditRow>, TxError<ClientError>> {
    // A permit to create a client is always for an owner. Numbers begin with 1, so 0 is nobody's.
    let owner = |permit: &Permit<CreateClient>| permit.owner().unwrap_or(PersonId(0));
    let owners: BTreeSet<PersonId> = new.iter().map(|(permit, _)| owner(permit)).collect();
    for owner in &owners {
        must_be_member(conn, *owner).await?;
    }
    let entries = || new.iter().flat_map(|(_, new)| &new.entries);
    let authors: BTreeSet<PersonId> = entries().map(|entry| entry.author).collect();
    for author in authors.difference(&owners) {
        must_be_known(conn, *author).await?;
    }
    for (_, new) in new {
        leave_room_for(&new.name, 0, new.entries.len())?;
    }

    let numbered: Vec<Numbered<'_>> = draw_numbers(conn, "clients", new.len())
        .await?
        .into_iter()
        .zip(new)
        .map(|(id, (permit, new))| Numbered { id: ClientId(id), owner: owner(permit), permit, new })
        .collect();
    insert_clients(conn, &numbered).await?;
    let words: Vec<WordRow> = numbered.iter().flat_map(Numbered::words).collect();
    add_words(conn, &words).await?;

    let entry_numbers = match entries().count() {
        0 => Vec::new(),
        numbers => draw_numbers(conn, "entries", numbers).await?,
    };
    let mut entry_numbers = entry_numbers.into_iter().map(EntryId);
    for together in numbered.chunk_by(Numbered::is_decided_with) {
        let mut entries: Vec<(EntryId, ClientId, &NewEntry)> = Vec::new();
        for client in together {
            let numbers = entry_numbers.by_ref().take(client.new.entries.len());
            entries.extend(numbers.zip(&client.new.entries).map(|(id, entry)| (id, client.id, entry)));
        }
        if let Some(first) = together.first() {
            insert_entries(conn, first.permit.asked(), &entries).await?;
        }
    }
    Ok(numbered.iter().map(Numbered::audit_row).collect())
}

async fn insert_clients(conn: &mut Conn<'_>, new: &[Numbered<'_>]) -> Result<(), sqlx::Error> {
    let mut add = Statement::new(
        "INSERT INTO clients (id, name, sort_name, contact, email, telephone, address, since_day, owner_id, \
         version, created_at_ms, archived_at_ms, is_archived, last_entry_at_ms, meeting_notes, billing_disputes, \
         draft_letters, open_disputes, open_letters, archived_entries) ",
    );
    add.push_values(new, |client| {
        let NewClient { name, facts, entries, is_archived } = client.new;
        let (at, counts) = (client.permit.asked().at, NewEntryCounts::of(entries));
        [
            client.id.0.into(),
            name.as_str().into(),
            sort_name(name).into(),
            facts.contact.as_str().into(),
            facts.email.as_str().into(),
            facts.telephone.as_str().into(),
            facts.address.as_str().into(),
            client.since_day().into(),
            client.owner.0.into(),
            Version::FIRST.0.into(),
            at.0.into(),
            is_archived.then_some(at.0).into(),
            (*is_archived).into(),
            counts.last_at_ms.unwrap_or(NO_ENTRY_MS).into(),
            counts.meeting_notes.into(),
            counts.billing_disputes.into(),
            counts.draft_letters.into(),
            counts.open_disputes.into(),
            counts.open_letters.into(),
            counts.archived_entries.into(),
        ]
    });
    add.build().persistent(new.len() == 1).execute(conn).await?;
    let mut add_versions = Statement::new(
        "INSERT INTO client_versions (client_id, version, name, contact, email, telephone, address, since_day, \
         owner_id, is_archived, by_id, at_ms) ",
    );
    add_versions.push_values(new, |client| {
        let (facts, asked) = (&client.new.facts, client.permit.asked());
        [
            client.id.0.into(),
            Version::FIRST.0.into(),
            client.new.name.as_str().into(),
            facts.contact.as_str().into(),
            facts.email.as_str().into(),
            facts.telephone.as_str().into(),
            facts.address.as_str().into(),
            client.since_day().into(),
            client.owner.0.into(),
            client.new.is_archived.into(),
            asked.by.person().map(|person| person.0).into(),
            asked.at.0.into(),
        ]
    });
    add_versions.build().persistent(new.len() == 1).execute(conn).await?;
    Ok(())
}

/// The numbers of clients that were just created.
pub(crate) fn created(decisions: &[AuditRow]) -> Vec<ClientId> {
    decisions.iter().filter_map(AuditRow::client).collect()
}

/// Adds the clients of a file.
#[derive(Clone)]
pub struct ClientImports {
    pub(crate) db: Db,
    pub(crate) audited: AuditedSteps,
}

impl ClientImports {
    /// All or none, in their order; calls `progress` with how many are done. Gives their numbers.
    pub async fn import_clients(
        &self,
        clients: Vec<(Permit<CreateClient>, NewClient)>,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<Vec<ClientId>, ClientError> {
        let args = (&clients, progress);
        self.audited
            .run_long_then_link(IMPORT_TIMEOUT, &args, |conn, (clients, progress)| {
                Box::pin(async move {
                    begin_many(conn).await?;
                    let mut decisions = Vec::with_capacity(clients.len());
                    for some in clients.chunks(MAX_CLIENTS_AT_ONCE) {
                        decisions.extend(add_clients(conn, some).await?);
                        progress(decisions.len() as u64);
                    }
                    end_many(conn).await?;
                    Ok((created(&decisions), decisions))
                })
            })
            .await
    }

    /// Whether the firm has any client at all.
    pub async fn has_clients(&self) -> Result<bool, ClientError> {
        let found: i64 = self.db.fetch_one(query(ANY)).await?;
        Ok(found > 0)
    }
}
