//! The list of clients. A page walks an index in its order and stops; what is skipped is skipped in the index. How many there
//! are is kept (`client_counts`) and not counted, unless words were searched. In the order of owners, the sums of the owners
//! say which of them a page falls on, and each of those is a walk by itself.

use crate::clients::rows::{SELECT_CLIENTS, count};
use crate::clients::search::{WordRange, searched};
use crate::clients::types::{CLIENTS_PER_PAGE, ClientLine, ClientOrder, ClientPage, ClientQuery};
use crate::db::{Conn, FromRow, Query, Row, Statement};
use crate::ledger::batch::stored_count;
use chancery_domain::PersonId;
use chancery_policy::Scope;

/// Which clients are listed, in terms of their columns.
pub(crate) struct ListFilter {
    owner: Option<PersonId>,
    is_archived: bool,
    /// The longest first.
    words: Vec<WordRange>,
}

impl ListFilter {
    /// None where nothing can be on the list: the scope and the owner that was asked for have nothing in common.
    pub(crate) fn of(scope: Scope, query: &ClientQuery) -> Option<Self> {
        let owner = owner_within(scope, query.owner)?;
        let mut words = searched(&query.words);
        // The longer a word, the fewer have it.
        words.sort_by_key(|word| std::cmp::Reverse(word.first.len()));
        Some(Self { owner, is_archived: query.is_archived, words })
    }

    fn of_owner(&self, owner: PersonId) -> Self {
        Self { owner: Some(owner), is_archived: self.is_archived, words: self.words.clone() }
    }
}

/// Whose clients may be shown to somebody who asked for this owner's: None for nobody's, `Some(None)` for everybody's.
pub(crate) fn owner_within(scope: Scope, wanted: Option<PersonId>) -> Option<Option<PersonId>> {
    match (scope, wanted) {
        (Scope::Nothing, _) => None,
        (Scope::All, wanted) => Some(wanted),
        (Scope::OwnedBy(person), Some(wanted)) if wanted != person => None,
        (Scope::OwnedBy(person), _) => Some(Some(person)),
    }
}

/// The order of one owner's clients, or of all.
fn order_by(order: ClientOrder) -> &'static str {
    match order {
        ClientOrder::RecentFirst => " ORDER BY c.last_entry_at_ms DESC, c.id",
        ClientOrder::OldestFirst => " ORDER BY c.last_entry_at_ms, c.id DESC",
        ClientOrder::Name | ClientOrder::Owner => " ORDER BY c.sort_name, c.id",
        ClientOrder::NameBackwards | ClientOrder::OwnerBackwards => " ORDER BY c.sort_name DESC, c.id DESC",
        ClientOrder::Id => " ORDER BY c.id",
        ClientOrder::IdBackwards => " ORDER BY c.id DESC",
    }
}

/// How those clients are found that have all the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// All that have the longest word, looked up in the index of words: good where they are few. Then they are sorted.
    Gather,
    /// One client after the other in the order of the list, until the page is full: good where many have the words.
    Walk,
}

impl Way {
    /// Walking meets one that has the words every `all / found` clients.
    fn to_page(part: Part, found: u64, all: u64) -> Self {
        let walked = u128::from(part.skipped + part.wanted) * u128::from(all);
        if walked < u128::from(found) * u128::from(found) { Self::Walk } else { Self::Gather }
    }
}

/// The condition that a word begins so.
fn push_range<'q>(statement: &mut Statement<'q>, column: &str, WordRange { first, end }: &'q WordRange) {
    statement.push(column).push(" >= ").push_bind(first.as_str());
    statement.push(" AND ").push(column).push(" < ").push_bind(end.as_str());
}

/// The conditions on the words `w` of the clients that are found: one has the longest word, and its client the others too.
fn push_found<'q>(statement: &mut Statement<'q>, filter: &'q ListFilter) {
    statement.push("w.is_archived = ").push_bind(filter.is_archived);
    if let Some(owner) = filter.owner {
        statement.push(" AND w.owner_id = ").push_bind(owner.0);
    }
    for (index, range) in filter.words.iter().enumerate() {
        if index == 0 {
            statement.push(" AND ");
            push_range(statement, "w.word", range);
        } else {
            statement.push(" AND EXISTS (SELECT 1 FROM client_words o WHERE o.client_id = w.client_id AND ");
            push_range(statement, "o.word", range);
            statement.push(")");
        }
    }
}

/// The conditions on `clients c`.
fn push_filter<'q>(statement: &mut Statement<'q>, filter: &'q ListFilter, way: Way) {
    statement.push(" WHERE c.is_archived = ").push_bind(filter.is_archived);
    if let Some(owner) = filter.owner {
        statement.push(" AND c.owner_id = ").push_bind(owner.0);
    }
    match way {
        _ if filter.words.is_empty() => {}
        Way::Gather => {
            statement.push(" AND c.id = found.client_id");
        }
        Way::Walk => {
            for range in &filter.words {
                statement.push(" AND EXISTS (SELECT 1 FROM client_words w WHERE w.client_id = c.id AND ");
                push_range(statement, "w.word", range);
                statement.push(")");
            }
        }
    }
}

/// How many of the clients are this person's.
#[derive(Clone)]
struct OwnerShare {
    owner: PersonId,
    email: String,
    clients: u64,
}

impl FromRow for OwnerShare {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            owner: PersonId(row.get("owner_id")?),
            email: row.get("email")?,
            clients: count(row.get("clients")?)?,
        })
    }
}

/// Which part of a list to read.
#[derive(Clone, Copy)]
struct Part {
    skipped: u64,
    wanted: u64,
}

/// Reads a part of the list in one statement, so that no client is shown to somebody whose it has just ceased to be.
fn select_part(filter: &ListFilter, order: ClientOrder, part: Part, way: Way) -> Query<'_> {
    let mut read = Statement::new(SELECT_CLIENTS);
    read.push(" FROM (SELECT c.id FROM ");
    if way == Way::Gather && !filter.words.is_empty() {
        // Cross, so that SQLite begins with those found; for the order it would walk the list's index otherwise.
        read.push("(SELECT DISTINCT w.client_id FROM client_words w WHERE ");
        push_found(&mut read, filter);
        read.push(") AS found CROSS JOIN ");
    }
    read.push("clients c");
    push_filter(&mut read, filter, way);
    read.push(order_by(order)).push(" LIMIT ").push_bind(stored_count(part.wanted));
    read.push(" OFFSET ").push_bind(stored_count(part.skipped));
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
    let skipped = u64::from(page.saturating_sub(1)) * u64::from(CLIENTS_PER_PAGE);
    let part = Part { skipped, wanted: u64::from(CLIENTS_PER_PAGE) };
    let shares = shares(conn, filter).await?;
    if matches!(order, ClientOrder::Owner | ClientOrder::OwnerBackwards) {
        return list_by_owner(conn, filter, order, part, &shares).await;
    }
    let all = sum(&shares);
    let total = if filter.words.is_empty() { all } else { count_found(conn, filter).await? };
    if part.skipped >= total {
        return Ok(ClientPage { lines: Vec::new(), total });
    }
    let lines = select_part(filter, order, part, Way::to_page(part, total, all)).fetch_all(conn).await?;
    Ok(ClientPage { lines, total })
}

/// In the order of the owners, given how many clients each of them has.
async fn list_by_owner(
    conn: &mut Conn<'_>,
    filter: &ListFilter,
    order: ClientOrder,
    mut part: Part,
    all: &[OwnerShare],
) -> Result<ClientPage, sqlx::Error> {
    let mut found = if filter.words.is_empty() { all.to_vec() } else { shares_found(conn, filter).await? };
    // Sorted here, because the databases would not sort addresses alike.
    found.sort_by(|one, other| (&one.email, one.owner).cmp(&(&other.email, other.owner)));
    if order == ClientOrder::OwnerBackwards {
        found.reverse();
    }
    let mut lines: Vec<ClientLine> = Vec::new();
    for share in &found {
        if part.wanted == 0 {
            break;
        }
        if part.skipped >= share.clients {
            part.skipped -= share.clients;
            continue;
        }
        let theirs = all.iter().find(|other| other.owner == share.owner);
        let way = Way::to_page(part, share.clients, theirs.map_or(0, |all| all.clients));
        let some: Vec<ClientLine> =
            select_part(&filter.of_owner(share.owner), order, part, way).fetch_all(conn).await?;
        part = Part { skipped: 0, wanted: part.wanted.saturating_sub(some.len() as u64) };
        lines.extend(some);
    }
    Ok(ClientPage { lines, total: sum(&found) })
}

/// How many clients each person has, whatever their words.
async fn shares(conn: &mut Conn<'_>, filter: &ListFilter) -> Result<Vec<OwnerShare>, sqlx::Error> {
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

/// How many of them are found by their words.
async fn shares_found(conn: &mut Conn<'_>, filter: &ListFilter) -> Result<Vec<OwnerShare>, sqlx::Error> {
    let mut read = Statement::new(
        "SELECT found.owner_id, p.email, found.clients FROM \
         (SELECT w.owner_id, COUNT(DISTINCT w.client_id) AS clients FROM client_words w WHERE ",
    );
    push_found(&mut read, filter);
    read.push(" GROUP BY w.owner_id) AS found JOIN people p ON p.id = found.owner_id");
    read.build().fetch_all(conn).await
}

/// The same in sum.
async fn count_found(conn: &mut Conn<'_>, filter: &ListFilter) -> Result<u64, sqlx::Error> {
    let mut read = Statement::new("SELECT COUNT(DISTINCT w.client_id) FROM client_words w WHERE ");
    push_found(&mut read, filter);
    count(read.build().fetch_one(conn).await?)
}

fn sum(shares: &[OwnerShare]) -> u64 {
    shares.iter().map(|share| share.clients).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;
    use crate::db::Dialect;

    /// The steps of SQLite's plan: each with its number, that of the step it belongs to, and what it does.
    async fn plan(
        store: &Store,
        filter: &ListFilter,
        order: ClientOrder,
        way: Way,
    ) -> Vec<(i64, i64, String)> {
        let part = Part { skipped: 25, wanted: 25 };
        let part = select_part(filter, order, part, way);
        let explain = Statement::new(&format!("EXPLAIN QUERY PLAN {}", part.sql(Dialect::Sqlite))).build();
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
    async fn a_page_without_words_walks_the_index_of_its_order_and_sorts_nothing_but_itself() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_file(&folder.path().join("chancery.db")).await.unwrap();
        for (order, index) in [
            (ClientOrder::RecentFirst, "clients_recent"),
            (ClientOrder::OldestFirst, "clients_recent"),
            (ClientOrder::Name, "clients_name"),
            (ClientOrder::NameBackwards, "clients_name"),
            (ClientOrder::Id, "clients_number"),
            (ClientOrder::IdBackwards, "clients_number"),
        ] {
            for owner in [None, Some(PersonId(1))] {
                let of_owner = if owner.is_some() { "_of_owner " } else { " " };
                let filter = ListFilter { owner, is_archived: false, words: Vec::new() };
                let plan = plan(&store, &filter, order, Way::Gather).await;
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
    async fn a_search_looks_words_up_in_the_index_of_their_owner_or_of_all() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_file(&folder.path().join("chancery.db")).await.unwrap();
        for (owner, index) in [
            (None, "client_words_of_all (is_archived=? AND word>? AND word<?)"),
            (Some(PersonId(1)), "client_words_of_owner (owner_id=? AND is_archived=? AND word>? AND word<?)"),
        ] {
            let filter = ListFilter { owner, is_archived: false, words: searched("harbour lane") };
            let gathered = plan(&store, &filter, ClientOrder::RecentFirst, Way::Gather).await;
            let looks_up = |(_, _, detail): &(i64, i64, String)| detail.contains(index);
            assert!(gathered.iter().any(looks_up), "{gathered:?}");
            let walks_the_list = |(_, _, detail): &(i64, i64, String)| detail.contains("INDEX clients_");
            assert!(!gathered.iter().any(walks_the_list), "{gathered:?}");
            let walked = plan(&store, &filter, ClientOrder::RecentFirst, Way::Walk).await;
            let walks = |(_, _, detail): &(i64, i64, String)| detail.contains("INDEX clients_recent");
            assert!(walked.iter().any(walks), "{walked:?}");
            let sorts_inside =
                |(_, parent, detail): &(i64, i64, String)| *parent != 0 && detail.contains("TEMP B-TREE");
            assert!(!walked.iter().any(sorts_inside), "{walked:?}");
        }
        store.close().await;
    }

    #[test]
    fn a_search_walks_where_many_are_found_and_gathers_where_few_are() {
        let page = |number: u64| Part { skipped: (number - 1) * 25, wanted: 25 };
        assert_eq!(Way::to_page(page(1), 50_000, 100_000), Way::Walk);
        assert_eq!(Way::to_page(page(1), 3, 100_000), Way::Gather);
        assert_eq!(Way::to_page(page(1), 1000, 100_000), Way::Gather, "it would walk past 2,500");
        assert_eq!(Way::to_page(page(1990), 50_000, 100_000), Way::Gather, "nearly to the end");
        assert_eq!(Way::to_page(page(u64::from(u32::MAX)), u64::MAX, u64::MAX), Way::Walk);
    }

    #[test]
    fn nobody_lists_more_than_their_scope() {
        let (one, other) = (PersonId(1), PersonId(2));
        assert_eq!(owner_within(Scope::All, None), Some(None));
        assert_eq!(owner_within(Scope::All, Some(one)), Some(Some(one)));
        assert_eq!(owner_within(Scope::OwnedBy(one), None), Some(Some(one)));
        assert_eq!(owner_within(Scope::OwnedBy(one), Some(one)), Some(Some(one)));
        assert_eq!(owner_within(Scope::OwnedBy(one), Some(other)), None);
        assert_eq!(owner_within(Scope::Nothing, Some(one)), None);
    }
}
