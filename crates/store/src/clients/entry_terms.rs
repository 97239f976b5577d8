//! The search index of entries: the words of their title and text. Both parts of it are written in the transaction that
//! writes the entry, while its client is locked.
//!
//! 1. `client_search_terms` has each word once per client, with the number of entries that contain it. It begins with
//!    the owner, so that a search reads nothing of other owners. One row for many entries keeps a search and a change of
//!    owner short.
//! 2. `entry_search_terms` has the words of each entry in one row. It finds the matching entries of a client that may be
//!    read.
//!
//! Archived entries are in neither.

use crate::clients::search::{MAX_ROWS_PER_STATEMENT, MIN_ENTRY_TERM_BYTES, TermRange, tokenize};
use crate::db::{QueryError, Statement, Tx, corrupt, from_row, query};
use chancery_domain::{ClientId, EntryId, EntryText, EntryTitle, PersonId};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Most words of one entry. Few texts of the longest permitted size have more than half as many.
pub(crate) const MAX_TERMS_PER_ENTRY: usize = 2000;

const ADD_COUNTS: &str =
    "INSERT INTO client_search_terms (client_id, in_entries, term, owner_id, is_archived, entries) ";
const ADD_COUNTS_END: &str = " ON CONFLICT (client_id, in_entries, term) \
    DO UPDATE SET entries = client_search_terms.entries + excluded.entries";

/// The words of an entry that a search can find: the first ones, if there are too many.
pub(crate) fn entry_terms(title: &EntryTitle, text: &EntryText) -> BTreeSet<String> {
    let mut terms = BTreeSet::new();
    for term in [title.as_str(), text.as_str()].into_iter().flat_map(tokenize) {
        if terms.len() == MAX_TERMS_PER_ENTRY {
            break;
        }
        if term.len() >= MIN_ENTRY_TERM_BYTES {
            terms.insert(term);
        }
    }
    terms
}

/// The terms of an entry that is not archived.
pub(crate) struct EntryTerms {
    pub(crate) entry: EntryId,
    pub(crate) client: ClientId,
    pub(crate) terms: BTreeSet<String>,
}

impl EntryTerms {
    /// As stored: a space before each term, so that a prefix is found as a part.
    fn joined(&self) -> String {
        self.terms.iter().flat_map(|term| [" ", term.as_str()]).collect()
    }
}

/// Adds the condition that entry `e` has a term. Terms contain neither wildcards nor capitals.
pub(crate) fn push_entry_has(statement: &mut Statement, term: &TermRange) {
    statement.push("EXISTS (SELECT 1 FROM entry_search_terms t WHERE t.entry_id = e.id AND t.terms LIKE ");
    statement.push_bind(format!("% {}%", term.first)).push(")");
}

/// What each term of a client's index has of the client.
struct IndexedClient {
    id: ClientId,
    owner: PersonId,
    is_archived: bool,
}

from_row!(IndexedClient { id, owner: "owner_id", is_archived });

/// Indexes entries that are not indexed, of any number of clients.
pub(crate) fn add_entry_terms(tx: &mut Tx<'_>, entries: &[EntryTerms]) -> Result<(), QueryError> {
    for entries in entries.chunks(MAX_ROWS_PER_STATEMENT) {
        let mut add = Statement::new("INSERT INTO entry_search_terms (entry_id, terms) ");
        add.push_values(entries, |entry| [entry.entry.0.into(), entry.joined().into()]);
        add.build().persistent(entries.len() == 1).execute(tx)?;
    }
    let mut counts: BTreeMap<(ClientId, &str), i64> = BTreeMap::new();
    for entry in entries {
        for term in &entry.terms {
            *counts.entry((entry.client, term.as_str())).or_default() += 1;
        }
    }
    add_counts(tx, &counts.into_iter().collect::<Vec<_>>())
}

/// Adds to the number of entries with each term of a client.
fn add_counts(tx: &mut Tx<'_>, counts: &[((ClientId, &str), i64)]) -> Result<(), QueryError> {
    for counts in counts.chunks(MAX_ROWS_PER_STATEMENT) {
        let clients: BTreeSet<ClientId> = counts.iter().map(|((client, _), _)| *client).collect();
        let clients = indexed_clients(tx, &clients)?;
        let mut rows = Vec::with_capacity(counts.len());
        for ((client, term), entries) in counts {
            let client = clients.get(client).ok_or_else(|| missing_client(*client))?;
            rows.push((client, *term, *entries));
        }
        let mut add = Statement::new(ADD_COUNTS);
        add.push_values(rows, |(client, term, entries)| {
            [
                client.id.0.into(),
                true.into(),
                term.into(),
                client.owner.0.into(),
                client.is_archived.into(),
                entries.into(),
            ]
        });
        add.push(ADD_COUNTS_END);
        add.build().persistent(false).execute(tx)?;
    }
    Ok(())
}

fn missing_client(client: ClientId) -> QueryError {
    corrupt("an entry", format!("client {client} does not exist"))
}

fn indexed_clients(
    tx: &mut Tx<'_>,
    clients: &BTreeSet<ClientId>,
) -> Result<HashMap<ClientId, IndexedClient>, QueryError> {
    let mut read = Statement::new("SELECT id, owner_id, is_archived FROM clients WHERE id IN ");
    read.push_list(clients.iter().map(|client| client.0));
    let found: Vec<IndexedClient> = read.build().persistent(clients.len() == 1).fetch_all(tx)?;
    Ok(found.into_iter().map(|client| (client.id, client)).collect())
}

/// Indexes the new terms of an entry in place of its old ones. An archived entry has none.
pub(crate) fn replace_entry_terms(
    tx: &mut Tx<'_>,
    old: &BTreeSet<String>,
    new: &EntryTerms,
) -> Result<(), QueryError> {
    if *old == new.terms {
        return Ok(());
    }
    query("DELETE FROM entry_search_terms WHERE entry_id = $1").bind(new.entry.0).execute(tx)?;
    if !new.terms.is_empty() {
        let add = query("INSERT INTO entry_search_terms (entry_id, terms) VALUES ($1, $2)");
        add.bind(new.entry.0).bind(new.joined()).execute(tx)?;
    }
    let removed: Vec<&str> = old.difference(&new.terms).map(String::as_str).collect();
    remove_counts(tx, new.client, &removed)?;
    let added = new.terms.difference(old).map(|term| ((new.client, term.as_str()), 1));
    add_counts(tx, &added.collect::<Vec<_>>())
}

/// Takes one entry off the count of each term. A term that no other entry has is deleted.
fn remove_counts(tx: &mut Tx<'_>, client: ClientId, terms: &[&str]) -> Result<(), QueryError> {
    for terms in terms.chunks(MAX_ROWS_PER_STATEMENT) {
        for (change, condition) in [
            ("DELETE FROM client_search_terms", " AND entries = 1"),
            ("UPDATE client_search_terms SET entries = entries - 1", ""),
        ] {
            let mut remove = Statement::new(change);
            remove.push(" WHERE client_id = ").push_bind(client.0).push(" AND in_entries = ").push_bind(true);
            remove.push(condition).push(" AND term IN ").push_list(terms.iter().copied());
            remove.build().persistent(false).execute(tx)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_terms_are_the_words_of_title_and_text_that_a_search_can_find() {
        let terms =
            entry_terms(&"Café visit".parse().unwrap(), &"We met at 9. 法律 is law: met".parse().unwrap());
        let expected = ["cafe", "law", "met", "visit", "法律"];
        assert_eq!(terms.iter().map(String::as_str).collect::<Vec<_>>(), expected);
        let indexed = EntryTerms { entry: EntryId(1), client: ClientId(1001), terms };
        assert_eq!(indexed.joined(), " cafe law met visit 法律");
    }

    #[test]
    fn terms_per_entry_are_bounded() {
        let words: Vec<String> = (0..3000).map(|number| format!("w{number}")).collect();
        let terms = entry_terms(&"Many".parse().unwrap(), &words.join(" ").parse().unwrap());
        assert_eq!(terms.len(), MAX_TERMS_PER_ENTRY);
        assert!(terms.contains("many") && terms.contains("w10") && !terms.contains("w2999"));
    }
}
