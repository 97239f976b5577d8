//! What an address of a record asks for, read and written: which entries, and which form is open among them.

use super::done::Done;
use super::list_query::bad_parameter;
use chancery_domain::{ClientId, EntryId, EntryKind, UnixMillis};
use chancery_store::{EntriesWanted, EntryPlace};
use chancery_web::ErrorPage;
use openidconnect::url::form_urlencoded;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tab {
    #[default]
    Everything,
    Of(EntryKind),
    Archived,
}

const TABS: [(Tab, &str); 5] = [
    (Tab::Everything, "everything"),
    (Tab::Of(EntryKind::MeetingNote), "notes"),
    (Tab::Of(EntryKind::BillingDispute), "disputes"),
    (Tab::Of(EntryKind::DraftLetter), "letters"),
    (Tab::Archived, "archived"),
];

/// Which entries of a record are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) tab: Tab,
    /// Those after this one.
    pub(crate) older: Option<EntryPlace>,
}

/// A form that an address opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    Facts,
    NewEntry(EntryKind),
    Entry(EntryId),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordQuery {
    pub(crate) view: View,
    pub(crate) open: Option<Opened>,
    pub(crate) done: Option<Done>,
}

impl Tab {
    pub(super) fn as_str(self) -> &'static str {
        TABS.iter().find(|(tab, _)| *tab == self).map_or("everything", |(_, name)| name)
    }
}

impl View {
    pub(crate) fn wanted(self) -> EntriesWanted {
        let kind = match self.tab {
            Tab::Of(kind) => Some(kind),
            Tab::Everything | Tab::Archived => None,
        };
        EntriesWanted::Page { kind, is_archived: self.tab == Tab::Archived, after: self.older }
    }
}

impl RecordQuery {
    pub(super) fn parse(query: &str) -> Result<Self, ErrorPage> {
        let mut asked = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match (&*name, &*value) {
                ("tab" | "older" | "open", "") => {}
                ("tab", wanted) => {
                    let tab = TABS.iter().find(|(_, name)| *name == wanted).map(|(tab, _)| *tab);
                    let why = "is `everything`, `notes`, `disputes`, `letters` or `archived`";
                    asked.view.tab = tab.ok_or_else(|| bad_parameter("tab", why))?;
                }
                ("older", place) => {
                    let place = parse_place(place);
                    asked.view.older =
                        Some(place.ok_or_else(|| bad_parameter("older", "is none of a link of ours"))?);
                }
                ("open", wanted) => {
                    let opened = parse_opened(wanted);
                    let why = "is `facts`, `note`, `dispute`, `letter` or `entry-` and a number";
                    asked.open = Some(opened.ok_or_else(|| bad_parameter("open", why))?);
                }
                ("done", done) => asked.done = Done::parse(done),
                _ => {}
            }
        }
        Ok(asked)
    }

    /// The address of what it asks for, without what goes without saying.
    pub(super) fn href(self, client: ClientId) -> String {
        let mut written = form_urlencoded::Serializer::new(String::new());
        if self.view.tab != Tab::default() {
            written.append_pair("tab", self.view.tab.as_str());
        }
        if let Some(EntryPlace { at, id }) = self.view.older {
            written.append_pair("older", &format!("{}_{id}", at.0));
        }
        let open = self.open.map(|opened| match opened {
            Opened::Facts => "facts".to_owned(),
            Opened::NewEntry(EntryKind::MeetingNote) => "note".to_owned(),
            Opened::NewEntry(EntryKind::BillingDispute) => "dispute".to_owned(),
            Opened::NewEntry(EntryKind::DraftLetter) => "letter".to_owned(),
            Opened::Entry(id) => format!("entry-{id}"),
        });
        if let Some(open) = open {
            written.append_pair("open", &open);
        }
        if let Some(done) = self.done {
            written.append_pair("done", done.as_str());
        }
        match written.finish() {
            written if written.is_empty() => format!("/clients/{client}"),
            written => format!("/clients/{client}?{written}"),
        }
    }
}

/// Where a record says what was done to it.
pub(super) fn done_href(client: ClientId, done: Done) -> String {
    RecordQuery { done: Some(done), ..RecordQuery::default() }.href(client)
}

fn parse_place(text: &str) -> Option<EntryPlace> {
    let (at, id) = text.split_once('_')?;
    Some(EntryPlace { at: UnixMillis(at.parse().ok()?), id: EntryId(id.parse().ok()?) })
}

fn parse_opened(text: &str) -> Option<Opened> {
    Some(match text {
        "facts" => Opened::Facts,
        "note" => Opened::NewEntry(EntryKind::MeetingNote),
        "dispute" => Opened::NewEntry(EntryKind::BillingDispute),
        "letter" => Opened::NewEntry(EntryKind::DraftLetter),
        _ => Opened::Entry(EntryId(text.strip_prefix("entry-")?.parse().ok()?)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_view_of_a_record_has_an_address_that_leads_back_to_it() {
        let client = ClientId(1042);
        for (tab, _) in TABS {
            for older in [None, Some(EntryPlace { at: UnixMillis(-5), id: EntryId(9) })] {
                for open in [
                    None,
                    Some(Opened::Facts),
                    Some(Opened::NewEntry(EntryKind::DraftLetter)),
                    Some(Opened::Entry(EntryId(7))),
                ] {
                    let query = RecordQuery { view: View { tab, older }, open, done: Some(Done::Created) };
                    let address = query.href(client);
                    assert_eq!(RecordQuery::parse(address.split_once('?').unwrap().1).unwrap(), query);
                }
            }
        }
        assert_eq!(RecordQuery::default().href(client), "/clients/1042");
    }

    #[test]
    fn what_no_link_of_ours_says_is_refused_by_name() {
        for (query, name) in [("tab=x", "`tab`"), ("older=x", "`older`"), ("open=entry-x", "`open`")] {
            let error = RecordQuery::parse(query).unwrap_err();
            assert!(error.reason.contains(name), "{}", error.reason);
        }
        assert_eq!(RecordQuery::parse("done=nonsense&other=1").unwrap(), RecordQuery::default());
    }
}
