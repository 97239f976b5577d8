//! The list of clients. A page walks an index in its order and stops; what is skipped is skipped in the index. How many there
//! are is kept (`client_counts`) and not counted, unless words were searched. In the order of owners, the sums of the owners
//! say which of them a page falls on, and each of those is a walk by itself.

use crate::both::{Statement, for_both_connections, stored_row};
use crate::client_rows::{StoredClient, client_columns, count};
use crate::client_words::{WordRange, searched};
use crate::decided::Stopped;
use crate::ledger_batch::stored_count;
use crate::{CLIENTS_PER_PAGE, ClientLine, ClientOrder, ClientPage, ClientQuery, StoreError};
use chancery_domain::PersonId;
use chancery_policy::Scope;

/// Which clients are listed, in terms of their columns.
pub(crate) struct ListFilter {
    owner: Option<PersonId>,
    is_archived: bool,
    words: Vec<WordRange>,
}

impl ListFilter {
    /// None where nothing can be on the list: the scope and the owner that was asked for have nothing in common.
    pub(crate) fn of(scope: Scope, query: &ClientQuery) -> Option<Self> {
        let owner = owner_within(scope, query.owner)?;
        Some(Self { owner, is_archived: query.is_archived, words: searched(&query.words) })
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

/// The conditions on `clients c`.
macro_rules! push_filter {
    ($statement:expr, $filter:expr) => {{
        let ListFilter { owner, is_archived, words } = $filter;
        $statement.push(" WHERE c.is_archived = ").push_bind(*is_archived);
        if let Some(owner) = owner {
            $statement.push(" AND c.owner_id = ").push_bind(owner.0);
        }
        for WordRange { first, end } in words {
            $statement.push(" AND c.id IN (SELECT w.client_id FROM client_words w WHERE ");
            if let Some(owner) = owner {
                $statement.push("w.owner_id = ").push_bind(owner.0).push(" AND ");
            }
            $statement.push("w.word >= ").push_bind(first.as_str());
            $statement.push(" AND w.word < ").push_bind(end.as_str()).push(")");
        }
    }};
}

stored_row! {
    /// How many of the clients on the list are this person's.
    struct OwnerShare {
        owner_id: i64,
        email: String,
        clients: i64,
    }
}

/// Which part of a list to read.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    skipped: u64,
    wanted: u64,
}

#[async_trait::async_trait]
pub(crate) trait ClientList: sqlx::Connection {
    /// Reads a part of the list in one statement, so that no client is shown to somebody whose it has just ceased to be.
    fn part_statement(filter: &ListFilter, order: ClientOrder, part: Part) -> Statement<Self>
    where
        Self: Sized;

    async fn list(
        &mut self,
        filter: &ListFilter,
        order: ClientOrder,
        page: u32,
    ) -> Result<ClientPage, Stopped>;

    async fn shares(&mut self, filter: &ListFilter) -> Result<Vec<OwnerShare>, Stopped>;

    async fn lines(
        &mut self,
        filter: &ListFilter,
        order: ClientOrder,
        part: Part,
    ) -> Result<Vec<ClientLine>, Stopped>;
}

for_both_connections! {
    impl ClientList {
        fn part_statement(filter: &ListFilter, order: ClientOrder, part: Part) -> Statement<Self> {
            let mut read = Statement::<Self>::new(concat!("SELECT ", client_columns!(), " FROM (SELECT c.id FROM clients c"));
            push_filter!(read, filter);
            read.push(order_by(order)).push(" LIMIT ").push_bind(stored_count(part.wanted));
            read.push(" OFFSET ").push_bind(stored_count(part.skipped));
            read.push(") AS page JOIN clients c ON c.id = page.id JOIN people p ON p.id = c.owner_id");
            read.push(order_by(order));
            read
        }

        async fn list(
            &mut self,
            filter: &ListFilter,
            order: ClientOrder,
            page: u32,
        ) -> Result<ClientPage, Stopped> {
            let mut shares = self.shares(filter).await?;
            let mut total = 0;
            for share in &shares {
                total += count(share.clients)?;
            }
            let skipped = u64::from(page.saturating_sub(1)) * u64::from(CLIENTS_PER_PAGE);
            let mut part = Part { skipped, wanted: u64::from(CLIENTS_PER_PAGE) };
            let is_by_owner = matches!(order, ClientOrder::Owner | ClientOrder::OwnerBackwards);
            if part.skipped >= total {
                return Ok(ClientPage { lines: Vec::new(), total });
            }
            if !is_by_owner {
                return Ok(ClientPage { lines: self.lines(filter, order, part).await?, total });
            }
            // Sorted here, because the databases would not sort addresses alike.
            shares.sort_by(|one, other| (&one.email, one.owner_id).cmp(&(&other.email, other.owner_id)));
            if order == ClientOrder::OwnerBackwards {
                shares.reverse();
            }
            let mut lines = Vec::new();
            for share in &shares {
                let clients = count(share.clients)?;
                if part.skipped >= clients {
                    part.skipped -= clients;
                    continue;
                }
                if part.wanted == 0 {
                    break;
                }
                let found = self.lines(&filter.of_owner(PersonId(share.owner_id)), order, part).await?;
                part = Part { skipped: 0, wanted: part.wanted.saturating_sub(found.len() as u64) };
                lines.extend(found);
            }
            Ok(ClientPage { lines, total })
        }

        async fn shares(&mut self, filter: &ListFilter) -> Result<Vec<OwnerShare>, Stopped> {
            let mut read = Statement::<Self>::new("SELECT c.owner_id, p.email, ");
            if filter.words.is_empty() {
                read.push("c.clients FROM client_counts c JOIN people p ON p.id = c.owner_id");
                push_filter!(read, filter);
                read.push(" AND c.clients > 0");
            } else {
                read.push("COUNT(*) AS clients FROM clients c JOIN people p ON p.id = c.owner_id");
                push_filter!(read, filter);
                read.push(" GROUP BY c.owner_id, p.email");
            }
            Ok(read.build_query_as().fetch_all(&mut *self).await?)
        }

        async fn lines(
            &mut self,
            filter: &ListFilter,
            order: ClientOrder,
            part: Part,
        ) -> Result<Vec<ClientLine>, Stopped> {
            let mut read = Self::part_statement(filter, order, part);
            let rows: Vec<StoredClient> = read.build_query_as().fetch_all(&mut *self).await?;
            let lines: Result<Vec<ClientLine>, StoreError> = rows.into_iter().map(StoredClient::into_line).collect();
            Ok(lines?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Health, SqliteStore};
    use sqlx::SqliteConnection;

    /// The steps of SQLite's plan: each with its number, that of the step it belongs to, and what it does.
    async fn plan(store: &SqliteStore, filter: &ListFilter, order: ClientOrder) -> Vec<(i64, i64, String)> {
        let part = Part { skipped: 25, wanted: 25 };
        let sql = SqliteConnection::part_statement(filter, order, part).into_string();
        let explain = sqlx::AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}"));
        let steps: Vec<(i64, i64, i64, String)> =
            sqlx::query_as(explain).fetch_all(&store.reader).await.unwrap();
        steps.into_iter().map(|(id, parent, _, detail)| (id, parent, detail)).collect()
    }

    #[tokio::test]
    async fn a_page_without_words_walks_the_index_of_its_order_and_sorts_nothing_but_itself() {
        let folder = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&folder.path().join("chancery.db")).await.unwrap();
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
                let plan = plan(&store, &filter, order).await;
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
        let store = SqliteStore::open(&folder.path().join("chancery.db")).await.unwrap();
        for (owner, index) in [
            (None, "client_words_of_all (word>?"),
            (Some(PersonId(1)), "client_words_of_owner (owner_id=? AND word>?"),
        ] {
            let filter = ListFilter { owner, is_archived: false, words: searched("harbour lane") };
            let plan = plan(&store, &filter, ClientOrder::RecentFirst).await;
            let walks = plan
                .iter()
                .filter(|(_, _, detail)| detail.contains(&format!("COVERING INDEX {index}")))
                .count();
            assert_eq!(walks, 2, "{plan:?}");
        }
        store.close().await;
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
