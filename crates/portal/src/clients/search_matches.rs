//! Entries that match a search, under the clients of the list. The policy decides on each record before anything of it is
//! read. The audit row of the search covers these decisions; a denial has a row of its own.

use super::entry_view::entry_kind_labels;
use super::record_query::{Tab, from_entry_href};
use crate::error::PageError;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::time_format::{DisplayTime, LocalTime, day_or_time};
use chancery_domain::ClientId;
use chancery_store::{ClientOwner, ClientPage, EntryCursor, EntryMatch, SnippetPart};
use std::collections::HashMap;

/// A matching entry on the page.
pub(super) struct MatchView {
    pub(super) href: String,
    pub(super) noun: &'static str,
    pub(super) title: Vec<SnippetPart>,
    pub(super) excerpt: Vec<SnippetPart>,
    pub(super) at: DisplayTime,
}

impl MatchView {
    pub(super) fn new(client: ClientId, found: EntryMatch, local: &LocalTime) -> Self {
        let EntryMatch { id, kind, at, title, excerpt } = found;
        Self {
            href: from_entry_href(client, Tab::All, EntryCursor { at, id }),
            noun: entry_kind_labels(kind).noun,
            title,
            excerpt,
            at: DisplayTime { iso: at.to_iso(), text: day_or_time(at, local) },
        }
    }
}

impl Portal {
    /// The entries that match the search, of those clients of the page that have any.
    pub(super) async fn find_matches(
        &self,
        signed_in: &SignedIn,
        found: &ClientPage,
    ) -> Result<HashMap<ClientId, Vec<EntryMatch>>, PageError> {
        let Some(search) = &found.search else { return Ok(HashMap::new()) };
        let listed = found.lines.iter().map(|line| &line.client);
        let matching = listed.filter(|client| search.has_matches_of(client.id));
        let clients: Vec<ClientOwner> =
            matching.map(|client| ClientOwner { client: client.id, owner: client.owner.id }).collect();
        let permits = self.permits_to_read(signed_in, &clients).await?;
        Ok(self.store.clients.find_matches(search, permits).await?)
    }
}
