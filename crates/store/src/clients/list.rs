//! The client list. A page scans the index of its order and stops. Totals come from `client_counts`, except for
//! searches and filters. Ordered by owner, per-owner counts tell which owners a page covers; each is one index scan. A
//! search reads the terms of the permitted owners, those of their clients' entries included, but no entry: `matches`
//! reads those.

use crate::clients::rows::{SELECT_CLIENTS, count};
use crate::clients::search::{TermRange, search_ranges};
use crate::clients::types::{
    CLIENTS_PER_PAGE, ClientOrder, ClientPage, ClientQuery, ClientSummary, DisputeFilter, RecordedSearch,
};
use crate::db::{Conn, FromRow, Query, Row, Statement};
use crate::ledger::batch::to_db_count;
use chancery_domain::{AccessRequest, ClientId, PersonId};
use chancery_policy::ClientScope;
use std::collections::BTreeSet;

/// The filter of a list, in terms of columns.
pub(crate) struct ListFilter {
    owner: Option<PersonId>,
    /// The permitted owners who have clients. The index of search terms begins with them.
    owners: Vec<PersonId>,
    disputes: Option<DisputeFilter>,
    is_archived: bool,
    /// Longest first.
    terms: Vec<TermRange>,
}

impl ListFilter {
    /// `None` if nothing can match: the scope excludes the requested owner.
    pub(crate) fn of(scope: ClientScope, query: &ClientQuery) -> Option<Self> {
        let owner = restrict_owner(scope, query.owner)?;
        let mut terms = search_ranges(&query.words);
        // Longer terms match fewer clients.
        terms.sort_by_key(|term| std::cmp::Reverse(term.first.len()));
        let disputes = query.disputes;
        Some(Self { owner, owners: Vec::new(), disputes, is_archived: query.is_archived, terms })
    }

    fn of_owner(&self, owner: PersonId) -> Self {
        Self { owner: Some(owner), owners: vec![owner], terms: self.terms.clone(), ..*self }
    }

    fn of_owners(&self, owner_counts: &[OwnerClientCount]) -> Self {
        let owners = owner_counts.iter().map(|owner_count| owner_count.owner).collect();
        Self { owners, terms: self.terms.clone(), ..*self }
    }
}

/// The owner to filter by, within the scope: `None` if nothing may be shown, `Some(None)` for all owners.
pub(crate) fn restrict_owner(scope: ClientScope, requested: Option<PersonId>) -> Option<Option<PersonId>> {
    match (scope, requested) {
        (ClientScope::Empty, _) => None,
        (ClientScope::All, requested) => Some(requested),
        (ClientScope::OwnedBy(person), Some(requested)) if requested != person => None,
        (ClientScope::OwnedBy(person), _) => Some(Some(person)),
    }
}

/// The sort order within one owner, or of the whole list.
fn order_by(order: ClientOrder) -> &'static str {
    match order {
        ClientOrder::RecentFirst => " ORDER BY c.last_entry_at_ms DESC, c.id",
        ClientOrder::OldestFirst => " ORDER BY c.last_entry_at_ms, c.id DESC",
        ClientOrder::Name | ClientOrder::Owner => " ORDER BY c.sort_name, c.id",
        ClientOrder::NameDescending | ClientOrder::OwnerDescending => " ORDER BY c.sort_name DESC, c.id DESC",
        ClientOrder::Id => " ORDER BY c.id",
        ClientOrder::IdDescending => " ORDER BY c.id DESC",
    }
}

/// How to find the clients that match all search terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SearchPlan {
    /// Look up all matches of the longest term in the word index, then sort: good for few matches.
    IndexLookup,
    /// Scan clients in list order until the page is full: good for many matches.
    ListScan,
}

impl SearchPlan {
    /// A scan finds a match every `all / found` clients.
    fn choose(range: PageRange, found: u64, all: u64) -> Self {
        let walked = u128::from(range.offset + range.limit) * u128::from(all);
        if walked < u128::from(found) * u128::from(found) { Self::ListScan } else { Self::IndexLookup }
    }
}

/// Adds the conditions of a search term on the rows of a table: in the details, and in the entries if it is long enough.
fn push_term<'q>(statement: &mut Statement<'q>, table: &str, term: &'q TermRange) {
    let sources: &[bool] = if term.is_in_entries() { &[false, true] } else { &[false] };
    statement.push(table).push(".in_entries IN ").push_list(sources.iter().copied()).push(" AND ");
    term.push_condition(statement, &format!("{table}.term"));
}

/// Adds the conditions on words `w`: each row matches the longest term, and its client the other terms too.
fn push_search_terms<'q>(statement: &mut Statement<'q>, filter: &'q ListFilter) {
    statement.push("w.is_archived = ").push_bind(filter.is_archived).push(" AND w.owner_id IN ");
    statement.push_list(filter.owners.iter().map(|owner| owner.0));
    for (index, term) in filter.terms.iter().enumerate() {
        if index == 0 {
            statement.push(" AND ");
            push_term(statement, "w", term);
        } else {
            statement.push(
                " AND EXISTS (SELECT 1 FROM client_search_terms o WHERE o.client_id = w.client_id AND ",
            );
            push_term(statement, "o", term);
            statement.push(")");
        }
    }
}

/// Adds the conditions on the columns of clients, except those of a search.
fn push_column_filter(statement: &mut Statement<'_>, table: &str, filter: &ListFilter) {
    statement.push(" WHERE ").push(table).push(".is_archived = ").push_bind(filter.is_archived);
    if let Some(owner) = filter.owner {
        statement.push(" AND ").push(table).push(".owner_id = ").push_bind(owner.0);
    }
    match filter.disputes {
        None => {}
        Some(DisputeFilter::Open) => {
            statement.push(" AND ").push(table).push(".open_disputes > 0");
        }
        Some(DisputeFilter::DueBefore(day)) => {
            statement.push(" AND ").push(table).push(".next_due_day < ").push_bind(i64::from(day.0));
        }
    }
}

/// Adds the conditions on `clients c`.
fn push_filter<'q>(statement: &mut Statement<'q>, filter: &'q ListFilter, search_plan: SearchPlan) {
    push_column_filter(statement, "c", filter);
    match search_plan {
        _ if filter.terms.is_empty() => {}
        SearchPlan::IndexLookup => {
            statement.push(" AND c.id = found.client_id");
        }
        SearchPlan::ListScan => {
            for term in &filter.terms {
                statement
                    .push(" AND EXISTS (SELECT 1 FROM client_search_terms w WHERE w.client_id = c.id AND ");
                push_term(statement, "w", term);
                statement.push(")");
            }
        }
    }
}

/// Number of clients of one owner.
#[derive(Clone)]
struct OwnerClientCount {
    owner: PersonId,
    email: String,
    clients: u64,
}

impl FromRow for OwnerClientCount {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            owner: PersonId(row.get("owner_id")?),
            email: row.get("email")?,
            clients: count(row.get("clients")?)?,
        })
    }
}

/// A range of the list.
#[derive(Clone, Copy)]
struct PageRange {
    offset: u64,
    limit: u64,
}

/// Reads a range of the list in one statement, so that no client is shown to a person who has just ceased to be its
/// owner.
fn select_range(
    filter: &ListFilter,
    order: ClientOrder,
    range: PageRange,
    search_plan: SearchPlan,
) -> Query<'_> {
    let is_disputed = filter.disputes.is_some();
    // Few clients have open disputes: their search terms are looked up one by one.
    let search_plan = if is_disputed { SearchPlan::ListScan } else { search_plan };
    let mut read = Statement::new(SELECT_CLIENTS);
    read.push(" FROM (SELECT c.id FROM ");
    if is_disputed {
        // CROSS JOIN makes SQLite start with the disputed clients, as with the matches below.
        read.push("(SELECT d.id FROM clients d");
        push_column_filter(&mut read, "d", filter);
        read.push(") AS disputed CROSS JOIN ");
    }
    if search_plan == SearchPlan::IndexLookup && !filter.terms.is_empty() {
        // CROSS JOIN makes SQLite start with the matches; otherwise it would scan the list's index for the order.
        read.push("(SELECT DISTINCT w.client_id FROM client_search_terms w WHERE ");
        push_search_terms(&mut read, filter);
        read.push(") AS found CROSS JOIN ");
    }
    read.push("clients c");
    push_filter(&mut read, filter, search_plan);
    if is_disputed {
        read.push(" AND c.id = disputed.id");
    }
    read.push(order_by(order)).push(" LIMIT ").push_bind(to_db_count(range.limit));
    read.push(" OFFSET ").push_bind(to_db_count(range.offset));
    read.push(") AS page JOIN clients c ON c.id = page.id JOIN people p ON p.id = c.owner_id");
    read.push(order_by(order));
    read.build()
}

/// A page of the list, for a request whose decision is recorded.
pub(crate) async fn list(
    conn: &mut Conn<'_>,
    access_request: &AccessRequest,
    filter: &ListFilter,
    order: ClientOrder,
    page: u32,
) -> Result<ClientPage, sqlx::Error> {
    let offset = u64::from(page.saturating_sub(1)) * u64::from(CLIENTS_PER_PAGE);
    let range = PageRange { offset, limit: u64::from(CLIENTS_PER_PAGE) };
    let owner_counts = owner_counts(conn, filter).await?;
    if owner_counts.is_empty() {
        return Ok(ClientPage::default());
    }
    let filter = &filter.of_owners(&owner_counts);
    let (lines, total) = list_range(conn, filter, order, range, &owner_counts).await?;
    let terms: Vec<TermRange> = filter.terms.iter().filter(|term| term.is_in_entries()).cloned().collect();
    let clients = clients_with_entry_terms(conn, filter, &terms, &lines).await?;
    let search = (!clients.is_empty()).then(|| RecordedSearch {
        access_request: access_request.clone(),
        terms,
        clients,
    });
    Ok(ClientPage { lines, total, search })
}

/// A range of the list, and the number of clients in the whole list.
async fn list_range(
    conn: &mut Conn<'_>,
    filter: &ListFilter,
    order: ClientOrder,
    range: PageRange,
    owner_counts: &[OwnerClientCount],
) -> Result<(Vec<ClientSummary>, u64), sqlx::Error> {
    if matches!(order, ClientOrder::Owner | ClientOrder::OwnerDescending) {
        return list_by_owner(conn, filter, order, range, owner_counts).await;
    }
    let all = sum(owner_counts);
    let total = match filter.disputes {
        Some(_) => count_filtered(conn, filter).await?,
        None if filter.terms.is_empty() => all,
        None => count_matches(conn, filter).await?,
    };
    if range.offset >= total {
        return Ok((Vec::new(), total));
    }
    let lines =
        select_range(filter, order, range, SearchPlan::choose(range, total, all)).fetch_all(conn).await?;
    Ok((lines, total))
}

/// Those of the listed clients with one of the terms in an entry.
async fn clients_with_entry_terms(
    conn: &mut Conn<'_>,
    filter: &ListFilter,
    terms: &[TermRange],
    lines: &[ClientSummary],
) -> Result<BTreeSet<ClientId>, sqlx::Error> {
    let mut found = BTreeSet::new();
    if lines.is_empty() {
        return Ok(found);
    }
    for term in terms {
        let mut read =
            Statement::new("SELECT DISTINCT w.client_id FROM client_search_terms w WHERE w.in_entries = ");
        read.push_bind(true)
            .push(" AND w.client_id IN ")
            .push_list(lines.iter().map(|line| line.client.id.0));
        read.push(" AND ");
        term.push_condition(&mut read, "w.term");
        read.push(" AND w.owner_id IN ").push_list(filter.owners.iter().map(|owner| owner.0));
        let clients: Vec<i64> = read.build().persistent(false).fetch_all(conn).await?;
        found.extend(clients.into_iter().map(ClientId));
    }
    Ok(found)
}

/// Lists by owner, given the number of clients of each.
async fn list_by_owner(
    conn: &mut Conn<'_>,
    filter: &ListFilter,
    order: ClientOrder,
    mut range: PageRange,
    all: &[OwnerClientCount],
) -> Result<(Vec<ClientSummary>, u64), sqlx::Error> {
    let mut found = match filter.disputes {
        Some(_) => filtered_owner_counts(conn, filter).await?,
        None if filter.terms.is_empty() => all.to_vec(),
        None => matching_owner_counts(conn, filter).await?,
    };
    // Sorted here, because the databases sort addresses differently.
    found.sort_by(|one, other| (&one.email, one.owner).cmp(&(&other.email, other.owner)));
    if order == ClientOrder::OwnerDescending {
        found.reverse();
    }
    let mut lines: Vec<ClientSummary> = Vec::new();
    for owner_count in &found {
        if range.limit == 0 {
            break;
        }
        if range.offset >= owner_count.clients {
            range.offset -= owner_count.clients;
            continue;
        }
        let owned = all.iter().find(|other| other.owner == owner_count.owner);
        let search_plan = SearchPlan::choose(range, owner_count.clients, owned.map_or(0, |all| all.clients));
        let summaries: Vec<ClientSummary> =
            select_range(&filter.of_owner(owner_count.owner), order, range, search_plan)
                .fetch_all(conn)
                .await?;
        range = PageRange { offset: 0, limit: range.limit.saturating_sub(summaries.len() as u64) };
        lines.extend(summaries);
    }
    Ok((lines, sum(&found)))
}

/// Clients per owner, ignoring search terms.
async fn owner_counts(
    conn: &mut Conn<'_>,
    filter: &ListFilter,
) -> Result<Vec<OwnerClientCount>, sqlx::Error> {
    let mut read = Statement::new(
        "SELECT k.owner_id, p.email, k.clients FROM client_counts k JOIN people p ON p.id = k.owner_id \
         WHERE k.clients > 0 AND k.is_archived = ",
    );
    read.push_bind(filter.is_archived);
    if let Some(owner) = filter.owner {
        read.push(" AND k.owner_id = ").push_bind(owner.0);
    }
    read.build().fetch_all(conn).await
}

/// Clients per owner that match the search terms.
async fn matching_owner_counts(
    conn: &mut Conn<'_>,
    filter: &ListFilter,
) -> Result<Vec<OwnerClientCount>, sqlx::Error> {
    let mut read = Statement::new(
        "SELECT found.owner_id, p.email, found.clients FROM \
         (SELECT w.owner_id, COUNT(DISTINCT w.client_id) AS clients FROM client_search_terms w WHERE ",
    );
    push_search_terms(&mut read, filter);
    read.push(" GROUP BY w.owner_id) AS found JOIN people p ON p.id = found.owner_id");
    read.build().fetch_all(conn).await
}

/// Number of clients that match the search terms.
async fn count_matches(conn: &mut Conn<'_>, filter: &ListFilter) -> Result<u64, sqlx::Error> {
    let mut read = Statement::new("SELECT COUNT(DISTINCT w.client_id) FROM client_search_terms w WHERE ");
    push_search_terms(&mut read, filter);
    count(read.build().fetch_one(conn).await?)
}

/// Number of clients that match the whole filter. Few clients have open disputes, and an index has those.
async fn count_filtered(conn: &mut Conn<'_>, filter: &ListFilter) -> Result<u64, sqlx::Error> {
    let mut read = Statement::new("SELECT COUNT(*) FROM clients c");
    push_filter(&mut read, filter, SearchPlan::ListScan);
    count(read.build().fetch_one(conn).await?)
}

/// Clients per owner that match the whole filter.
async fn filtered_owner_counts(
    conn: &mut Conn<'_>,
    filter: &ListFilter,
) -> Result<Vec<OwnerClientCount>, sqlx::Error> {
    let mut read = Statement::new(
        "SELECT found.owner_id, p.email, found.clients FROM \
         (SELECT c.owner_id, COUNT(*) AS clients FROM clients c",
    );
    push_filter(&mut read, filter, SearchPlan::ListScan);
    read.push(" GROUP BY c.owner_id) AS found JOIN people p ON p.id = found.owner_id");
    read.build().fetch_all(conn).await
}

fn sum(owner_counts: &[OwnerClientCount]) -> u64 {
    owner_counts.iter().map(|owner_count| owner_count.clients).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;
    use crate::db::Dialect;
    use chancery_domain::Day;

    /// SQLite's query plan: each step with its id, its parent's id and its description.
    async fn plan(
        store: &Store,
        filter: &ListFilter,
        order: ClientOrder,
        search_plan: SearchPlan,
    ) -> Vec<(i64, i64, String)> {
        let range = PageRange { offset: 25, limit: 25 };
        let query = select_range(filter, order, range, search_plan);
        let explain = Statement::new(&format!("EXPLAIN QUERY PLAN {}", query.sql(Dialect::Sqlite))).build();
        let steps: Vec<PlanStep> = store.db.fetch_all(explain).await.unwrap();
        steps.into_iter().map(|step| step.0).collect()
    }

    struct PlanStep((i64, i64, String));

    impl FromRow for PlanStep {
        fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
            Ok(Self((row.get("id")?, row.get("parent")?, row.get("detail")?)))
        }
    }

    #[tokio::test]
    async fn unfiltered_page_scans_its_order_index_without_sort() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_file(&folder.path().join("chancery.db")).await.unwrap();
        for (order, index) in [
            (ClientOrder::RecentFirst, "clients_recent"),
            (ClientOrder::OldestFirst, "clients_recent"),
            (ClientOrder::Name, "clients_name"),
            (ClientOrder::NameDescending, "clients_name"),
            (ClientOrder::Id, "clients_by_id"),
            (ClientOrder::IdDescending, "clients_by_id"),
        ] {
            for owner in [None, Some(PersonId(1))] {
                let of_owner = if owner.is_some() { "_of_owner " } else { " " };
                let (owners, terms) = (Vec::new(), Vec::new());
                let filter = ListFilter { owner, owners, disputes: None, is_archived: false, terms };
                let plan = plan(&store, &filter, order, SearchPlan::IndexLookup).await;
                let walk = format!("SEARCH c USING COVERING INDEX {index}{of_owner}");
                assert!(plan.iter().any(|(_, _, detail)| detail.starts_with(&walk)), "{order:?}: {plan:?}");
                let sorts_inside =
                    |(_, parent, detail): &(i64, i64, String)| *parent != 0 && detail.contains("TEMP B-TREE");
                assert!(!plan.iter().any(sorts_inside), "{order:?}: {plan:?}");
                assert!(
                    !plan.iter().any(|(_, _, detail)| detail.starts_with("SCAN c")),
                    "{order:?}: {plan:?}"
                );
            }
        }
        store.close().await;
    }

    #[tokio::test]
    async fn dispute_filters_start_with_the_index_of_disputed_clients() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_file(&folder.path().join("chancery.db")).await.unwrap();
        for (disputes, index) in [
            (DisputeFilter::Open, "clients_disputed"),
            (DisputeFilter::DueBefore(Day(20_770)), "clients_due"),
        ] {
            for (owner, words) in [(None, ""), (Some(PersonId(1)), ""), (None, "harbour lane")] {
                let of_owner = if owner.is_some() { "_of_owner " } else { " " };
                let (owners, terms) = (vec![PersonId(1)], search_ranges(words));
                let filter =
                    ListFilter { owner, owners, disputes: Some(disputes), is_archived: false, terms };
                for order in [ClientOrder::RecentFirst, ClientOrder::Name, ClientOrder::Id] {
                    let plan = plan(&store, &filter, order, SearchPlan::IndexLookup).await;
                    let uses_index = |(_, _, detail): &(i64, i64, String)| {
                        detail.starts_with("SEARCH d ")
                            && detail.contains(&format!("INDEX {index}{of_owner}"))
                    };
                    assert!(plan.iter().any(uses_index), "{order:?}: {plan:?}");
                    let scans = |(_, _, detail): &(i64, i64, String)| detail.contains("INDEX clients_recent");
                    assert!(!plan.iter().any(scans), "{order:?}: {plan:?}");
                }
            }
        }
        store.close().await;
    }

    #[tokio::test]
    async fn search_uses_term_index_of_permitted_owners() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_file(&folder.path().join("chancery.db")).await.unwrap();
        let index =
            "client_search_terms_owner (owner_id=? AND is_archived=? AND in_entries=? AND term>? AND term<?)";
        for (owner, owners) in
            [(None, vec![PersonId(1), PersonId(2), PersonId(3)]), (Some(PersonId(1)), vec![PersonId(1)])]
        {
            let terms = search_ranges("harbour lane");
            let filter = ListFilter { owner, owners, disputes: None, is_archived: false, terms };
            let gathered = plan(&store, &filter, ClientOrder::RecentFirst, SearchPlan::IndexLookup).await;
            let uses_index = |(_, _, detail): &(i64, i64, String)| detail.contains(index);
            assert!(gathered.iter().any(uses_index), "{gathered:?}");
            let walks_the_list = |(_, _, detail): &(i64, i64, String)| detail.contains("INDEX clients_");
            assert!(!gathered.iter().any(walks_the_list), "{gathered:?}");
            let walked = plan(&store, &filter, ClientOrder::RecentFirst, SearchPlan::ListScan).await;
            let walks = |(_, _, detail): &(i64, i64, String)| detail.contains("INDEX clients_recent");
            assert!(walked.iter().any(walks), "{walked:?}");
            let sorts_inside =
                |(_, parent, detail): &(i64, i64, String)| *parent != 0 && detail.contains("TEMP B-TREE");
            assert!(!walked.iter().any(sorts_inside), "{walked:?}");
        }
        store.close().await;
    }

    #[test]
    fn search_plan_depends_on_match_count() {
        let page = |number: u64| PageRange { offset: (number - 1) * 25, limit: 25 };
        assert_eq!(SearchPlan::choose(page(1), 50_000, 100_000), SearchPlan::ListScan);
        assert_eq!(SearchPlan::choose(page(1), 3, 100_000), SearchPlan::IndexLookup);
        assert_eq!(
            SearchPlan::choose(page(1), 1000, 100_000),
            SearchPlan::IndexLookup,
            "it would walk past 2,500"
        );
        assert_eq!(
            SearchPlan::choose(page(1990), 50_000, 100_000),
            SearchPlan::IndexLookup,
            "nearly to the end"
        );
        assert_eq!(SearchPlan::choose(page(u64::from(u32::MAX)), u64::MAX, u64::MAX), SearchPlan::ListScan);
    }

    #[test]
    fn owner_filter_never_exceeds_scope() {
        let (one, other) = (PersonId(1), PersonId(2));
        assert_eq!(restrict_owner(ClientScope::All, None), Some(None));
        assert_eq!(restrict_owner(ClientScope::All, Some(one)), Some(Some(one)));
        assert_eq!(restrict_owner(ClientScope::OwnedBy(one), None), Some(Some(one)));
        assert_eq!(restrict_owner(ClientScope::OwnedBy(one), Some(one)), Some(Some(one)));
        assert_eq!(restrict_owner(ClientScope::OwnedBy(one), Some(other)), None);
        assert_eq!(restrict_owner(ClientScope::Empty, Some(one)), None);
    }
}
