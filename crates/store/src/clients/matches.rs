//! Entries that match a search, with excerpts. The list finds the clients; their entries are read here, with a permit for
//! each record. One audit row covers the search: that of the list, which is committed first. Permits of another request
//! or for a client that the list does not have read nothing. A row for each excerpt would fill the log with records that
//! were not opened, 25 of them with each letter typed.

use crate::ClientError;
use crate::audit::principal::ensure_principal_unchanged;
use crate::clients::entries::SELECT_ENTRIES;
use crate::clients::entry_terms::push_entry_has;
use crate::clients::records::Clients;
use crate::clients::search::TermRange;
use crate::clients::snippet::{SnippetPart, excerpt, marked};
use crate::clients::types::RecordedSearch;
use crate::db::{Query, QueryError, Statement, Tx};
use chancery_domain::{ClientId, Entry, EntryId, EntryKind, PersonId, UnixMillis};
use chancery_policy::{Permit, ReadClient};
use std::collections::HashMap;

/// Most matches of one client: the newest.
pub const MAX_MATCHES_PER_CLIENT: u32 = 3;

/// An entry that matches a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryMatch {
    pub id: EntryId,
    pub kind: EntryKind,
    pub at: UnixMillis,
    pub title: Vec<SnippetPart>,
    /// The text around its first match. Empty if only the title matches.
    pub excerpt: Vec<SnippetPart>,
}

impl EntryMatch {
    fn new(entry: &Entry, terms: &[TermRange]) -> Self {
        Self {
            id: entry.id,
            kind: entry.kind,
            at: entry.at,
            title: marked(entry.title.as_str(), terms),
            excerpt: excerpt(entry.text.as_str(), terms),
        }
    }

    /// The excerpt, or the title if only that matches.
    pub fn snippet(&self) -> String {
        let parts = if self.excerpt.is_empty() { &self.title } else { &self.excerpt };
        parts.iter().map(|part| part.text.as_str()).collect()
    }
}

/// Which terms a matching entry has.
#[derive(Clone, Copy)]
enum MatchRule {
    /// Each term that the client's details do not have, and at least one.
    Complete,
    /// At least one term. The others are in other entries.
    Partial,
}

/// Selects the newest matching entries of a client, if it still has this owner. Reads the entries from the newest on, and
/// stops.
fn select_matches(client: ClientId, owner: PersonId, terms: &[TermRange], rule: MatchRule) -> Query {
    let mut read = Statement::new(SELECT_ENTRIES);
    read.push("e.client_id = ").push_bind(client.0).push(" AND e.is_archived = ").push_bind(false);
    read.push(" AND EXISTS (SELECT 1 FROM clients c WHERE c.id = e.client_id AND c.owner_id = ");
    read.push_bind(owner.0).push(") AND (");
    for (index, term) in terms.iter().enumerate() {
        read.push(if index > 0 { " OR " } else { "" });
        push_entry_has(&mut read, term);
    }
    read.push(")");
    if matches!(rule, MatchRule::Complete) {
        for term in terms {
            read.push(" AND (");
            push_entry_has(&mut read, term);
            read.push(" OR EXISTS (SELECT 1 FROM client_search_terms d WHERE d.client_id = e.client_id");
            read.push(" AND d.in_entries = ").push_bind(false).push(" AND ");
            term.push_condition(&mut read, "d.term");
            read.push("))");
        }
    }
    read.push(" ORDER BY e.at_ms DESC, e.id DESC LIMIT ").push_bind(i64::from(MAX_MATCHES_PER_CLIENT));
    read.build()
}

fn matches_of(
    tx: &mut Tx<'_>,
    client: ClientId,
    owner: PersonId,
    terms: &[TermRange],
) -> Result<Vec<EntryMatch>, QueryError> {
    let select = |rule| select_matches(client, owner, terms, rule);
    let mut entries: Vec<Entry> = select(MatchRule::Complete).fetch_all(tx)?;
    if entries.is_empty() && terms.len() > 1 {
        entries = select(MatchRule::Partial).fetch_all(tx)?;
    }
    Ok(entries.iter().map(|entry| EntryMatch::new(entry, terms)).collect())
}

impl Clients {
    /// The newest entries of each client that match the search and are not archived: those with every term that the
    /// client's details do not have. If a client has none, its terms are spread over several entries, and the newest of
    /// those are returned. Reads only clients of the search, in the search's own request. A client with a new owner is
    /// left out.
    pub async fn find_matches(
        &self,
        search: &RecordedSearch,
        permits: Vec<Permit<ReadClient>>,
    ) -> Result<HashMap<ClientId, Vec<EntryMatch>>, ClientError> {
        let search = search.clone();
        self.db
            .read(move |tx| {
                ensure_principal_unchanged::<ClientError>(tx, search.access_request.by)?;
                let mut found = HashMap::with_capacity(permits.len());
                for permit in &permits {
                    let (Some(client), Some(owner)) = (permit.client(), permit.owner()) else { continue };
                    if !search.covers(permit) {
                        continue;
                    }
                    let matches = matches_of(tx, client, owner, &search.terms)?;
                    if !matches.is_empty() {
                        found.insert(client, matches);
                    }
                }
                Ok(found)
            })
            .await
    }
}
