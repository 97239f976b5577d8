//! The page of one person, with the available changes. Each button says what it does, and changes that are hard to undo
//! need confirmation.

use super::reassign::MAX_CLIENTS_PER_MOVE;
use super::row::{Row, pluralize};
use crate::error::{PageError, person_not_found};
use crate::frame::{Frame, Section};
use crate::person_names::PersonNames;
use crate::sign_in::session::SignedIn;
use crate::sign_in::step_up;
use crate::state::Portal;
use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;
use chancery_domain::{PersonId, Role};
use chancery_store::TeamMember;
use chancery_web::page;
use std::collections::HashMap;

#[derive(Template)]
#[template(path = "team/person.html")]
struct PersonPage<'a> {
    frame: Frame<'a>,
    done: Option<String>,
    /// The time of the reassignment that `done` is about.
    undo: Option<i64>,
    person: Row,
    /// People who can take over the clients.
    others: Vec<Row>,
    is_last_partner: bool,
    /// The configuration makes this person a partner at every sign-in.
    is_partner_by_configuration: bool,
    /// Whether the form that changes the role is open. It needs a recent authentication.
    is_role_open: bool,
    /// Roles come from the firm's directory.
    has_directory_roles: bool,
    can_reset_factors: bool,
    /// Like `is_role_open`, for the form that resets the second factors.
    is_reset_open: bool,
    max_moved: u32,
    needs_several_moves: bool,
}

pub(super) async fn show(
    portal: &Portal,
    signed_in: &SignedIn,
    team: &[TeamMember],
    person_id: &str,
    query: &HashMap<String, String>,
) -> Result<Response, PageError> {
    let member =
        team.iter().find(|member| member.person.id.to_string() == *person_id).ok_or_else(person_not_found)?;
    let open = query.get("open").map(String::as_str);
    let (is_role_open, is_reset_open) = (open == Some("role"), open == Some("factors"));
    if let Some(form) = open.filter(|_| is_role_open || is_reset_open) {
        let this_page = form_page(member.person.id, form);
        if let Some(redirect) = step_up::required_for_page(portal, signed_in, &this_page)? {
            return Ok(redirect);
        }
    }
    let (names, local) = (PersonNames::read(portal).await?, signed_in.local_time(portal));
    let row = |member: &TeamMember| Row::new(member, signed_in.person.id, &names, &local);
    let is_here = |other: &&TeamMember| other.removed_at.is_none();
    let partners = team.iter().filter(is_here).filter(|other| other.person.role == Role::Partner).count();
    let is_other = |other: &&TeamMember| other.person.id != member.person.id;
    let settings = &portal.settings;
    let shown = PersonPage {
        frame: Frame::new(portal, signed_in, Section::Team),
        done: notice_text(query, member, team, &names),
        undo: query
            .get("undo")
            .filter(|_| query.get("count").is_some_and(|count| count != "0"))
            .and_then(|at| at.parse().ok()),
        person: row(member),
        others: team.iter().filter(is_here).filter(is_other).map(row).collect(),
        is_last_partner: member.person.role == Role::Partner && partners == 1,
        is_partner_by_configuration: settings.partners.contains(&member.person.email),
        is_role_open,
        has_directory_roles: settings.identity.roles.is_some(),
        is_reset_open,
        can_reset_factors: member.removed_at.is_none()
            && member.person.id != signed_in.person.id
            && settings.is_at_built_in_provider(&member.person.identity),
        max_moved: MAX_CLIENTS_PER_MOVE,
        needs_several_moves: member.clients + member.archived_clients > u64::from(MAX_CLIENTS_PER_MOVE),
    };
    Ok(page(StatusCode::OK, &shown)?)
}

/// The page of a person with one of its forms open: `role` or `factors`.
pub(super) fn form_page(person: PersonId, form: &str) -> String {
    format!("/team?person={person}&open={form}")
}

/// Confirms the change that redirected here. The text is ours; only numbers and people come from the URL.
fn notice_text(
    query: &HashMap<String, String>,
    subject: &TeamMember,
    team: &[TeamMember],
    names: &PersonNames,
) -> Option<String> {
    let name = |member: &TeamMember| names.text(member.person.id, &member.person.email);
    let person = name(subject);
    Some(match query.get("done")?.as_str() {
        "consultant" => format!("{person} is now a consultant."),
        "partner" => format!("{person} is now a partner."),
        "signed-out" => format!("All sessions of {person} ended."),
        "removed" => format!("{person} was removed and can no longer sign in."),
        "restored" => format!("{person} can sign in again."),
        "factors-reset" => format!("The second factors of {person} were reset. We have emailed them."),
        "moved" => {
            let moved: u64 = query.get("count")?.parse().ok()?;
            let to = query.get("to")?;
            let to = team.iter().find(|member| member.person.id.to_string() == *to)?;
            format!("{} of {person} reassigned to {}.", pluralize(moved, "client"), name(to))
        }
        "returned" => {
            let number = |name: &str| query.get(name)?.parse::<u64>().ok();
            let mut text =
                format!("{} given back to the former owner.", pluralize(number("count")?, "client"));
            if let Some(skipped) = number("skipped").filter(|skipped| *skipped > 0) {
                let skipped = pluralize(skipped, "client");
                text +=
                    &format!(" {skipped} skipped: reassigned again since, or the former owner was removed.");
            }
            text
        }
        _ => return None,
    })
}
