//! What waits for a person: disputes that are due, unsent letters, and the clients that they viewed last. It is read in
//! two steps. The first records the decision to list clients and finds the numbers of what waits. The second reads titles,
//! amounts and names, with a permit for each client. Permits of another request or for another client read nothing. One
//! audit row covers both steps: a row for each client would fill the log with records that were not opened.
//!
//! Statements for one owner start with that owner's clients, so that their time does not depend on other people's.

use crate::ClientError;
use crate::audit::principal::ensure_principal_unchanged;
use crate::clients::list_filter::restrict_owner;
use crate::clients::records::Clients;
use crate::clients::rows::SELECT_CLIENTS;
use crate::clients::types::{
    ClientOwner, ClientSummary, DueDispute, MAX_RECENT_CLIENTS, MAX_WORK_ITEMS, RecentClient, RecordedWork,
    UnsentLetter, WorkEntry, WorkItem, WorkQuery, WorkSummary,
};
use crate::db::{FromRow, Query, QueryError, Row, Statement, corrupt, from_row};
use chancery_domain::{ClientId, Day, DisputeDetails, EntryKind, PersonId};
use chancery_policy::{ListClients, Permit, ReadClient};
use std::collections::HashMap;

/// The columns of `WorkEntry`, from entries `e` and clients `c`.
const SELECT_NUMBERS: &str = "SELECT e.id AS entry_id, c.id AS client_id, c.owner_id";

/// The columns of `WorkItem`, from entries `e`, clients `c` and their owners `p`. CROSS JOIN makes SQLite start with the
/// entries: otherwise it reads all clients of the firm for a list of this length.
const SELECT_ITEMS: &str = "SELECT e.id AS entry_id, e.title, e.at_ms, e.amount_minor, e.due_day, c.id AS client_id, \
    c.name, c.owner_id, p.email AS owner_email FROM entries e CROSS JOIN clients c CROSS JOIN people p \
    WHERE c.id = e.client_id AND p.id = c.owner_id AND e.id IN ";

impl FromRow for WorkEntry {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        let client = ClientOwner { client: row.get("client_id")?, owner: row.get("owner_id")? };
        Ok(Self { client, entry: row.get("entry_id")? })
    }
}

from_row!(WorkItem {
    client: "client_id",
    client_name: "name",
    owner: person("owner_id", "owner_email"),
    entry: "entry_id",
    title
});

impl FromRow for DueDispute {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        let DisputeDetails { amount, due } = DisputeDetails::from_row(row)?;
        let due = due.ok_or_else(|| corrupt("a due dispute", "it has no due date"))?;
        Ok(Self { item: WorkItem::from_row(row)?, amount, due })
    }
}

from_row!(UnsentLetter { item: WorkItem::from_row, at: "at_ms" });

from_row!(RecentClient { summary: ClientSummary::from_row, viewed_at: "last_viewed_at_ms" });

/// A client's earliest dispute is not later than any other of its disputes. So the first disputes of the firm are among
/// those of as many clients.
fn find_due(owner: Option<PersonId>, due_by: Day) -> Query {
    let (due_by, limit) = (i64::from(due_by.0), i64::from(MAX_WORK_ITEMS));
    let mut read = Statement::new(SELECT_NUMBERS);
    read.push(" FROM (SELECT c.id, c.owner_id FROM clients c WHERE c.is_archived = ").push_bind(false);
    if let Some(owner) = owner {
        read.push(" AND c.owner_id = ").push_bind(owner.0);
    }
    read.push(" AND c.next_due_day <= ").push_bind(due_by);
    read.push(" ORDER BY c.next_due_day, c.id LIMIT ").push_bind(limit);
    read.push(") AS c JOIN entries e ON e.client_id = c.id WHERE e.is_archived = ").push_bind(false);
    read.push(" AND e.kind = ").push_bind(EntryKind::BillingDispute.as_str());
    read.push(" AND e.is_open = ").push_bind(true).push(" AND e.due_day <= ").push_bind(due_by);
    read.push(" ORDER BY e.due_day, e.id LIMIT ").push_bind(limit);
    read.build()
}

/// CROSS JOIN makes SQLite start with the first table: the owner's clients with unsent letters, or the firm's unsent
/// letters.
fn find_letters(owner: Option<PersonId>) -> Query {
    let mut read = Statement::new(SELECT_NUMBERS);
    match owner {
        Some(owner) => {
            read.push(" FROM clients c CROSS JOIN entries e WHERE e.client_id = c.id AND c.open_letters > 0");
            read.push(" AND c.owner_id = ").push_bind(owner.0);
            read.push(" AND e.kind = ").push_bind(EntryKind::DraftLetter.as_str());
            read.push(" AND e.is_open = ").push_bind(true).push(" AND e.is_archived = ").push_bind(false);
        }
        // The condition of the index `entries_drafts`, as it is written there.
        None => {
            read.push(" FROM entries e CROSS JOIN clients c WHERE c.id = e.client_id");
            read.push(" AND e.kind = 'draft_letter' AND e.is_open AND NOT e.is_archived");
        }
    }
    read.push(" AND c.is_archived = ").push_bind(false);
    read.push(" ORDER BY e.at_ms DESC, e.id DESC LIMIT ").push_bind(i64::from(MAX_WORK_ITEMS));
    read.build()
}

/// CROSS JOIN makes SQLite start with the views.
fn find_recent(viewer: PersonId, owner: Option<PersonId>) -> Query {
    let mut read = Statement::new("SELECT c.id, c.owner_id FROM record_views l CROSS JOIN clients c ");
    read.push("WHERE c.id = l.client_id AND l.person_id = ").push_bind(viewer.0);
    read.push(" AND c.is_archived = ").push_bind(false);
    if let Some(owner) = owner {
        read.push(" AND c.owner_id = ").push_bind(owner.0);
    }
    read.push(" ORDER BY l.last_viewed_at_ms DESC, l.client_id LIMIT ");
    read.push_bind(i64::from(MAX_RECENT_CLIENTS));
    read.build()
}

/// Those of the entries that still wait.
fn select_items(entries: &[i64]) -> Statement {
    let mut read = Statement::new(SELECT_ITEMS);
    read.push_list(entries.iter().copied());
    read.push(" AND c.is_archived = ").push_bind(false).push(" AND e.is_archived = ").push_bind(false);
    read.push(" AND e.is_open = ").push_bind(true);
    read
}

fn select_disputes(entries: &[i64], due_by: Day) -> Query {
    let mut read = select_items(entries);
    read.push(" AND e.due_day <= ").push_bind(i64::from(due_by.0)).push(" ORDER BY e.due_day, e.id");
    read.build().persistent(false)
}

fn select_letters(entries: &[i64]) -> Query {
    let mut read = select_items(entries);
    read.push(" ORDER BY e.at_ms DESC, e.id DESC");
    read.build().persistent(false)
}

fn select_recent(viewer: PersonId, clients: &[i64]) -> Query {
    let mut read = Statement::new(SELECT_CLIENTS);
    read.push(", l.last_viewed_at_ms FROM record_views l CROSS JOIN clients c CROSS JOIN people p ");
    read.push("WHERE c.id = l.client_id AND p.id = c.owner_id AND l.person_id = ").push_bind(viewer.0);
    read.push(" AND c.is_archived = ").push_bind(false);
    read.push(" AND l.client_id IN ").push_list(clients.iter().copied());
    read.push(" ORDER BY l.last_viewed_at_ms DESC, l.client_id");
    read.build().persistent(false)
}

/// The owner of each client that may be read, as the policy saw it.
struct PermittedClients(HashMap<ClientId, PersonId>);

impl PermittedClients {
    fn of(work: &RecordedWork, permits: &[Permit<ReadClient>]) -> Self {
        let covered = permits.iter().filter(|permit| work.covers(permit));
        Self(covered.filter_map(|permit| Some((permit.client()?, permit.owner()?))).collect())
    }

    fn has(&self, client: ClientId, owner: PersonId) -> bool {
        self.0.get(&client) == Some(&owner)
    }

    fn entries(&self, found: &[WorkEntry]) -> Vec<i64> {
        let permitted = found.iter().filter(|found| self.has(found.client.client, found.client.owner));
        permitted.map(|found| found.entry.0).collect()
    }

    fn clients(&self, found: &[ClientOwner]) -> Vec<i64> {
        let permitted = found.iter().filter(|found| self.has(found.client, found.owner));
        permitted.map(|found| found.client.0).collect()
    }

    /// Whether the item's client still has the owner that the policy saw.
    fn has_item(&self, item: &WorkItem) -> bool {
        self.has(item.client, item.owner.id)
    }
}

impl Clients {
    /// Records the decision, and finds what waits. Returns nothing of a record.
    pub async fn find_work(
        &self,
        permit: Permit<ListClients>,
        query: WorkQuery,
    ) -> Result<RecordedWork, ClientError> {
        self.audited.record(vec![permit.to_audit_row()]).await?;
        let WorkQuery { owner, due_by } = query;
        let empty = RecordedWork::empty(permit.access_request(), due_by);
        let Some(owner) = restrict_owner(permit.scope(), owner) else { return Ok(empty) };
        self.db
            .read(move |tx| {
                ensure_principal_unchanged::<ClientError>(tx, permit.by())?;
                let mut work = empty.clone();
                work.disputes = find_due(owner, due_by).fetch_all(tx)?;
                work.letters = find_letters(owner).fetch_all(tx)?;
                if let Some(viewer) = permit.by().person() {
                    work.recent = find_recent(viewer, owner).fetch_all(tx)?;
                }
                Ok(work)
            })
            .await
    }

    /// Reads what waits, of the clients with a permit. A client with a new owner is left out, and so is what was done in
    /// the meantime.
    pub async fn read_work(
        &self,
        work: &RecordedWork,
        permits: Vec<Permit<ReadClient>>,
    ) -> Result<WorkSummary, ClientError> {
        let permitted = PermittedClients::of(work, &permits);
        let work = work.clone();
        self.db
            .read(move |tx| {
                ensure_principal_unchanged::<ClientError>(tx, work.access_request.by)?;
                let mut summary = WorkSummary::default();
                let disputes = permitted.entries(&work.disputes);
                if !disputes.is_empty() {
                    summary.disputes = select_disputes(&disputes, work.due_by).fetch_all(tx)?;
                    summary.disputes.retain(|dispute| permitted.has_item(&dispute.item));
                }
                let letters = permitted.entries(&work.letters);
                if !letters.is_empty() {
                    summary.letters = select_letters(&letters).fetch_all(tx)?;
                    summary.letters.retain(|letter| permitted.has_item(&letter.item));
                }
                let recent = permitted.clients(&work.recent);
                if let Some(viewer) = work.access_request.by.person().filter(|_| !recent.is_empty()) {
                    summary.recent = select_recent(viewer, &recent).fetch_all(tx)?;
                    summary.recent.retain(|recent| {
                        let client = &recent.summary.client;
                        permitted.has(client.id, client.owner.id)
                    });
                }
                Ok(summary)
            })
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;
    use crate::db::query_plan;

    #[tokio::test]
    async fn what_waits_is_found_by_its_index() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_file(&folder.path().join("chancery.db")).await.unwrap();
        let (viewer, owner) = (PersonId(1), Some(PersonId(2)));
        let entries: Vec<i64> = (1..=i64::from(MAX_WORK_ITEMS)).collect();
        for (query, index) in [
            (find_due(None, Day(20_770)), "INDEX clients_due "),
            (find_due(owner, Day(20_770)), "INDEX clients_due_of_owner "),
            (find_letters(None), "INDEX entries_drafts"),
            (find_letters(owner), "INDEX clients_drafts_of_owner "),
            (find_recent(viewer, None), "INDEX record_views_of_person "),
            (find_recent(viewer, owner), "INDEX record_views_of_person "),
            (select_disputes(&entries, Day(20_770)), "SEARCH e USING INTEGER PRIMARY KEY"),
            (select_letters(&entries), "SEARCH e USING INTEGER PRIMARY KEY"),
        ] {
            let plan = query_plan(&store.db, &query).await;
            assert!(plan.iter().any(|(_, _, detail)| detail.contains(index)), "{index}: {plan:?}");
        }
        store.close().await;
    }
}
