//! The client list. A page scans the index of its order and stops; `list_counts` has the totals. Ordered by owner,
//! per-owner counts tell which owners a page covers; each is one index scan. A search reads the terms of the permitted
//! owners, those of their clients' entries included, but no entry: `matches` reads those.

use crate::clients::list_counts::{
    OwnerClientCount, count_filtered, count_matches, filtered_owner_counts, matching_owner_counts,
    owner_counts, sum,
};
use crate::clients::list_filter::{
    ListFilter, SearchPlan, push_column_filter, push_filter, push_search_terms,
};
use crate::clients::rows::SELECT_CLIENTS;
use crate::clients::search::TermRange;
use crate::clients::types::{
    CLIENTS_PER_PAGE, ClientOrder, ClientPage, ClientQuery, ClientSummary, RecordedSearch,
};
use crate::db::{Query, QueryError, Statement, Tx};
use crate::ledger::batch::to_db_count;
use crate::list_total::{CountLimit, ListTotal, MAX_COUNTED_ROWS};
use chancery_domain::{AccessRequest, ClientId};
use std::collections::BTreeSet;

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

/// A range of the list.
#[derive(Clone, Copy)]
struct PageRange {
    offset: u64,
    limit: u64,
}

impl PageRange {
    fn of(query: &ClientQuery) -> Self {
        let limit = u64::from(CLIENTS_PER_PAGE);
        Self { offset: u64::from(query.page.saturating_sub(1)) * limit, limit }
    }

    /// Matches are counted at least to the end of the page.
    fn count_limit(self, query: &ClientQuery) -> CountLimit {
        match query.counts_all {
            true => CountLimit::All,
            false => CountLimit::UpTo(MAX_COUNTED_ROWS.max(self.offset + self.limit)),
        }
    }
}

impl SearchPlan {
    /// A scan finds a match every `all / found` clients. What has more matches than are counted is never looked up
    /// whole.
    fn choose(range: PageRange, found: ListTotal, all: u64) -> Self {
        let ListTotal::Exact(found) = found else { return Self::ListScan };
        let walked = u128::from(range.offset + range.limit) * u128::from(all);
        if walked < u128::from(found) * u128::from(found) { Self::ListScan } else { Self::IndexLookup }
    }
}

/// Reads a range of the list in one statement, so that no client is shown to a person who has just ceased to be its
/// owner.
fn select_range(filter: &ListFilter, order: ClientOrder, range: PageRange, search_plan: SearchPlan) -> Query {
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
pub(crate) fn list(
    tx: &mut Tx<'_>,
    access_request: &AccessRequest,
    filter: &ListFilter,
    query: &ClientQuery,
) -> Result<ClientPage, QueryError> {
    let owner_counts = owner_counts(tx, filter)?;
    if owner_counts.is_empty() {
        return Ok(ClientPage::default());
    }
    let filter = &filter.of_owners(owner_counts.iter().map(|owner_count| owner_count.owner).collect());
    let (lines, total) = match query.order {
        ClientOrder::Owner | ClientOrder::OwnerDescending => list_by_owner(tx, filter, query, owner_counts)?,
        _ => list_range(tx, filter, query, &owner_counts)?,
    };
    let terms: Vec<TermRange> = filter.terms.iter().filter(|term| term.is_in_entries()).cloned().collect();
    let clients = clients_with_entry_terms(tx, filter, &terms, &lines)?;
    let search = (!clients.is_empty()).then(|| RecordedSearch {
        access_request: access_request.clone(),
        terms,
        clients,
    });
    Ok(ClientPage { lines, total, search })
}

/// A page of the list in an order that an index has, and how many clients the whole list has.
fn list_range(
    tx: &mut Tx<'_>,
    filter: &ListFilter,
    query: &ClientQuery,
    owner_counts: &[OwnerClientCount],
) -> Result<(Vec<ClientSummary>, ListTotal), QueryError> {
    let (range, all) = (PageRange::of(query), sum(owner_counts));
    let total = match filter.disputes {
        Some(_) => ListTotal::Exact(count_filtered(tx, filter)?),
        None if filter.terms.is_empty() => ListTotal::Exact(all),
        None => {
            let limit = range.count_limit(query);
            limit.total(count_matches(tx, filter, limit)?)
        }
    };
    if range.offset >= total.known() {
        return Ok((Vec::new(), total));
    }
    let search_plan = SearchPlan::choose(range, total, all);
    let lines = select_range(filter, query.order, range, search_plan).fetch_all(tx)?;
    Ok((lines, total))
}

/// Those of the listed clients with one of the terms in an entry.
fn clients_with_entry_terms(
    tx: &mut Tx<'_>,
    filter: &ListFilter,
    terms: &[TermRange],
    lines: &[ClientSummary],
) -> Result<BTreeSet<ClientId>, QueryError> {
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
        // Only that of a full page is worth preparing: the others differ in length.
        let is_full = lines.len() == CLIENTS_PER_PAGE as usize;
        let clients: Vec<i64> = read.build().persistent(is_full).fetch_all(tx)?;
        found.extend(clients.into_iter().map(ClientId));
    }
    Ok(found)
}

/// Lists by owner, given the number of clients of each.
fn list_by_owner(
    tx: &mut Tx<'_>,
    filter: &ListFilter,
    query: &ClientQuery,
    mut all: Vec<OwnerClientCount>,
) -> Result<(Vec<ClientSummary>, ListTotal), QueryError> {
    let mut range = PageRange::of(query);
    // Sorted here, because the databases sort addresses differently.
    all.sort_by(|one, other| (&one.email, one.owner).cmp(&(&other.email, other.owner)));
    if query.order == ClientOrder::OwnerDescending {
        all.reverse();
    }
    let (found, total) = match filter.disputes {
        Some(_) => {
            let found = filtered_owner_counts(tx, filter, &all)?;
            let total = ListTotal::Exact(sum(&found));
            (found, total)
        }
        None if filter.terms.is_empty() => (all.clone(), ListTotal::Exact(sum(&all))),
        None => matching_owner_counts(tx, filter, &all, range.count_limit(query))?,
    };
    let mut lines: Vec<ClientSummary> = Vec::new();
    for (index, owner_count) in found.iter().enumerate() {
        if range.limit == 0 {
            break;
        }
        if range.offset >= owner_count.clients {
            range.offset -= owner_count.clients;
            continue;
        }
        let is_cut_off = matches!(total, ListTotal::MoreThan(_)) && index + 1 == found.len();
        let matching = match is_cut_off {
            true => ListTotal::MoreThan(owner_count.clients - 1),
            false => ListTotal::Exact(owner_count.clients),
        };
        let owned = all.iter().find(|other| other.owner == owner_count.owner);
        let search_plan = SearchPlan::choose(range, matching, owned.map_or(0, |all| all.clients));
        let summaries: Vec<ClientSummary> =
            select_range(&filter.of_owner(owner_count.owner), query.order, range, search_plan)
                .fetch_all(tx)?;
        range = PageRange { offset: 0, limit: range.limit.saturating_sub(summaries.len() as u64) };
        lines.extend(summaries);
    }
    Ok((lines, total))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;
    use crate::clients::search::search_ranges;
    use crate::clients::types::DisputeFilter;
    use crate::db::query_plan;
    use chancery_domain::{Day, PersonId};

    async fn plan(
        store: &Store,
        filter: &ListFilter,
        order: ClientOrder,
        search_plan: SearchPlan,
    ) -> Vec<(i64, i64, String)> {
        let range = PageRange { offset: 25, limit: 25 };
        query_plan(&store.db, &select_range(filter, order, range, search_plan)).await
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
        let choose = |page, found, all| SearchPlan::choose(page, ListTotal::Exact(found), all);
        assert_eq!(choose(page(1), 50_000, 100_000), SearchPlan::ListScan);
        assert_eq!(choose(page(1), 3, 100_000), SearchPlan::IndexLookup);
        assert_eq!(choose(page(1), 1000, 100_000), SearchPlan::IndexLookup, "it would walk past 2,500");
        assert_eq!(choose(page(1990), 50_000, 100_000), SearchPlan::IndexLookup, "nearly to the end");
        assert_eq!(choose(page(u64::from(u32::MAX)), u64::MAX, u64::MAX), SearchPlan::ListScan);
        let more = ListTotal::MoreThan(MAX_COUNTED_ROWS);
        assert_eq!(SearchPlan::choose(page(1), more, 100_000), SearchPlan::ListScan);
    }

    #[test]
    fn matches_are_counted_to_the_end_of_the_page_at_least() {
        let limit = |page, counts_all| {
            let query = ClientQuery { page, counts_all, ..ClientQuery::default() };
            PageRange::of(&query).count_limit(&query)
        };
        assert_eq!(limit(1, false), CountLimit::UpTo(MAX_COUNTED_ROWS));
        assert_eq!(limit(40, false), CountLimit::UpTo(1_000));
        assert_eq!(limit(41, false), CountLimit::UpTo(1_025));
        assert_eq!(limit(1, true), CountLimit::All);
    }
}
