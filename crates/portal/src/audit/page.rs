//! `GET /audit`: a page of the audit, newest first, as a page or as JSON.

use super::filters::Filters;
use super::words;
use crate::error::PageError;
use crate::frame::{Frame, Section};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::when::Moment;
use askama::Template;
use axum::Json;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use chancery_domain::{Action, Asker, Decision, PersonId, Role, UnixMillis};
use chancery_policy::{ReadAudit, TheFirm};
use chancery_store::{AUDIT_ROWS_PER_PAGE, AuditLine, AuditTurn};
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
    turns: Turns,
    csv: String,
}

struct Row {
    at: Moment,
    /// The address, in two parts. None: the command line.
    who: Option<(String, String)>,
    /// In which role, at that time.
    role: &'static str,
    what: &'static str,
    client: Option<i64>,
    is_allowed: bool,
}

impl Row {
    fn new(line: &AuditLine) -> Self {
        let asked = &line.row.asked;
        let address = line.person.as_ref().map(|person| person.email.as_str());
        let parts = |address: &str| {
            let (name, host) = address.split_once('@').unwrap_or((address, ""));
            (name.to_owned(), host.to_owned())
        };
        Self {
            at: Moment::exact(asked.at),
            who: address.map(parts),
            role: match asked.by {
                Asker::Person { role: Role::Consultant, .. } => "Consultant",
                Asker::Person { role: Role::Partner, .. } => "Partner",
                Asker::Operator => "",
            },
            what: words::in_words(asked.action, line.row.decision),
            client: asked.client.map(|client| client.0),
            is_allowed: line.row.decision == Decision::Allowed,
        }
    }
}

/// The pages beside this one.
struct Turns {
    newer: Option<String>,
    older: Option<String>,
}

impl Turns {
    fn new(filters: &Filters, lines: &[AuditLine]) -> Self {
        let is_full = lines.len() >= AUDIT_ROWS_PER_PAGE as usize;
        let (has_newer, has_older) = match filters.query.turn {
            None => (false, is_full),
            Some(AuditTurn::Before(_)) => (true, is_full),
            Some(AuditTurn::After(_)) => (is_full, true),
        };
        let newer = lines.first().map(|line| filters.address("/audit", Some(("after", line.place))));
        let older = lines.last().map(|line| filters.address("/audit", Some(("before", line.place))));
        Self {
            // Where there is nothing to stand on, the newest page is the way back.
            newer: newer.or_else(|| Some(filters.address("/audit", None))).filter(|_| has_newer),
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
    let permit = portal.permit::<ReadAudit>(&signed_in, TheFirm).await?;
    let filters = Filters::read(&pairs);
    let lines = portal.store.read_audit(&permit, &filters.query).await?;
    if wants_json(&headers) {
        return match filters.error() {
            Some(error) => Err(error.into()),
            None => Ok(as_json(&filters, &lines)),
        };
    }
    let is_understood = !filters.problems.any();
    // What was not understood is not half answered.
    let lines = if is_understood { lines } else { Vec::new() };
    let audit = AuditPage {
        frame: Frame::new(&portal, &signed_in, Section::Audit),
        people: people(&portal, &filters).await?,
        actions: actions(&filters),
        rows: lines.iter().map(Row::new).collect(),
        turns: Turns::new(&filters, &lines),
        csv: filters.address("/audit.csv", None),
        filters,
    };
    let status = if is_understood { StatusCode::OK } else { StatusCode::UNPROCESSABLE_ENTITY };
    Ok(page(status, &audit)?)
}

async fn people(portal: &Portal, filters: &Filters) -> Result<Vec<Choice>, PageError> {
    let here = portal.store.list_people().await?;
    let gone = portal.store.list_removed_people().await?;
    let here = here.iter().map(|person| (person.id, person.email.to_string()));
    let gone = gone.iter().map(|removed| (removed.person.id, format!("{} (removed)", removed.person.email)));
    let choice = |(id, words): (PersonId, String)| {
        Choice::new(id.to_string(), words, id.to_string() == filters.typed.person)
    };
    Ok(here.chain(gone).map(choice).collect())
}

fn actions(filters: &Filters) -> Vec<Choice> {
    let choice = |action: &Action| {
        Choice::new(action.to_string(), words::name(*action), action.to_string() == filters.typed.action)
    };
    Action::ALL.iter().map(choice).collect()
}

fn as_json(filters: &Filters, lines: &[AuditLine]) -> Response {
    let Turns { newer, older } = Turns::new(filters, lines);
    let rows: Vec<_> = lines
        .iter()
        .map(|AuditLine { row, person, .. }| {
            json!({
                "at": UnixMillis::to_iso(row.asked.at),
                "person": person.as_ref().map(|person| json!({"id": person.id.0, "email": person.email.as_str()})),
                "role": row.asked.by.as_what(),
                "action": row.asked.action.as_str(),
                "client": row.asked.client,
                "decision": row.decision.as_str(),
                "request_id": row.asked.request_id.as_str(),
            })
        })
        .collect();
    Json(json!({ "rows": rows, "newer": newer, "older": older })).into_response()
}
