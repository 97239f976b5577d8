//! `GET /team`: all people in the portal, as a page or JSON. `?person=` shows the page of one person with the available changes. Each
//! button says what it does, and changes that are hard to undo need confirmation.

use super::reassign::MAX_CLIENTS_PER_MOVE;
use crate::error::{PageError, person_not_found};
use crate::frame::{Frame, Section};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::time_format::DisplayTime;
use askama::Template;
use axum::Json;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use chancery_domain::{PersonId, Role, UnixMillis, group_thousands};
use chancery_policy::{FirmResource, ReadTeam};
use chancery_store::TeamMember;
use chancery_web::{page, wants_json};
use serde_json::json;
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Template)]
#[template(path = "team/page.html")]
struct TeamPage<'a> {
    frame: Frame<'a>,
    members: Vec<Row>,
    removed: Vec<Row>,
}

#[derive(Template)]
#[template(path = "team/person.html")]
struct PersonPage<'a> {
    frame: Frame<'a>,
    done: Option<String>,
    person: Row,
    /// People who can take over the clients.
    others: Vec<Row>,
    is_last_partner: bool,
    /// The configuration makes this person a partner at every sign-in.
    is_partner_by_configuration: bool,
    max_moved: u32,
    needs_several_moves: bool,
}

struct Row {
    id: i64,
    /// The email address, in two parts: a long one may wrap after the @.
    email: (String, String),
    is_you: bool,
    is_partner: bool,
    clients: u64,
    archived_clients: u64,
    sessions: u64,
    last_used: Option<DisplayTime>,
    joined: DisplayTime,
    removed: Option<DisplayTime>,
}

impl Row {
    fn new(member: &TeamMember, you: PersonId, now: UnixMillis) -> Self {
        let TeamMember { person, removed_at, clients, archived_clients, sessions, last_used_at } = member;
        let display_time = |at: UnixMillis| DisplayTime::new(at, now);
        let (name, host) = person.email.as_str().split_once('@').unwrap_or((person.email.as_str(), ""));
        Self {
            id: person.id.0,
            email: (name.to_owned(), host.to_owned()),
            is_you: person.id == you,
            is_partner: person.role == Role::Partner,
            clients: *clients,
            archived_clients: *archived_clients,
            sessions: *sessions,
            last_used: last_used_at.map(display_time),
            joined: display_time(person.joined_at),
            removed: removed_at.map(display_time),
        }
    }

    fn address(&self) -> String {
        format!("{}@{}", self.email.0, self.email.1)
    }

    fn role(&self) -> &'static str {
        if self.is_partner { "Partner" } else { "Consultant" }
    }

    fn total_clients(&self) -> u64 {
        self.clients + self.archived_clients
    }

    /// `12 clients`, `1 client and 3 archived ones`.
    fn owned_text(&self) -> String {
        match (self.clients, self.archived_clients) {
            (clients, 0) => pluralize(clients, "client"),
            (0, archived) => pluralize(archived, "archived client"),
            (clients, archived) => {
                format!("{} and {}", pluralize(clients, "client"), pluralize(archived, "archived one"))
            }
        }
    }
}

fn pluralize(number: u64, thing: &str) -> String {
    format!("{} {thing}{}", group_thousands(number), if number == 1 { "" } else { "s" })
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    headers: HeaderMap,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ReadTeam>(&signed_in, FirmResource).await?;
    let team = portal.store.people.read_team(permit, portal.settings.session_times).await?;
    if wants_json(&headers) {
        return Ok(as_json(&team));
    }
    let (frame, now) = (Frame::new(&portal, &signed_in, Section::Team), portal.clock.now());
    let row = |member: &TeamMember| Row::new(member, signed_in.person.id, now);
    let Some(person_id) = query.get("person") else {
        let (members, removed) = team.iter().map(row).partition(|row| row.removed.is_none());
        return Ok(page(StatusCode::OK, &TeamPage { frame, members, removed })?);
    };
    let member =
        team.iter().find(|member| member.person.id.to_string() == *person_id).ok_or_else(person_not_found)?;
    let is_here = |other: &&TeamMember| other.removed_at.is_none();
    let partners = team.iter().filter(is_here).filter(|other| other.person.role == Role::Partner).count();
    let is_other = |other: &&TeamMember| other.person.id != member.person.id;
    let person = PersonPage {
        frame,
        done: notice_text(&query, member, &team),
        person: row(member),
        others: team.iter().filter(is_here).filter(is_other).map(row).collect(),
        is_last_partner: member.person.role == Role::Partner && partners == 1,
        is_partner_by_configuration: portal.settings.partners.contains(&member.person.email),
        max_moved: MAX_CLIENTS_PER_MOVE,
        needs_several_moves: member.clients + member.archived_clients > u64::from(MAX_CLIENTS_PER_MOVE),
    };
    Ok(page(StatusCode::OK, &person)?)
}

/// Confirms the change that redirected here. The text is ours; only numbers and people come from the URL.
fn notice_text(query: &HashMap<String, String>, subject: &TeamMember, team: &[TeamMember]) -> Option<String> {
    let email = &subject.person.email;
    Some(match query.get("done")?.as_str() {
        "consultant" => format!("{email} is now a consultant."),
        "partner" => format!("{email} is now a partner."),
        "signed-out" => format!("All sessions of {email} ended."),
        "removed" => format!("{email} was removed and can no longer sign in."),
        "restored" => format!("{email} can sign in again."),
        "moved" => {
            let moved: u64 = query.get("count")?.parse().ok()?;
            let to = query.get("to")?;
            let to = team.iter().find(|member| member.person.id.to_string() == *to)?;
            format!("{} of {email} reassigned to {}.", pluralize(moved, "client"), to.person.email)
        }
        _ => return None,
    })
}

fn as_json(team: &[TeamMember]) -> Response {
    let iso = |at: Option<UnixMillis>| at.map(UnixMillis::to_iso);
    let people: Vec<_> = team
        .iter()
        .map(|member| {
            json!({
                "id": member.person.id.0,
                "email": member.person.email.as_str(),
                "role": member.person.role.as_str(),
                "joined_at": member.person.joined_at.to_iso(),
                "removed_at": iso(member.removed_at),
                "clients": member.clients,
                "archived_clients": member.archived_clients,
                "sessions": member.sessions,
                "last_used_at": iso(member.last_used_at),
            })
        })
        .collect();
    Json(json!({ "people": people })).into_response()
}
