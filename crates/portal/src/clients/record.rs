//! `GET /clients/{id}`: a client's record, as a page with at most one open form, or as JSON. Changes with validation problems or
//! conflicts show the record through `show`.

use super::details_form::DetailsForm;
use super::done::CompletedChange;
use super::entry_form::EntryForm;
use super::entry_view::EntryView;
use super::people::{self, OwnerChoice};
use super::record_json;
use super::record_query::{RecordQuery, RequestedForm, Tab, TimelineView};
use super::record_tabs::{StateLink, TabLink, count, states, tabs};
use super::unsaved::record_form::form_session;
use super::unsaved::restore::FormReader;
use crate::authz::capabilities::ClientCapabilities;
use crate::drafting::panel::{DraftPanel, PanelInput};
use crate::error::{PageError, client_not_found, entry_not_found, letter_sent};
use crate::frame::{Frame, Section};
use crate::path::ClientNumber;
use crate::person_names::{DisplayPerson, PersonNames};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::time_format::{DisplayTime, LocalTime, long_day};
use askama::Template;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use chancery_domain::{Client, ClientId, Currency, Entry, EntryId, EntryKind};
use chancery_policy::ReadClient;
use chancery_store::{ClientRecord, EntryCursor, EntryQuery, VersionQuery};
use chancery_web::{Notice, page, wants_json};
use std::fmt::Write as _;
use std::sync::Arc;

/// The open form of a record. Only one at a time.
pub(crate) enum OpenForm {
    Nothing,
    Details(DetailsForm),
    Entry(EntryForm),
}

/// How to show a record.
pub(crate) struct RecordPageState {
    pub(crate) view: TimelineView,
    pub(crate) open: OpenForm,
    pub(crate) notice: Option<Notice>,
    pub(crate) status: StatusCode,
}

#[derive(Template)]
#[template(path = "clients/record.html")]
struct RecordPage<'a> {
    frame: Frame<'a>,
    id: i64,
    details: DetailsView,
    badges: Badges,
    can: ClientCapabilities,
    owners: Vec<OwnerChoice>,
    version: i64,
    /// Code of the firm's currency.
    currency: String,
    tabs: Vec<TabLink>,
    /// Filters by status; only on the tab of disputes.
    states: Vec<StateLink>,
    entries: Vec<EntryView>,
    details_form: Option<DetailsForm>,
    entry_form: Option<EntryForm>,
    views: Vec<RecordViewRow>,
    shown: usize,
    total: u64,
    older: Option<String>,
    newest: Option<String>,
    links: Links,
    notice: Option<Notice>,
    /// The entry that the notice is about.
    notice_entry: Option<EntryId>,
    is_archived_tab: bool,
    is_filtered: bool,
}

struct DetailsView {
    name: String,
    owner: DisplayPerson,
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

struct RecordViewRow {
    person: DisplayPerson,
    at: DisplayTime,
    times: u64,
}

struct Links {
    edit_details: String,
    new_letter: String,
    new_note: String,
    new_dispute: String,
    /// URL of this page with no form open.
    close: String,
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    ClientNumber(id): ClientNumber,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, PageError> {
    let RecordQuery { view, open, done, undo, done_entry } =
        RecordQuery::parse(query.as_deref().unwrap_or_default())?;
    if wants_json(&headers) {
        return record_json::respond(portal, signed_in, id).await;
    }
    let record = read(&portal, &signed_in, id, &view.entry_query()).await?;
    let can = ClientCapabilities::of(&portal.policy, signed_in.principal(), &record.client);
    let session = form_session(&portal, &headers);
    let reader = FormReader { portal: &portal, signed_in: &signed_in, client: id, session };
    let open = match open {
        _ if !can.edit => OpenForm::Nothing,
        None => OpenForm::Nothing,
        Some(RequestedForm::Details) => {
            OpenForm::Details(reader.details(DetailsForm::of(&record.client)).await?)
        }
        Some(RequestedForm::NewEntry(kind)) => {
            let form = EntryForm::new(kind, &signed_in.local_time(&portal));
            OpenForm::Entry(reader.entry(form).await?)
        }
        Some(RequestedForm::Entry(entry)) => {
            let form = form_of(&portal, &signed_in, &record, entry).await?;
            OpenForm::Entry(reader.entry(form).await?)
        }
    };
    let mut notice = done.map(|done| {
        let mut notice = done.notice(id);
        notice.form = undo.and_then(|undo| undo.form(done, id, can));
        notice
    });
    if let (Some(CompletedChange::Reassigned), Some(notice)) = (done, &mut notice) {
        let owner = PersonNames::read(&portal).await?.of_ref(&record.client.owner);
        notice.text = format!("The owner is now {}.", owner.text);
    }
    let state = RecordPageState { view, open, notice, status: StatusCode::OK };
    render(&portal, &signed_in, (record, can), state, done_entry).await
}

/// Reads a record, which the policy must allow, and shows it.
pub(crate) async fn show(
    portal: &Portal,
    signed_in: &SignedIn,
    id: ClientId,
    state: RecordPageState,
) -> Result<Response, PageError> {
    let record = read(portal, signed_in, id, &state.view.entry_query()).await?;
    show_record(portal, signed_in, record, state).await
}

/// Shows a record that was just read for this person.
pub(crate) async fn show_record(
    portal: &Portal,
    signed_in: &SignedIn,
    record: ClientRecord,
    state: RecordPageState,
) -> Result<Response, PageError> {
    let can = ClientCapabilities::of(&portal.policy, signed_in.principal(), &record.client);
    render(portal, signed_in, (record, can), state, None).await
}

pub(crate) async fn read(
    portal: &Portal,
    signed_in: &SignedIn,
    id: ClientId,
    query: &EntryQuery,
) -> Result<ClientRecord, PageError> {
    let read = |permit| portal.store.clients.read_client(permit, query);
    Ok(portal
        .with_client_permit::<ReadClient, _, _>(signed_in, id, read)
        .await?
        .ok_or_else(client_not_found)?)
}

/// The form of an entry that may not be on the current page.
async fn form_of(
    portal: &Portal,
    signed_in: &SignedIn,
    record: &ClientRecord,
    id: EntryId,
) -> Result<EntryForm, PageError> {
    let (local, currency) = (signed_in.local_time(portal), portal.settings.invoice_terms.currency);
    let entry = match record.entries.iter().find(|entry| entry.id == id) {
        Some(entry) => entry.clone(),
        None => saved_entry(portal, signed_in, record.client.id, id).await?,
    };
    match entry.sent {
        None => Ok(EntryForm::of(&entry, &local, currency)),
        Some(_) => Err(letter_sent(record.client.id, id).into()),
    }
}

/// The current version of an entry.
pub(super) async fn saved_entry(
    portal: &Portal,
    signed_in: &SignedIn,
    client: ClientId,
    id: EntryId,
) -> Result<Entry, PageError> {
    let read = |permit| portal.store.clients.entry_versions(permit, id, VersionQuery::None);
    let found = portal.with_client_permit::<ReadClient, _, _>(signed_in, client, read).await?;
    Ok(found.map(|(entry, _)| entry).ok_or_else(|| entry_not_found(client))?)
}

/// The panel beside a letter's editor. It offers the newest entries of every kind as context, whichever tab is shown.
async fn draft_panel(
    portal: &Portal,
    signed_in: &SignedIn,
    record: &ClientRecord,
    view: TimelineView,
    form: &EntryForm,
) -> Result<String, PageError> {
    let EntryForm { entry, purpose, max_output_tokens, previous_texts, .. } = form;
    let id = record.client.id;
    let input = PanelInput { entry: *entry, purpose, max_output_tokens, previous_texts };
    let local = signed_in.local_time(portal);
    let panel = match view == TimelineView::default() {
        true => DraftPanel::for_editor(portal, &record.client, &record.entries, input, &local).await,
        false => {
            let newest = read(portal, signed_in, id, &TimelineView::default().entry_query()).await?;
            DraftPanel::for_editor(portal, &record.client, &newest.entries, input, &local).await
        }
    };
    Ok(panel.html()?)
}

async fn render(
    portal: &Portal,
    signed_in: &SignedIn,
    (record, can): (ClientRecord, ClientCapabilities),
    mut state: RecordPageState,
    notice_entry: Option<EntryId>,
) -> Result<Response, PageError> {
    if let OpenForm::Entry(form) = &mut state.open
        && form.is_letter()
        && form.side_panel_html.is_none()
        && form.conflict.is_none()
    {
        form.side_panel_html = Some(draft_panel(portal, signed_in, &record, state.view, form).await?);
    }
    let people = if can.reassign { people::visible_people(portal, signed_in).await? } else { Vec::new() };
    let names = PersonNames::read(portal).await?;
    let owners = people::choices_with_owner(&people, &names, &record.client.owner);
    let frame = Frame::new(portal, signed_in, Section::Clients);
    let RecordPageState { view, open, notice, status } = state;
    let (local, currency) = (signed_in.local_time(portal), portal.settings.invoice_terms.currency);
    let shown = RecordPage::new(frame, record, can, (view, open), (&names, &local, currency));
    Ok(page(status, &RecordPage { owners, notice, notice_entry, ..shown })?)
}

impl<'a> RecordPage<'a> {
    fn new(
        frame: Frame<'a>,
        record: ClientRecord,
        can: ClientCapabilities,
        (view, open): (TimelineView, OpenForm),
        (names, local, currency): (&PersonNames, &LocalTime, Currency),
    ) -> Self {
        let ClientRecord { client, entries, has_more, counts, views } = record;
        let id = client.id;
        let at = |view: TimelineView, open: Option<RequestedForm>| {
            RecordQuery { view, open, ..RecordQuery::default() }.href(id)
        };
        let last = entries.last().filter(|_| has_more);
        let older = last.map(|entry| EntryCursor { at: entry.at, id: entry.id });
        let edit_href =
            |entry: EntryId| format!("{}#entry-{entry}", at(view, Some(RequestedForm::Entry(entry))));
        let (details_form, entry_form) = match open {
            OpenForm::Nothing => (None, None),
            OpenForm::Details(form) => (Some(form), None),
            OpenForm::Entry(form) => (None, Some(form)),
        };
        // The fragment focuses the first field: with a fragment in the URL, browsers ignore `autofocus`.
        let new_entry =
            |kind| format!("{}#title", at(TimelineView::default(), Some(RequestedForm::NewEntry(kind))));
        Self {
            frame,
            id: id.0,
            badges: Badges {
                has_open_dispute: counts.open_disputes > 0,
                has_open_letter: counts.open_letters > 0,
                is_archived: client.archived_at.is_some(),
            },
            can,
            owners: Vec::new(),
            version: client.version.0,
            currency: currency.to_string(),
            tabs: tabs(id, view.tab, &counts),
            states: states(id, view, &counts),
            shown: entries.len(),
            total: count(view.tab, view.dispute_status(), &counts),
            older: older.map(|older| at(TimelineView { older: Some(older), ..view }, None)),
            newest: view.older.map(|_| at(TimelineView { older: None, ..view }, None)),
            entries: entries
                .iter()
                .map(|entry| EntryView::new(entry, edit_href(entry.id), (names, local, currency)))
                .collect(),
            details_form,
            entry_form,
            views: views
                .into_iter()
                .map(|viewer| RecordViewRow {
                    person: names.of_ref(&viewer.person),
                    at: DisplayTime::new(viewer.last_at, local),
                    times: viewer.times,
                })
                .collect(),
            links: Links {
                edit_details: format!("{}#facts-form", at(view, Some(RequestedForm::Details))),
                new_letter: new_entry(EntryKind::DraftLetter),
                new_note: new_entry(EntryKind::MeetingNote),
                new_dispute: new_entry(EntryKind::BillingDispute),
                close: at(view, None),
            },
            notice: None,
            notice_entry: None,
            is_archived_tab: view.tab == Tab::Archived,
            is_filtered: view.dispute_status().is_some(),
            details: DetailsView::new(&client, names),
        }
    }

    fn has_problems(&self) -> bool {
        self.details_form.as_ref().is_some_and(|form| form.problems.any())
            || self.entry_form.as_ref().is_some_and(|form| form.problems.any())
    }

    /// The notice about an entry that is listed on this page. It is shown there, because the page scrolls to it.
    fn notice_at(&self, entry: &i64) -> Option<&Notice> {
        self.notice.as_ref().filter(|_| self.notice_entry == Some(EntryId(*entry)))
    }

    /// The notice about a conflict. It is shown in the form, which gets the focus and may be far down the page.
    fn form_notice(&self) -> Option<&Notice> {
        let has_conflict = self.details_form.as_ref().is_some_and(|form| form.conflict.is_some())
            || self.entry_form.as_ref().is_some_and(|form| form.conflict.is_some());
        self.notice.as_ref().filter(|_| has_conflict)
    }

    /// Any other notice.
    fn top_notice(&self) -> Option<&Notice> {
        let is_listed = self.entries.iter().any(|entry| self.notice_at(&entry.id).is_some());
        self.notice.as_ref().filter(|_| !is_listed && self.form_notice().is_none())
    }

    /// The form of an entry that is listed on this page.
    fn form_of(&self, entry: &i64) -> Option<&EntryForm> {
        self.entry_form.as_ref().filter(|form| form.entry == Some(EntryId(*entry)))
    }

    /// The form of a new entry, or of one that is not listed on this page.
    fn top_form(&self) -> Option<&EntryForm> {
        let is_listed =
            |form: &EntryForm| self.entries.iter().any(|entry| form.entry == Some(EntryId(entry.id)));
        self.entry_form.as_ref().filter(|form| !is_listed(form))
    }
}

impl DetailsView {
    fn new(client: &Client, names: &PersonNames) -> Self {
        let telephone = client.details.telephone.to_string();
        let email = client.details.email.to_string();
        Self {
            name: client.name.to_string(),
            owner: names.of_ref(&client.owner),
            contact: client.details.contact.to_string(),
            mailto: mailto(&email),
            email,
            tel: tel(&telephone),
            telephone,
            address: client.details.address.as_str().lines().map(str::to_owned).collect(),
            since: client.details.since.map(|day| (day.to_string(), long_day(day))),
        }
    }
}

/// Percent-encodes everything but plain characters, so that an address cannot add a subject or a recipient.
fn mailto(email: &str) -> String {
    let mut link = "mailto:".to_owned();
    for byte in email.bytes() {
        match byte {
            b'@' | b'.' | b'-' | b'_' | b'+' => link.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => link.push(char::from(byte)),
            byte => {
                let _ = write!(link, "%{byte:02X}");
            }
        }
    }
    link
}

/// `None` if the text is not a dialable number. An extension is not dialed.
fn tel(telephone: &str) -> Option<String> {
    const MIN_DIGITS: usize = 3;
    let number = telephone.split(char::is_alphabetic).next().unwrap_or_default();
    let is_plain = number
        .chars()
        .all(|c| c.is_ascii_digit() || c.is_whitespace() || "+-/().\u{2010}\u{2011}\u{2013}".contains(c));
    let digits: String = number.chars().filter(char::is_ascii_digit).collect();
    let plus = if number.trim_start().starts_with('+') { "+" } else { "" };
    (is_plain && digits.len() >= MIN_DIGITS).then(|| format!("tel:{plus}{digits}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contact_links_cannot_inject_headers() {
        assert_eq!(mailto("priya@harbourlane.example"), "mailto:priya@harbourlane.example");
        assert_eq!(mailto("a?cc=b@c"), "mailto:a%3Fcc%3Db@c");
        assert_eq!(tel("+1 617 555 0142").as_deref(), Some("tel:+16175550142"));
        assert_eq!(tel("+1 617–555 0142 ext. 12").as_deref(), Some("tel:+16175550142"));
        assert_eq!(tel("ask at the desk"), None);
        assert_eq!(tel(""), None);
    }
}
