//! The filter of a client list as SQL conditions, within the scope that the policy gave. Reads nothing itself.

use crate::clients::search::{TermRange, search_ranges};
use crate::clients::types::{ClientQuery, DisputeFilter};
use crate::db::Statement;
use chancery_domain::PersonId;
use chancery_policy::ClientScope;

/// The filter of a list, in terms of columns.
pub(crate) struct ListFilter {
    pub(super) owner: Option<PersonId>,
    /// The permitted owners who have clients. The index of search terms begins with them.
    pub(super) owners: Vec<PersonId>,
    pub(super) disputes: Option<DisputeFilter>,
    pub(super) is_archived: bool,
    /// Longest first.
    pub(super) terms: Vec<TermRange>,
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

    pub(super) fn of_owner(&self, owner: PersonId) -> Self {
        Self { owner: Some(owner), owners: vec![owner], terms: self.terms.clone(), ..*self }
    }

    pub(super) fn of_owners(&self, owners: Vec<PersonId>) -> Self {
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

/// How to find the clients that match all search terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SearchPlan {
    /// Look up all matches of the longest term in the word index, then sort: good for few matches.
    IndexLookup,
    /// Scan clients in list order until the page is full: good for many matches.
    ListScan,
}

/// Adds the conditions of a search term on the rows of a table: in the details, and in the entries if it is long enough.
fn push_term(statement: &mut Statement, table: &str, term: &TermRange) {
    let sources: &[bool] = if term.is_in_entries() { &[false, true] } else { &[false] };
    statement.push(table).push(".in_entries IN ").push_list(sources.iter().copied()).push(" AND ");
    term.push_condition(statement, &format!("{table}.term"));
}

/// Adds the conditions on words `w`: each row matches the longest term, and its client the other terms too.
pub(super) fn push_search_terms(statement: &mut Statement, filter: &ListFilter) {
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
pub(super) fn push_column_filter(statement: &mut Statement, table: &str, filter: &ListFilter) {
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
pub(super) fn push_filter(statement: &mut Statement, filter: &ListFilter, search_plan: SearchPlan) {
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

#[cfg(test)]
mod tests {
    use super::*;

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
