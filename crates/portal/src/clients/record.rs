//! `GET /clients/{id}`: a client's record, as a page with at most one form open in it, or as JSON. The deeds that come back to the
//! record with something to put right show it through `show`.

use super::entry_form::EntryForm;
use super::entry_view::EntryView;
use super::facts_form::FactsForm;
use super::json;
use super::people::{self, Choice};
use super::record_query::{Opened, RecordQuery, Tab, View};
use crate::authz::capabilities::ClientCapabilities;
use crate::drafting::panel::{Beside, DraftPanel};
use crate::error::{PageError, no_such_client, no_such_entry};
use crate::frame::{Frame, Section};
use crate::path::ClientNumber;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::when::{Moment, long_day};
use askama::Template;
use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use chancery_domain::{Client, ClientId, Entry, EntryId, EntryKind, UnixMillis};
use chancery_policy::ReadClient;
use chancery_store::{ClientRecord, EntriesWanted, EntryCounts, EntryPlace, VersionsWanted};
use chancery_web::{Notice, page, wants_json};
use std::fmt::Write as _;
use std::sync::Arc;

/// The form that is open in a record. One at a time: one page, one question.
pub(crate) enum Open {
    Nothing,
    Facts(FactsForm),
    Entry(EntryForm),
}

/// How a record is to be shown.
pub(crate) struct Showing {
    pub(crate) view: View,
    pub(crate) open: Open,
    pub(crate) notice: Option<Notice>,
    pub(crate) status: StatusCode,
}

#[derive(Template)]
#[template(path = "clients/record.html")]
struct RecordPage<'a> {
    frame: Frame<'a>,
    id: i64,
    facts: Facts,
    badges: Badges,
    may: ClientCapabilities,
    owners: Vec<Choice>,
    version: i64,
    tabs: Vec<TabLink>,
    entries: Vec<EntryView>,
    facts_form: Option<FactsForm>,
    entry_form: Option<EntryForm>,
    looks: Vec<LookView>,
    shown: usize,
    total: u64,
    older: Option<String>,
    newest: Option<String>,
    links: Links,
    notice: Option<Notice>,
    is_archived_tab: bool,
}

struct Facts {
    name: String,
    owner: String,
    contact: String,
    email: String,
    mailto: String,
    telephone: String,
    tel: Option<String>,
    address: Vec<String>,
    since: Option<(String, String)>,
}

struct Badges {
    has_open_dispute: bool,
    has_open_letter: bool,
    is_archived: bool,
}

struct TabLink {
    id: &'static str,
    label: &'static str,
    count: u64,
    href: String,
    is_shown: bool,
}

struct LookView {
    email: String,
    at: Moment,
    times: u64,
}

struct Links {
    edit_facts: String,
    new_letter: String,
    new_note: String,
    new_dispute: String,
    /// The same page with nothing open.
    close: String,
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    ClientNumber(id): ClientNumber,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, PageError> {
    let RecordQuery { view, open, done } = RecordQuery::parse(query.as_deref().unwrap_or_default())?;
    if wants_json(&headers) {
        let record = read(&portal, &who, id, &EntriesWanted::All).await?;
        return Ok(Json(json::record(&record)).into_response());
    }
    let record = read(&portal, &who, id, &view.wanted()).await?;
    let may = ClientCapabilities::of(&portal.policy, who.principal(), &record.client);
    let open = match open {
        _ if !may.edit => Open::Nothing,
        None => Open::Nothing,
        Some(Opened::Facts) => Open::Facts(FactsForm::of(&record.client)),
        Some(Opened::NewEntry(kind)) => Open::Entry(EntryForm::new(kind, portal.clock.now())),
        Some(Opened::Entry(entry)) => Open::Entry(form_of(&portal, &who, &record, entry).await?),
    };
    let notice = done.map(|done| done.notice(id));
    render(&portal, &who, (record, may), Showing { view, open, notice, status: StatusCode::OK }).await
}

/// Reads a record, for which this person must be allowed to, and shows it.
pub(crate) async fn show(
    portal: &Portal,
    who: &SignedIn,
    id: ClientId,
    showing: Showing,
) -> Result<Response, PageError> {
    let record = read(portal, who, id, &showing.view.wanted()).await?;
    show_read(portal, who, record, showing).await
}

/// Shows a record that was just read for this person.
pub(crate) async fn show_read(
    portal: &Portal,
    who: &SignedIn,
    record: ClientRecord,
    showing: Showing,
) -> Result<Response, PageError> {
    let may = ClientCapabilities::of(&portal.policy, who.principal(), &record.client);
    render(portal, who, (record, may), showing).await
}

pub(crate) async fn read(
    portal: &Portal,
    who: &SignedIn,
    id: ClientId,
    wanted: &EntriesWanted,
) -> Result<ClientRecord, PageError> {
    let read = |permit| portal.store.clients.read_client(permit, wanted);
    Ok(portal.with_client_permit::<ReadClient, _, _>(who, id, read).await?.ok_or_else(no_such_client)?)
}

/// The form of an entry that may be on another page than the one that is shown.
async fn form_of(
    portal: &Portal,
    who: &SignedIn,
    record: &ClientRecord,
    id: EntryId,
) -> Result<EntryForm, PageError> {
    match record.entries.iter().find(|entry| entry.id == id) {
        Some(entry) => Ok(EntryForm::of(entry)),
        None => Ok(EntryForm::of(&saved_entry(portal, who, record.client.id, id).await?)),
    }
}

/// An entry as it is saved now.
pub(super) async fn saved_entry(
    portal: &Portal,
    who: &SignedIn,
    client: ClientId,
    id: EntryId,
) -> Result<Entry, PageError> {
    let read = |permit| portal.store.clients.entry_versions(permit, id, VersionsWanted::None);
    let found = portal.with_client_permit::<ReadClient, _, _>(who, client, read).await?;
    Ok(found.map(|(entry, _)| entry).ok_or_else(|| no_such_entry(client))?)
}

/// Beside a letter's editor. It offers the newest entries to read, of every kind, whichever the page shows.
async fn draft_panel(
    portal: &Portal,
    who: &SignedIn,
    record: &ClientRecord,
    view: View,
    form: &EntryForm,
) -> Result<String, PageError> {
    let EntryForm { entry, purpose, max_output_tokens, .. } = form;
    let (id, letter) = (record.client.id, Beside { entry: *entry, purpose, max_output_tokens });
    let panel = match view == View::default() {
        true => DraftPanel::fresh(portal, id, &record.entries, letter).await,
        false => {
            let newest = read(portal, who, id, &View::default().wanted()).await?;
            DraftPanel::fresh(portal, id, &newest.entries, letter).await
        }
    };
    Ok(panel.html()?)
}

async fn render(
    portal: &Portal,
    who: &SignedIn,
    (record, may): (ClientRecord, ClientCapabilities),
    mut showing: Showing,
) -> Result<Response, PageError> {
    if let Open::Entry(form) = &mut showing.open
        && form.is_letter()
        && form.side_panel.is_none()
        && form.conflict.is_none()
    {
        form.side_panel = Some(draft_panel(portal, who, &record, showing.view, form).await?);
    }
    let people = if may.reassign { people::known_to(portal, who).await? } else { Vec::new() };
    let owners = people::choices_with_owner(&people, &record.client.owner);
    let frame = Frame::new(portal, who, Section::Clients);
    let Showing { view, open, notice, status } = showing;
    let shown = RecordPage::new(frame, record, may, (view, open), portal.clock.now());
    Ok(page(status, &RecordPage { owners, notice, ..shown })?)
}

impl<'a> RecordPage<'a> {
    fn new(
        frame: Frame<'a>,
        record: ClientRecord,
        may: ClientCapabilities,
        (view, open): (View, Open),
        now: UnixMillis,
    ) -> Self {
        let ClientRecord { client, entries, has_more, counts, looks } = record;
        let id = client.id;
        let at = |view: View, open: Option<Opened>| RecordQuery { view, open, done: None }.href(id);
        let last = entries.last().filter(|_| has_more);
        let older = last.map(|entry| EntryPlace { at: entry.at, id: entry.id });
        let edit_href = |entry: EntryId| format!("{}#entry-{entry}", at(view, Some(Opened::Entry(entry))));
        let (facts_form, entry_form) = match open {
            Open::Nothing => (None, None),
            Open::Facts(form) => (Some(form), None),
            Open::Entry(form) => (None, Some(form)),
        };
        // The cursor is in the first field: with a fragment in the address, browsers leave `autofocus` alone and go by it.
        let new_entry = |kind| format!("{}#title", at(View::default(), Some(Opened::NewEntry(kind))));
        Self {
            frame,
            id: id.0,
            badges: Badges {
                has_open_dispute: counts.open_disputes > 0,
                has_open_letter: counts.open_letters > 0,
                is_archived: client.archived_at.is_some(),
            },
            may,
            owners: Vec::new(),
            version: client.version.0,
            tabs: tabs(id, view.tab, &counts),
            shown: entries.len(),
            total: count(view.tab, &counts),
            older: older.map(|older| at(View { older: Some(older), ..view }, None)),
            newest: view.older.map(|_| at(View { older: None, ..view }, None)),
            entries: entries.iter().map(|entry| EntryView::new(entry, edit_href(entry.id), now)).collect(),
            facts_form,
            entry_form,
            looks: looks
                .into_iter()
                .map(|look| LookView {
                    email: look.person.email.to_string(),
                    at: Moment::new(look.last_at, now),
                    times: look.times,
                })
                .collect(),
            links: Links {
                edit_facts: format!("{}#facts-form", at(view, Some(Opened::Facts))),
                new_letter: new_entry(EntryKind::DraftLetter),
                new_note: new_entry(EntryKind::MeetingNote),
                new_dispute: new_entry(EntryKind::BillingDispute),
                close: at(view, None),
            },
            notice: None,
            is_archived_tab: view.tab == Tab::Archived,
            facts: Facts::new(&client),
        }
    }

    fn has_problems(&self) -> bool {
        self.facts_form.as_ref().is_some_and(|form| form.problems.any())
            || self.entry_form.as_ref().is_some_and(|form| form.problems.any())
    }

    /// The form of an entry that stands among the others.
    fn form_of(&self, entry: &i64) -> Option<&EntryForm> {
        self.entry_form.as_ref().filter(|form| form.entry == Some(EntryId(*entry)))
    }

    /// The form of a new entry, or of one that is not on this page.
    fn form_on_top(&self) -> Option<&EntryForm> {
        let is_listed =
            |form: &EntryForm| self.entries.iter().any(|entry| form.entry == Some(EntryId(entry.id)));
        self.entry_form.as_ref().filter(|form| !is_listed(form))
    }
}

impl Facts {
    fn new(client: &Client) -> Self {
        let telephone = client.facts.telephone.to_string();
        let email = client.facts.email.to_string();
        Self {
            name: client.name.to_string(),
            owner: client.owner.email.to_string(),
            contact: client.facts.contact.to_string(),
            mailto: mailto(&email),
            email,
            tel: tel(&telephone),
            telephone,
            address: client.facts.address.as_str().lines().map(str::to_owned).collect(),
            since: client.facts.since.map(|day| (day.to_string(), long_day(day))),
        }
    }
}

/// Everything but the plainest letters is written as numbers, so that an address cannot add a subject or a copy.
fn mailto(email: &str) -> String {
    let mut written = "mailto:".to_owned();
    for byte in email.bytes() {
        match byte {
            b'@' | b'.' | b'-' | b'_' | b'+' => written.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => written.push(char::from(byte)),
            byte => {
                let _ = write!(written, "%{byte:02X}");
            }
        }
    }
    written
}

/// None where what is written there is no number that a telephone could call.
fn tel(telephone: &str) -> Option<String> {
    const FEWEST_DIGITS: usize = 3;
    let is_plain = telephone.chars().all(|c| c.is_ascii_digit() || " +-/().".contains(c));
    let digits: String = telephone.chars().filter(char::is_ascii_digit).collect();
    let plus = if telephone.trim_start().starts_with('+') { "+" } else { "" };
    (is_plain && digits.len() >= FEWEST_DIGITS).then(|| format!("tel:{plus}{digits}"))
}

fn tabs(client: ClientId, shown: Tab, counts: &EntryCounts) -> Vec<TabLink> {
    let tab = |tab: Tab, id, label| TabLink {
        id,
        label,
        count: count(tab, counts),
        href: RecordQuery { view: View { tab, older: None }, ..RecordQuery::default() }.href(client),
        is_shown: tab == shown,
    };
    let mut tabs = vec![
        tab(Tab::Everything, "tab-everything", "Everything"),
        tab(Tab::Of(EntryKind::MeetingNote), "tab-notes", "Meeting notes"),
        tab(Tab::Of(EntryKind::BillingDispute), "tab-disputes", "Disputes"),
        tab(Tab::Of(EntryKind::DraftLetter), "tab-letters", "Letters"),
    ];
    if counts.archived > 0 || shown == Tab::Archived {
        tabs.push(tab(Tab::Archived, "tab-archived", "Archived"));
    }
    tabs
}

fn count(tab: Tab, counts: &EntryCounts) -> u64 {
    match tab {
        Tab::Everything => counts.meeting_notes + counts.billing_disputes + counts.draft_letters,
        Tab::Of(EntryKind::MeetingNote) => counts.meeting_notes,
        Tab::Of(EntryKind::BillingDispute) => counts.billing_disputes,
        Tab::Of(EntryKind::DraftLetter) => counts.draft_letters,
        Tab::Archived => counts.archived,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contact_links_carry_the_address_and_nothing_else() {
        assert_eq!(mailto("priya@harbourlane.example"), "mailto:priya@harbourlane.example");
        assert_eq!(mailto("a?cc=b@c"), "mailto:a%3Fcc%3Db@c");
        assert_eq!(tel("+1 617 555 0142").as_deref(), Some("tel:+16175550142"));
        assert_eq!(tel("ask at the desk"), None);
        assert_eq!(tel(""), None);
    }
}
