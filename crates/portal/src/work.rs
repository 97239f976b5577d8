//! `GET /home`: what is due. Disputes that are overdue or due within a week, unsent letters, and the clients that the
//! person viewed last. Partners see the firm's work, or their own. The policy decides on each client before anything of it
//! is read; the audit row of the list covers these decisions.

use crate::clients::record_query::{Tab, from_entry_href};
use crate::error::PageError;
use crate::frame::{Frame, Section};
use crate::person_names::{DisplayPerson, PersonNames};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::time_format::{DisplayTime, LocalTime, day_or_time, format_day};
use askama::Template;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::Response;
use chancery_domain::{Currency, Day, EntryKind, PersonId};
use chancery_policy::{FirmResource, ListClients};
use chancery_store::{DueDispute, EntryCursor, RecentClient, UnsentLetter, WorkItem, WorkQuery, WorkSummary};
use chancery_web::{ErrorPage, page};
use std::sync::Arc;

/// Disputes due within this many days are shown.
const DAYS_AHEAD: i32 = 7;

#[derive(Template)]
#[template(path = "work.html")]
struct WorkPage<'a> {
    frame: Frame<'a>,
    /// Whether there is a firm's view and a view of one's own.
    sees_all: bool,
    is_mine: bool,
    overdue: Vec<DisputeRow>,
    due_soon: Vec<DisputeRow>,
    letters: Vec<LetterRow>,
    recent: Vec<RecentRow>,
    open_disputes_href: String,
}

/// An entry and its client.
struct ItemLink {
    title: String,
    href: String,
    client: String,
    owner: DisplayPerson,
}

struct DisputeRow {
    item: ItemLink,
    amount: Option<String>,
    due_iso: String,
    due: String,
    /// `3 days late`, `today` or `in 2 days`.
    distance: String,
}

struct LetterRow {
    item: ItemLink,
    at: DisplayTime,
}

struct RecentRow {
    id: i64,
    name: String,
    owner: DisplayPerson,
    has_open_dispute: bool,
    has_open_letter: bool,
    viewed_at: DisplayTime,
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    RawQuery(query): RawQuery,
) -> Result<Response, PageError> {
    let is_mine = parse(query.as_deref().unwrap_or_default())?;
    let local = signed_in.local_time(&portal);
    let today = local.today();
    let owner = is_mine.then_some(signed_in.person.id);
    let permit = portal.permit::<ListClients>(&signed_in, FirmResource).await?;
    let query = WorkQuery { owner, due_by: Day(today.0.saturating_add(DAYS_AHEAD)) };
    let work = portal.store.clients.find_work(permit, query).await?;
    let permits = portal.permits_to_read(&signed_in, &work.clients()).await?;
    let WorkSummary { disputes, letters, recent } = portal.store.clients.read_work(&work, permits).await?;
    let names = PersonNames::read(&portal).await?;
    let currency = portal.settings.invoice_terms.currency;
    let (overdue, due_soon): (Vec<DueDispute>, Vec<DueDispute>) =
        disputes.into_iter().partition(|dispute| dispute.due < today);
    let dispute_rows = |disputes: Vec<DueDispute>| -> Vec<DisputeRow> {
        disputes.into_iter().map(|dispute| DisputeRow::new(dispute, &names, today, currency)).collect()
    };
    let shown = WorkPage {
        frame: Frame::new(&portal, &signed_in, Section::Home),
        sees_all: signed_in.capabilities(&portal).read_team,
        is_mine,
        overdue: dispute_rows(overdue),
        due_soon: dispute_rows(due_soon),
        letters: letters.into_iter().map(|letter| LetterRow::new(letter, &names, &local)).collect(),
        recent: recent.into_iter().map(|client| RecentRow::new(client, &names, &local)).collect(),
        open_disputes_href: open_disputes_href(owner),
    };
    Ok(page(StatusCode::OK, &shown)?)
}

/// Whether only one's own work is requested.
fn parse(query: &str) -> Result<bool, ErrorPage> {
    let mut is_mine = false;
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match (&*name, &*value) {
            ("view", "mine") => is_mine = true,
            ("view", "" | "firm") => is_mine = false,
            ("view", _) => {
                let invalid = ErrorPage::invalid_parameter(&name, "must be `firm` or `mine`");
                return Err(invalid.next_link("/home", "Go to home"));
            }
            _ => {}
        }
    }
    Ok(is_mine)
}

fn open_disputes_href(owner: Option<PersonId>) -> String {
    match owner {
        None => "/clients?disputes=open".to_owned(),
        Some(owner) => format!("/clients?owner={owner}&disputes=open"),
    }
}

/// `13 Nov`, with the year if it is another one.
fn short_day(day: Day, today: Day) -> String {
    let is_this_year = format_day(day, "%Y") == format_day(today, "%Y");
    format_day(day, if is_this_year { "%-d %b" } else { "%-d %b %Y" })
}

/// How far away the due date is.
fn distance(due: Day, today: Day) -> String {
    match due.0 - today.0 {
        -1 => "1 day late".to_owned(),
        days @ ..=-2 => format!("{} days late", days.unsigned_abs()),
        0 => "today".to_owned(),
        1 => "tomorrow".to_owned(),
        days => format!("in {days} days"),
    }
}

impl ItemLink {
    fn new(item: &WorkItem, href: String, names: &PersonNames) -> Self {
        Self {
            title: item.title.to_string(),
            href,
            client: item.client_name.to_string(),
            owner: names.of_ref(&item.owner),
        }
    }
}

impl DisputeRow {
    fn new(dispute: DueDispute, names: &PersonNames, today: Day, currency: Currency) -> Self {
        let DueDispute { item, amount, due } = dispute;
        let WorkItem { client, entry, .. } = &item;
        let href = format!("/clients/{client}?tab=disputes&state=open#entry-{entry}");
        Self {
            item: ItemLink::new(&item, href, names),
            amount: amount.map(|amount| currency.format_amount(amount)),
            due_iso: due.to_string(),
            due: short_day(due, today),
            distance: distance(due, today),
        }
    }
}

impl LetterRow {
    fn new(letter: UnsentLetter, names: &PersonNames, local: &LocalTime) -> Self {
        let UnsentLetter { item, at } = letter;
        let cursor = EntryCursor { at, id: item.entry };
        let href = from_entry_href(item.client, Tab::Of(EntryKind::DraftLetter), cursor);
        let at = DisplayTime { iso: at.to_iso(), text: day_or_time(at, local) };
        Self { item: ItemLink::new(&item, href, names), at }
    }
}

impl RecentRow {
    fn new(recent: RecentClient, names: &PersonNames, local: &LocalTime) -> Self {
        let RecentClient { summary, viewed_at } = recent;
        Self {
            id: summary.client.id.0,
            name: summary.client.name.to_string(),
            owner: names.of_ref(&summary.client.owner),
            has_open_dispute: summary.open_disputes > 0,
            has_open_letter: summary.open_letters > 0,
            viewed_at: DisplayTime { iso: viewed_at.to_iso(), text: day_or_time(viewed_at, local) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_days_from_today() {
        let today = Day(20_770);
        for (days, text) in
            [(-12, "12 days late"), (-1, "1 day late"), (0, "today"), (1, "tomorrow"), (7, "in 7 days")]
        {
            assert_eq!(distance(Day(today.0 + days), today), text);
        }
    }

    #[test]
    fn unknown_view_is_rejected_by_name() {
        assert!(parse("view=mine").unwrap() && !parse("").unwrap() && !parse("view=firm&x=1").unwrap());
        assert!(parse("view=theirs").unwrap_err().reason.contains("`view`"));
    }
}
