//! `GET /audit`: one page of the audit log, newest first, as HTML or JSON.

use super::changes::{self, ChangeLine, ValueFormat};
use super::filters::Filters;
use super::{descriptions, remembered_filters, view_groups};
use crate::error::PageError;
use crate::frame::{Frame, Section};
use crate::person_names::{DisplayPerson, PersonNames};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::time_format::{DisplayTime, LocalTime, comparable_time};
use askama::Template;
use axum::Json;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use chancery_domain::{
    Action, AuditRow, Currency, Decision, EmailAddress, EventKind, PersonId, PersonRef, Role, UnixMillis,
};
use chancery_policy::{FirmResource, ReadAudit};
use chancery_store::{AUDIT_ROWS_PER_PAGE, AuditCursor, AuditListRow, RecordChange};
use chancery_web::{Choice, page, wants_json};
use serde_json::json;
use std::sync::Arc;

#[derive(Template)]
#[template(path = "audit/page.html")]
struct AuditPage<'a> {
    frame: Frame<'a>,
    filters: Filters,
    people: Vec<Choice>,
    actions: Vec<Choice>,
    rows: Vec<Row>,
    page_links: PageLinks,
    csv: String,
    clear: &'static str,
}

/// One row of the log, or a group of views.
struct Row {
    at: DisplayTime,
    actor: Actor,
    description: String,
    client: Option<ClientLink>,
    /// `None` for events, which have no decision.
    is_allowed: Option<bool>,
    ip: Option<String>,
    /// Of a change.
    changes: Vec<ChangeLine>,
    /// The times of grouped views, newest first. Empty for a single row.
    views: Vec<DisplayTime>,
}

struct ClientLink {
    number: i64,
    /// `None` if there is no such client.
    name: Option<String>,
}

enum Actor {
    /// With the address below the name, and the role at that time.
    Person {
        person: DisplayPerson,
        role: &'static str,
    },
    Other(&'static str),
}

impl Row {
    fn new(
        line: &AuditListRow,
        changes: &[RecordChange],
        (names, local, currency): (&PersonNames, &LocalTime, Currency),
    ) -> Self {
        let decision = line.row.as_decision().map(|row| row.decision);
        let name = line.client_name.as_ref().map(ToString::to_string);
        let format = ValueFormat {
            person: &|person: &PersonRef| names.text(person.id, &person.email),
            time: &|at: UnixMillis| comparable_time(at, local),
            currency,
        };
        Self {
            at: DisplayTime::exact(line.row.at(), local),
            actor: Actor::new(line, names),
            description: descriptions::describe(line, Some(names)),
            client: line.row.client().map(|client| ClientLink { number: client.0, name }),
            is_allowed: decision.map(|decision| decision == Decision::Allowed),
            ip: line.row.ip().map(|ip| ip.to_string()),
            changes: changes::lines(line, changes, &format),
            views: Vec::new(),
        }
    }

    fn has_more(&self) -> bool {
        !self.changes.is_empty() || !self.views.is_empty()
    }

    /// The newest line of the group, with the times of all.
    fn of_group(
        group: &[AuditListRow],
        changes: &[RecordChange],
        (names, local, currency): (&PersonNames, &LocalTime, Currency),
    ) -> Option<Self> {
        let (newest, oldest) = (group.first()?, group.last()?);
        let row = Self::new(newest, changes, (names, local, currency));
        if group.len() == 1 {
            return Some(row);
        }
        let [first, last] = [oldest, newest].map(|line| comparable_time(line.row.at(), local));
        Some(Self {
            at: DisplayTime { text: view_groups::span(&first, &last), ..row.at },
            description: format!("Viewed {} times", group.len()),
            views: group.iter().map(|line| DisplayTime::exact(line.row.at(), local)).collect(),
            ..row
        })
    }
}

impl Actor {
    fn new(line: &AuditListRow, names: &PersonNames) -> Self {
        let Some(person) = &line.person else {
            return Self::Other(match &line.row {
                AuditRow::Decision(_) => "Command line",
                AuditRow::Event(_) => "New person",
            });
        };
        let role = match line.row.principal().parse() {
            Ok(Role::Consultant) => "Consultant",
            Ok(Role::Partner) => "Partner",
            Err(_) => "",
        };
        Self::Person { person: names.of_ref(person), role }
    }
}

/// URLs of the adjacent pages.
struct PageLinks {
    newer: Option<String>,
    older: Option<String>,
}

impl PageLinks {
    fn new(filters: &Filters, lines: &[AuditListRow]) -> Self {
        let is_full = lines.len() >= AUDIT_ROWS_PER_PAGE as usize;
        let (has_newer, has_older) = match filters.query.cursor {
            None => (false, is_full),
            Some(AuditCursor::Before(_)) => (true, is_full),
            Some(AuditCursor::After(_)) => (is_full, true),
        };
        let newer = lines.first().map(|line| filters.href("/audit", Some(("after", line.position))));
        let older = lines.last().map(|line| filters.href("/audit", Some(("before", line.position))));
        Self {
            // An empty page has no row to continue from, so link to the newest page.
            newer: newer.or_else(|| Some(filters.href("/audit", None))).filter(|_| has_newer),
            older: older.filter(|_| has_older),
        }
    }
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    headers: HeaderMap,
    Query(pairs): Query<Vec<(String, String)>>,
) -> Result<Response, PageError> {
    let (person, local) = (signed_in.person.id, signed_in.local_time(&portal));
    // It only repeats what this browser sent.
    if !wants_json(&headers)
        && let Some(redirect) = remembered_filters::redirect(person, &headers, &pairs, &local)
    {
        return Ok(redirect);
    }
    let permit = portal.permit::<ReadAudit>(&signed_in, FirmResource).await?;
    let filters = Filters::read(&pairs, &local);
    let lines = portal.store.audit.read_audit(&permit, &filters.query).await?;
    let is_understood = !filters.problems.any();
    // With an invalid filter, show no rows rather than wrong ones.
    let lines = if is_understood { lines } else { Vec::new() };
    let changes = portal.store.audit.read_changes(&permit, &lines).await?;
    let currency = portal.settings.invoice_terms.currency;
    if wants_json(&headers) {
        return match filters.error() {
            Some(error) => Err(error.into()),
            None => Ok(as_json(&filters, (&lines, &changes), currency)),
        };
    }
    let names = PersonNames::read(&portal).await?;
    let audit = AuditPage {
        frame: Frame::new(&portal, &signed_in, Section::Audit),
        people: people(&portal, &names, &filters).await?,
        actions: actions(&filters),
        rows: view_groups::groups(&lines)
            .filter_map(|group| Row::of_group(group, &changes, (&names, &local, currency)))
            .collect(),
        page_links: PageLinks::new(&filters, &lines),
        csv: filters.href("/audit.csv", None),
        clear: remembered_filters::CLEAR,
        filters,
    };
    let status = if is_understood { StatusCode::OK } else { StatusCode::UNPROCESSABLE_ENTITY };
    let mut response = page(status, &audit)?;
    remembered_filters::remember(&mut response, person, &headers, &audit.filters);
    Ok(response)
}

async fn people(portal: &Portal, names: &PersonNames, filters: &Filters) -> Result<Vec<Choice>, PageError> {
    let active = portal.store.people.list_people().await?;
    let removed_people = portal.store.people.list_removed_people().await?;
    let active = active.iter().map(|person| (person.id, names.full_text(person.id, &person.email)));
    let removed_people = removed_people.iter().map(|removed| {
        let (id, email) = (removed.person.id, &removed.person.email);
        (id, format!("{} (removed)", names.full_text(id, email)))
    });
    let choice = |(id, label): (PersonId, String)| {
        Choice::new(id.to_string(), label, id.to_string() == filters.typed.person)
    };
    Ok(active.chain(removed_people).map(choice).collect())
}

fn actions(filters: &Filters) -> Vec<Choice> {
    let chosen = filters.typed.action.as_str();
    let actions = Action::ALL.into_iter().map(|action| (action.as_str(), descriptions::name(action)));
    let events = EventKind::ALL.into_iter().map(|kind| (kind.as_str(), descriptions::event_label(kind)));
    actions.chain(events).map(|(value, label)| Choice::new(value, label, value == chosen)).collect()
}

fn as_json(
    filters: &Filters,
    (lines, changes): (&[AuditListRow], &[RecordChange]),
    currency: Currency,
) -> Response {
    let PageLinks { newer, older } = PageLinks::new(filters, lines);
    let rows: Vec<_> = lines
        .iter()
        .map(|line| {
            let AuditListRow { row, person, subject, client_name, .. } = line;
            let someone = |person: &Option<PersonRef>| {
                person.as_ref().map(|person| json!({"id": person.id.0, "email": person.email.as_str()}))
            };
            let (decided, event) = (row.as_decision(), row.event());
            json!({
                "at": UnixMillis::to_iso(row.at()),
                "person": someone(person),
                "role": row.principal(),
                "action": decided.map(|row| row.access_request.action.as_str()),
                "client": row.client(),
                "client_name": client_name.as_ref().map(ToString::to_string),
                "decision": decided.map(|row| row.decision.as_str()),
                "request_id": row.request_id().as_str(),
                "event": event.map(|event| event.kind.as_str()),
                "subject": someone(subject),
                "invited": row.invited().map(EmailAddress::as_str),
                "old_role": event.and_then(|event| event.old_role).map(Role::as_str),
                "new_role": event.and_then(|event| event.new_role).map(Role::as_str),
                "ip_address": row.ip().map(|ip| ip.to_string()),
                "changes": changes::as_json(line, changes, currency),
            })
        })
        .collect();
    Json(json!({ "rows": rows, "newer": newer, "older": older })).into_response()
}
