//! `GET /team`: everybody in the portal, as a page or as JSON. With `?person=` it is the page of one of them, where they are
//! managed: what a deed means stands beside its button, and what is hard to undo asks twice.

use super::reassign::MAX_MOVED;
use crate::error::{PageError, no_such_colleague};
use crate::frame::{Frame, Section};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::when::Moment;
use askama::Template;
use axum::Json;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use chancery_domain::{PersonId, Role, UnixMillis, grouped};
use chancery_policy::{ReadTeam, TheFirm};
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
    /// Whom their clients may go to.
    others: Vec<Row>,
    is_last_partner: bool,
    /// The configuration makes a partner of them at every sign-in.
    is_partner_by_configuration: bool,
    max_moved: u32,
    is_more_than_a_step: bool,
}

struct Row {
    id: i64,
    /// The address, in two parts: a long one may break after its @.
    email: (String, String),
    is_you: bool,
    is_partner: bool,
    clients: u64,
    archived_clients: u64,
    sessions: u64,
    last_used: Option<Moment>,
    joined: Moment,
    removed: Option<Moment>,
}

impl Row {
    fn new(member: &TeamMember, you: PersonId, now: UnixMillis) -> Self {
        let TeamMember { person, removed_at, clients, archived_clients, sessions, last_used_at } = member;
        let moment = |at: UnixMillis| Moment::new(at, now);
        let (name, host) = person.email.as_str().split_once('@').unwrap_or((person.email.as_str(), ""));
        Self {
            id: person.id.0,
            email: (name.to_owned(), host.to_owned()),
            is_you: person.id == you,
            is_partner: person.role == Role::Partner,
            clients: *clients,
            archived_clients: *archived_clients,
            sessions: *sessions,
            last_used: last_used_at.map(moment),
            joined: moment(person.joined_at),
            removed: removed_at.map(moment),
        }
    }

    fn address(&self) -> String {
        format!("{}@{}", self.email.0, self.email.1)
    }

    fn role(&self) -> &'static str {
        if self.is_partner { "Partner" } else { "Consultant" }
    }

    fn owns(&self) -> u64 {
        self.clients + self.archived_clients
    }

    /// `12 clients`, `1 client and 3 archived ones`.
    fn owned_in_words(&self) -> String {
        match (self.clients, self.archived_clients) {
            (clients, 0) => counted(clients, "client"),
            (0, archived) => counted(archived, "archived client"),
            (clients, archived) => {
                format!("{} and {}", counted(clients, "client"), counted(archived, "archived one"))
            }
        }
    }
}

fn counted(number: u64, thing: &str) -> String {
    format!("{} {thing}{}", grouped(number), if number == 1 { "" } else { "s" })
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    headers: HeaderMap,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ReadTeam>(&signed_in, TheFirm).await?;
    let team = portal.store.people.read_team(permit, portal.settings.session_times).await?;
    if wants_json(&headers) {
        return Ok(as_json(&team));
    }
    let (frame, now) = (Frame::new(&portal, &signed_in, Section::Team), portal.clock.now());
    let row = |member: &TeamMember| Row::new(member, signed_in.person.id, now);
    let Some(wanted) = query.get("person") else {
        let (members, removed) = team.iter().map(row).partition(|row| row.removed.is_none());
        return Ok(page(StatusCode::OK, &TeamPage { frame, members, removed })?);
    };
    let member =
        team.iter().find(|member| member.person.id.to_string() == *wanted).ok_or_else(no_such_colleague)?;
    let is_here = |other: &&TeamMember| other.removed_at.is_none();
    let partners = team.iter().filter(is_here).filter(|other| other.person.role == Role::Partner).count();
    let is_other = |other: &&TeamMember| other.person.id != member.person.id;
    let person = PersonPage {
        frame,
        done: what_was_done(&query, member, &team),
        person: row(member),
        others: team.iter().filter(is_here).filter(is_other).map(row).collect(),
        is_last_partner: member.person.role == Role::Partner && partners == 1,
        is_partner_by_configuration: portal.settings.partners.contains(&member.person.email),
        max_moved: MAX_MOVED,
        is_more_than_a_step: member.clients + member.archived_clients > u64::from(MAX_MOVED),
    };
    Ok(page(StatusCode::OK, &person)?)
}

/// What the deed before this page says of itself. Words are ours; only numbers and people are taken from the address.
fn what_was_done(query: &HashMap<String, String>, about: &TeamMember, team: &[TeamMember]) -> Option<String> {
    let email = &about.person.email;
    Some(match query.get("done")?.as_str() {
        "consultant" => format!("{email} is a consultant from the next request on."),
        "partner" => format!("{email} is a partner from the next request on."),
        "signed-out" => format!("Every session of {email} has ended."),
        "removed" => format!("{email} is removed: every session has ended, and signing in is refused."),
        "restored" => format!("{email} may sign in again."),
        "moved" => {
            let moved: u64 = query.get("count")?.parse().ok()?;
            let to = query.get("to")?;
            let to = team.iter().find(|member| member.person.id.to_string() == *to)?;
            let verb = if moved == 1 { "belongs" } else { "belong" };
            format!("{} of {email} now {verb} to {}.", counted(moved, "client"), to.person.email)
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
