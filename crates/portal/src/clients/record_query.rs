//! Parses and writes the query string of a record: which entries to show, and which form is open.

use super::done::CompletedChange;
use super::list_query::invalid_parameter;
use super::undo::Undo;
use chancery_domain::{ClientId, DisputeStatus, EntryId, EntryKind, UnixMillis};
use chancery_store::{EntryCursor, EntryQuery};
use chancery_web::ErrorPage;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tab {
    #[default]
    All,
    Of(EntryKind),
    Archived,
}

const TABS: [(Tab, &str); 5] = [
    (Tab::All, "everything"),
    (Tab::Of(EntryKind::MeetingNote), "notes"),
    (Tab::Of(EntryKind::BillingDispute), "disputes"),
    (Tab::Of(EntryKind::DraftLetter), "letters"),
    (Tab::Archived, "archived"),
];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TimelineView {
    pub(crate) tab: Tab,
    /// Only disputes with this status, on the tab of disputes.
    pub(crate) state: Option<DisputeStatus>,
    /// Only entries older than this one.
    pub(crate) older: Option<EntryCursor>,
}

/// A form that a URL opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestedForm {
    Details,
    NewEntry(EntryKind),
    Entry(EntryId),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordQuery {
    pub(crate) view: TimelineView,
    pub(crate) open: Option<RequestedForm>,
    pub(crate) done: Option<CompletedChange>,
    pub(crate) undo: Option<Undo>,
    /// The entry that `done` is about. The confirmation is shown there, because the page scrolls to it.
    pub(crate) done_entry: Option<EntryId>,
}

impl Tab {
    pub(super) fn as_str(self) -> &'static str {
        TABS.iter().find(|(tab, _)| *tab == self).map_or("everything", |(_, name)| name)
    }
}

impl TimelineView {
    pub(crate) fn entry_query(self) -> EntryQuery {
        let kind = match self.tab {
            Tab::Of(kind) => Some(kind),
            Tab::All | Tab::Archived => None,
        };
        let is_open = self.dispute_status().map(DisputeStatus::is_open);
        EntryQuery { kind, is_open, is_archived: self.tab == Tab::Archived, after: self.older }
    }

    /// The status that the entries are filtered by.
    pub(crate) fn dispute_status(self) -> Option<DisputeStatus> {
        self.state.filter(|_| self.tab == Tab::Of(EntryKind::BillingDispute))
    }
}

impl RecordQuery {
    pub(super) fn parse(query: &str) -> Result<Self, ErrorPage> {
        let mut parsed = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match (&*name, &*value) {
                ("tab" | "state" | "older" | "open", "") => {}
                ("tab", tab_name) => {
                    let tab = TABS.iter().find(|(_, name)| *name == tab_name).map(|(tab, _)| *tab);
                    let why = "must be `everything`, `notes`, `disputes`, `letters` or `archived`";
                    parsed.view.tab = tab.ok_or_else(|| invalid_parameter("tab", why))?;
                }
                ("state", status) => {
                    let status = status.parse::<DisputeStatus>().ok();
                    let why = "must be `open` or `resolved`";
                    parsed.view.state = Some(status.ok_or_else(|| invalid_parameter("state", why))?);
                }
                ("older", cursor) => {
                    let cursor = parse_cursor(cursor);
                    parsed.view.older =
                        Some(cursor.ok_or_else(|| invalid_parameter("older", "is not valid"))?);
                }
                ("open", form_name) => {
                    let opened = parse_requested_form(form_name);
                    let why = "must be `facts`, `note`, `dispute`, `letter` or `entry-NUMBER`";
                    parsed.open = Some(opened.ok_or_else(|| invalid_parameter("open", why))?);
                }
                ("done", done) => parsed.done = CompletedChange::parse(done),
                ("undo", undo) => parsed.undo = Undo::parse(undo),
                // Ignored like an unknown `done`.
                ("at", entry) => parsed.done_entry = entry.parse().ok().map(EntryId),
                _ => {}
            }
        }
        Ok(parsed)
    }

    /// The URL, without default values.
    pub(super) fn href(self, client: ClientId) -> String {
        let mut query_string = form_urlencoded::Serializer::new(String::new());
        if self.view.tab != Tab::default() {
            query_string.append_pair("tab", self.view.tab.as_str());
        }
        if let Some(status) = self.view.state {
            query_string.append_pair("state", status.as_str());
        }
        if let Some(EntryCursor { at, id }) = self.view.older {
            query_string.append_pair("older", &format!("{}_{id}", at.0));
        }
        let open = self.open.map(|opened| match opened {
            RequestedForm::Details => "facts".to_owned(),
            RequestedForm::NewEntry(EntryKind::MeetingNote) => "note".to_owned(),
            RequestedForm::NewEntry(EntryKind::BillingDispute) => "dispute".to_owned(),
            RequestedForm::NewEntry(EntryKind::DraftLetter) => "letter".to_owned(),
            RequestedForm::Entry(id) => format!("entry-{id}"),
        });
        if let Some(open) = open {
            query_string.append_pair("open", &open);
        }
        if let Some(done) = self.done {
            query_string.append_pair("done", done.as_str());
        }
        if let Some(undo) = self.undo {
            query_string.append_pair("undo", &undo.to_string());
        }
        if let Some(entry) = self.done_entry {
            query_string.append_pair("at", &entry.to_string());
        }
        match query_string.finish() {
            query_string if query_string.is_empty() => format!("/clients/{client}"),
            query_string => format!("/clients/{client}?{query_string}"),
        }
    }
}

/// URL of the record's page with a confirmation.
pub(super) fn done_href(client: ClientId, done: CompletedChange) -> String {
    RecordQuery { done: Some(done), ..RecordQuery::default() }.href(client)
}

/// URL of the record's page with a confirmation that offers to undo the change.
pub(super) fn undoable_href(client: ClientId, done: CompletedChange, undo: Option<Undo>) -> String {
    RecordQuery { done: Some(done), undo, ..RecordQuery::default() }.href(client)
}

/// URL of an entry with a confirmation there.
pub(super) fn entry_href(
    client: ClientId,
    query: RecordQuery,
    done: CompletedChange,
    entry: EntryId,
) -> String {
    let query = RecordQuery { done: Some(done), done_entry: Some(entry), ..query };
    format!("{}#entry-{entry}", query.href(client))
}

/// URL of a record's page that begins with this entry, however old it is.
pub(crate) fn from_entry_href(client: ClientId, tab: Tab, EntryCursor { at, id }: EntryCursor) -> String {
    let next = EntryCursor { at, id: EntryId(id.0.saturating_add(1)) };
    let view = TimelineView { tab, older: Some(next), ..TimelineView::default() };
    let page = RecordQuery { view, ..RecordQuery::default() }.href(client);
    format!("{page}#entry-{id}")
}

fn parse_cursor(text: &str) -> Option<EntryCursor> {
    let (at, id) = text.split_once('_')?;
    Some(EntryCursor { at: UnixMillis(at.parse().ok()?), id: EntryId(id.parse().ok()?) })
}

fn parse_requested_form(text: &str) -> Option<RequestedForm> {
    Some(match text {
        "facts" => RequestedForm::Details,
        "note" => RequestedForm::NewEntry(EntryKind::MeetingNote),
        "dispute" => RequestedForm::NewEntry(EntryKind::BillingDispute),
        "letter" => RequestedForm::NewEntry(EntryKind::DraftLetter),
        _ => RequestedForm::Entry(EntryId(text.strip_prefix("entry-")?.parse().ok()?)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_to_an_entry_opens_a_page_that_begins_with_it() {
        let entry = EntryCursor { at: UnixMillis(5000), id: EntryId(7) };
        let href = |tab| from_entry_href(ClientId(1042), tab, entry);
        assert_eq!(href(Tab::All), "/clients/1042?older=5000_8#entry-7");
        let letters = Tab::Of(EntryKind::DraftLetter);
        assert_eq!(href(letters), "/clients/1042?tab=letters&older=5000_8#entry-7");
    }

    #[test]
    fn record_query_round_trips_through_the_url() {
        let client = ClientId(1042);
        for (tab, _) in TABS {
            for older in [None, Some(EntryCursor { at: UnixMillis(-5), id: EntryId(9) })] {
                for open in [
                    None,
                    Some(RequestedForm::Details),
                    Some(RequestedForm::NewEntry(EntryKind::DraftLetter)),
                    Some(RequestedForm::Entry(EntryId(7))),
                ] {
                    let query = RecordQuery {
                        view: TimelineView { tab, state: Some(DisputeStatus::Resolved), older },
                        open,
                        done: Some(CompletedChange::Created),
                        undo: Undo::parse("3_17"),
                        done_entry: Some(EntryId(9)),
                    };
                    let address = query.href(client);
                    assert_eq!(RecordQuery::parse(address.split_once('?').unwrap().1).unwrap(), query);
                }
            }
        }
        assert_eq!(RecordQuery::default().href(client), "/clients/1042");
    }

    #[test]
    fn invalid_query_parameters_are_rejected_by_name() {
        for (query, name) in
            [("tab=x", "`tab`"), ("state=x", "`state`"), ("older=x", "`older`"), ("open=entry-x", "`open`")]
        {
            let error = RecordQuery::parse(query).unwrap_err();
            assert!(error.reason.contains(name), "{}", error.reason);
        }
        assert_eq!(RecordQuery::parse("done=nonsense&undo=x&other=1").unwrap(), RecordQuery::default());
    }
}
