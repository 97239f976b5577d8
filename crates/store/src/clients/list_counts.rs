//! How many clients a list has. Without a search, `client_counts` knows. A search stops counting where the page and
//! `MAX_COUNTED_ROWS` end, so that one which every client matches costs no more than one with a few pages.

use crate::clients::list_filter::{ListFilter, SearchPlan, push_filter, push_search_terms};
use crate::db::{FromRow, QueryError, Row, Statement, Tx, from_row};
use crate::ledger::batch::to_db_count;
use crate::list_total::{CountLimit, ListTotal};
use chancery_domain::PersonId;

/// Term rows that are read for each match to count: the first attempt suffices if every client has the same word, the
/// second if few terms of each match.
const TERM_ROWS_PER_MATCH: [u64; 2] = [1, 4];

/// Number of clients of one owner.
#[derive(Clone)]
pub(super) struct OwnerClientCount {
    pub(super) owner: PersonId,
    pub(super) email: String,
    pub(super) clients: u64,
}

from_row!(OwnerClientCount { owner: "owner_id", email, clients });

/// Clients per owner, ignoring search terms.
pub(super) fn owner_counts(
    tx: &mut Tx<'_>,
    filter: &ListFilter,
) -> Result<Vec<OwnerClientCount>, QueryError> {
    let mut read = Statement::new(
        "SELECT k.owner_id, p.email, k.clients FROM client_counts k JOIN people p ON p.id = k.owner_id \
         WHERE k.clients > 0 AND k.is_archived = ",
    );
    read.push_bind(filter.is_archived);
    if let Some(owner) = filter.owner {
        read.push(" AND k.owner_id = ").push_bind(owner.0);
    }
    read.build().fetch_all(tx)
}

/// Clients per owner that match the search terms, and their total. `owners` are in the order of the list. If there are
/// more than the limit, the owners behind it are left out, and the last one has at least as many as given.
pub(super) fn matching_owner_counts(
    tx: &mut Tx<'_>,
    filter: &ListFilter,
    owners: &[OwnerClientCount],
    limit: CountLimit,
) -> Result<(Vec<OwnerClientCount>, ListTotal), QueryError> {
    let total = limit.total(count_matches(tx, filter, limit)?);
    let ListTotal::MoreThan(max) = total else {
        return Ok((in_order_of(owners, &all_matching_owner_counts(tx, filter)?), total));
    };
    let (mut found, mut counted) = (Vec::new(), 0);
    for owner in owners {
        let of_owner = filter.of_owner(owner.owner);
        let clients = count_matches(tx, &of_owner, CountLimit::UpTo(max - counted))?;
        if clients > 0 {
            found.push(OwnerClientCount { clients, ..owner.clone() });
        }
        counted += clients;
        if counted > max {
            break;
        }
    }
    Ok((found, total))
}

impl FromRow for (PersonId, u64) {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        Ok((row.get("owner_id")?, row.get("clients")?))
    }
}

fn all_matching_owner_counts(
    tx: &mut Tx<'_>,
    filter: &ListFilter,
) -> Result<Vec<(PersonId, u64)>, QueryError> {
    let mut read = Statement::new(
        "SELECT w.owner_id, COUNT(DISTINCT w.client_id) AS clients FROM client_search_terms w WHERE ",
    );
    push_search_terms(&mut read, filter);
    read.push(" GROUP BY w.owner_id");
    read.build().fetch_all(tx)
}

/// The first rows of the terms that match a search.
struct TermRows {
    rows: u64,
    clients: u64,
}

from_row!(TermRows { rows: "term_rows", clients });

/// Number of clients that match the search terms, and at most one more than the limit.
pub(super) fn count_matches(
    tx: &mut Tx<'_>,
    filter: &ListFilter,
    limit: CountLimit,
) -> Result<u64, QueryError> {
    let CountLimit::UpTo(limit) = limit else { return count_all_matches(tx, filter) };
    let enough = limit.saturating_add(1);
    for rows_per_match in TERM_ROWS_PER_MATCH {
        // A limit on distinct clients would not stop PostgreSQL from reading every row first.
        let max_rows = enough.saturating_mul(rows_per_match);
        let mut read = Statement::new(
            "SELECT COUNT(*) AS term_rows, COUNT(DISTINCT f.client_id) AS clients FROM \
             (SELECT w.client_id FROM client_search_terms w WHERE ",
        );
        push_search_terms(&mut read, filter);
        read.push(" LIMIT ").push_bind(to_db_count(max_rows)).push(") AS f");
        let first: TermRows = read.build().fetch_one(tx)?;
        if first.clients > limit || first.rows < max_rows {
            return Ok(first.clients.min(enough));
        }
    }
    // Many terms of few clients match: a short search term, or long records.
    Ok(count_all_matches(tx, filter)?.min(enough))
}

fn count_all_matches(tx: &mut Tx<'_>, filter: &ListFilter) -> Result<u64, QueryError> {
    let mut read = Statement::new("SELECT COUNT(DISTINCT w.client_id) FROM client_search_terms w WHERE ");
    push_search_terms(&mut read, filter);
    read.build().fetch_one(tx)
}

/// Number of clients that match the whole filter. Few clients have open disputes, and an index has those.
pub(super) fn count_filtered(tx: &mut Tx<'_>, filter: &ListFilter) -> Result<u64, QueryError> {
    let mut read = Statement::new("SELECT COUNT(*) FROM clients c");
    push_filter(&mut read, filter, SearchPlan::ListScan);
    read.build().fetch_one(tx)
}

/// Clients per owner that match the whole filter, in the order of `owners`.
pub(super) fn filtered_owner_counts(
    tx: &mut Tx<'_>,
    filter: &ListFilter,
    owners: &[OwnerClientCount],
) -> Result<Vec<OwnerClientCount>, QueryError> {
    let mut read = Statement::new("SELECT c.owner_id, COUNT(*) AS clients FROM clients c");
    push_filter(&mut read, filter, SearchPlan::ListScan);
    read.push(" GROUP BY c.owner_id");
    let found: Vec<(PersonId, u64)> = read.build().fetch_all(tx)?;
    Ok(in_order_of(owners, &found))
}

/// The owners who have any, with these numbers of clients.
fn in_order_of(owners: &[OwnerClientCount], found: &[(PersonId, u64)]) -> Vec<OwnerClientCount> {
    let with_clients = |owner: &OwnerClientCount| {
        let (_, clients) = *found.iter().find(|(found, _)| *found == owner.owner)?;
        Some(OwnerClientCount { clients, ..owner.clone() })
    };
    owners.iter().filter_map(with_clients).collect()
}

pub(super) fn sum(owner_counts: &[OwnerClientCount]) -> u64 {
    owner_counts.iter().map(|owner_count| owner_count.clients).sum()
}
