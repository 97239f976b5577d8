//! The client list. A page scans the index of its order and stops. Totals come from `client_counts`, except for
//! searches. Ordered by owner, per-owner counts tell which owners a page covers; each is one index scan.

use crate::clients::rows::{SELECT_CLIENTS, count};
use crate::clients::search::{TermRange, search_ranges};
use crate::clients::types::{CLIENTS_PER_PAGE, ClientOrder, ClientPage, ClientQuery, ClientSummary};
use crate::db::{Conn, FromRow, Query, Row, Statement};
use crate::ledger::batch::to_db_count;
use chancery_domain::PersonId;
use chancery_policy::ClientScope;

/// The filter of a list, in terms of columns.
pub(crate) struct ListFilter {
    owner: Option<PersonId>,
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
        Some(Self { owner, is_archived: query.is_archived, terms })
    }

    fn of_owner(&self, owner: PersonId) -> Self {
        Self { owner: Some(owner), is_archived: self.is_archived, terms: self.terms.clone() }
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

/// Adds the prefix condition for a word.
fn push_range<'q>(statement: &mut Statement<'q>, column: &str, TermRange { first, end }: &'q TermRange) {
    statement.push(column).push(" >= ").push_bind(first.as_str());
    statement.push(" AND ").push(column).push(" < ").push_bind(end.as_str());
}

/// Adds the conditions on words `w`: each row matches the longest term, and its client the other terms too.
fn push_search_terms<'q>(statement: &mut Statement<'q>, filter: &'q ListFilter) {
    statement.push("w.is_archived = ").push_bind(filter.is_archived);
    if let Some(owner) = filter.owner {
        statement.push(" AND w.owner_id = ").push_bind(owner.0);
    }
    for (index, range) in filter.terms.iter().enumerate() {
        if index == 0 {
            statement.push(" AND ");
            push_range(statement, "w.term", range);
        } else {
            statement.push(
                " AND EXISTS (SELECT 1 FROM client_search_terms o WHERE o.client_id = w.client_id AND ",
            );
            push_range(statement, "o.term", range);
            statement.push(")");
        }
    }
}

/// Adds the conditions on `clients c`.
fn push_filter<'q>(statement: &mut Statement<'q>, filter: &'q ListFilter, search_plan: SearchPlan) {
    statement.push(" WHERE c.is_archived = ").push_bind(filter.is_archived);
    if let Some(owner) = filter.owner {
        statement.push(" AND c.owner_id = ").push_bind(owner.0);
    }
    match search_plan {
        _ if filter.terms.is_empty() => {}
        SearchPlan::IndexLookup => {
            statement.push(" AND c.id = found.client_id");
        }
        SearchPlan::ListScan => {
            for range in &filter.terms {
                statement
                    .push(" AND EXISTS (SELECT 1 FROM client_search_terms w WHERE w.client_id = c.id AND ");
                push_range(statement, "w.term", range);
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
    let mut read = Statement::new(SELECT_CLIENTS);
    read.push(" FROM (SELECT c.id FROM ");
    if search_plan == SearchPlan::IndexLookup && !filter.terms.is_empty() {
        // CROSS JOIN makes SQLite start with the matches; otherwise it would scan the list's index for the order.
        read.push("(SELECT DISTINCT w.client_id FROM client_search_terms w WHERE ");
        push_search_terms(&mut read, filter);
        read.push(") AS found CROSS JOIN ");
    }
    read.push("clients c");
    push_filter(&mut read, filter, search_plan);
    read.push(order_by(order)).push(" LIMIT ").push_bind(to_db_count(range.limit));
    read.push(" OFFSET ").push_bind(to_db_count(range.offset));
    read.push(") AS page JOIN clients c ON c.id = page.id JOIN people p ON p.id = c.owner_id");
    read.push(order_by(order));
    read.build()
}

pub(crate) async fn list(
    conn: &mut Conn<'_>,
    filter: &ListFilter,
    order: ClientOrder,
    page: u32,
) -> Result<ClientPage, sqlx::Error> {
    let offset = u64::from(page.saturating_sub(1)) * u64::from(CLIENTS_PER_PAGE);
    let range = PageRange { offset, limit: u64::from(CLIENTS_PER_PAGE) };
    let owner_counts = owner_counts(conn, filter).await?;
    if matches!(order, ClientOrder::Owner | ClientOrder::OwnerDescending) {
        return list_by_owner(conn, filter, order, range, &owner_counts).await;
    }
    let all = sum(&owner_counts);
    let total = if filter.terms.is_empty() { all } else { count_matches(conn, filter).await? };
    if range.offset >= total {
        return Ok(ClientPage { lines: Vec::new(), total });
    }
    let lines =
        select_range(filter, order, range, SearchPlan::choose(range, total, all)).fetch_all(conn).await?;
    Ok(ClientPage { lines, total })
}

/// Lists by owner, given the number of clients of each.
async fn list_by_owner(
    conn: &mut Conn<'_>,
    filter: &ListFilter,
    order: ClientOrder,
    mut range: PageRange,
    all: &[OwnerClientCount],
) -> Result<ClientPage, sqlx::Error> {
    let mut found =
        if filter.terms.is_empty() { all.to_vec() } else { matching_owner_counts(conn, filter).await? };
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
    Ok(ClientPage { lines, total: sum(&found) })
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

fn sum(owner_counts: &[OwnerClientCount]) -> u64 {
    owner_counts.iter().map(|owner_count| owner_count.clients).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;
    use crate::db::Dialect;

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
                let filter = ListFilter { owner, is_archived: false, terms: Vec::new() };
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
    async fn search_uses_term_index_of_owner_or_all() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_file(&folder.path().join("chancery.db")).await.unwrap();
        for (owner, index) in [
            (None, "client_search_terms_term (is_archived=? AND term>? AND term<?)"),
            (
                Some(PersonId(1)),
                "client_search_terms_owner (owner_id=? AND is_archived=? AND term>? AND term<?)",
            ),
        ] {
            let filter = ListFilter { owner, is_archived: false, terms: search_ranges("harbour lane") };
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
