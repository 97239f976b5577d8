//! Parses and writes the query string of a record: which entries to show, and which form is open.

use super::done::CompletedChange;
use super::list_query::invalid_parameter;
use chancery_domain::{ClientId, EntryId, EntryKind, UnixMillis};
use chancery_store::{EntryCursor, EntryQuery};
use chancery_web::ErrorPage;
use openidconnect::url::form_urlencoded;

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
        EntryQuery { kind, is_archived: self.tab == Tab::Archived, after: self.older }
    }
}

impl RecordQuery {
    pub(super) fn parse(query: &str) -> Result<Self, ErrorPage> {
        let mut parsed = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match (&*name, &*value) {
                ("tab" | "older" | "open", "") => {}
                ("tab", tab_name) => {
                    let tab = TABS.iter().find(|(_, name)| *name == tab_name).map(|(tab, _)| *tab);
                    let why = "must be `everything`, `notes`, `disputes`, `letters` or `archived`";
                    parsed.view.tab = tab.ok_or_else(|| invalid_parameter("tab", why))?;
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
                        view: TimelineView { tab, older },
                        open,
                        done: Some(CompletedChange::Created),
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
        for (query, name) in [("tab=x", "`tab`"), ("older=x", "`older`"), ("open=entry-x", "`open`")] {
            let error = RecordQuery::parse(query).unwrap_err();
            assert!(error.reason.contains(name), "{}", error.reason);
        }
        assert_eq!(RecordQuery::parse("done=nonsense&other=1").unwrap(), RecordQuery::default());
    }
}
