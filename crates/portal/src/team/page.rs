//! `GET /team`: all people in the portal and the pending invitations, as a page or JSON. `?person=` shows the page of
//! one person.

use super::invite_form::{InvitationRow, InviteInput};
use super::person_page;
use super::row::Row;
use crate::error::PageError;
use crate::frame::{Frame, Section};
use crate::person_names::PersonNames;
use crate::sign_in::session::SignedIn;
use crate::sign_in::step_up;
use crate::state::Portal;
use askama::Template;
use axum::Json;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use chancery_domain::UnixMillis;
use chancery_policy::{FirmResource, ReadTeam};
use chancery_store::{INVITATION_LIFETIME, Invitation, TeamMember};
use chancery_web::{Form, page, wants_json};
use serde_json::json;
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Template)]
#[template(path = "team/page.html")]
struct TeamPage<'a> {
    frame: Frame<'a>,
    members: Vec<Row>,
    removed: Vec<Row>,
    invitations: Vec<InvitationRow>,
    invite: Form<InviteInput>,
    company_domain: String,
    valid_days: u64,
    /// Inviting a partner needs a recent authentication.
    can_invite_partner: bool,
    /// Roles come from the firm's directory.
    has_directory_roles: bool,
    done: Option<&'static str>,
    /// In a demo, where its email can be read.
    mail_page_url: Option<&'a str>,
}

/// The page whose form can invite partners.
pub(super) const INVITE_PAGE: &str = "/team?open=invite";

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    headers: HeaderMap,
    Query(query): Query<HashMap<String, String>>,
) -> Result<Response, PageError> {
    let team = Team::read(&portal, &signed_in).await?;
    if wants_json(&headers) {
        return Ok(as_json(&team.members, &team.invitations));
    }
    if let Some(person_id) = query.get("person") {
        return person_page::show(&portal, &signed_in, &team.members, person_id, &query).await;
    }
    let is_invite_open = query.get("open").is_some_and(|open| open == "invite");
    if is_invite_open && let Some(redirect) = step_up::required_for_page(&portal, &signed_in, INVITE_PAGE)? {
        return Ok(redirect);
    }
    let done = query.get("done").and_then(|done| notice_text(done));
    team.show(&portal, &signed_in, Form::default(), done, StatusCode::OK).await
}

/// Everyone, and the pending invitations.
pub(super) struct Team {
    members: Vec<TeamMember>,
    invitations: Vec<Invitation>,
}

impl Team {
    pub(super) async fn read(portal: &Portal, signed_in: &SignedIn) -> Result<Self, PageError> {
        let permit = portal.permit::<ReadTeam>(signed_in, FirmResource).await?;
        let members = portal.store.people.read_team(permit, portal.settings.session_times).await?;
        let invitations = portal.store.invitations.list_invitations(portal.clock.now()).await?;
        Ok(Self { members, invitations })
    }

    /// Shows the page, with the form for invitations as it was typed.
    pub(super) async fn show(
        &self,
        portal: &Portal,
        signed_in: &SignedIn,
        invite: Form<InviteInput>,
        done: Option<&'static str>,
        status: StatusCode,
    ) -> Result<Response, PageError> {
        let (names, local) = (PersonNames::read(portal).await?, signed_in.local_time(portal));
        let row = |member: &TeamMember| Row::new(member, signed_in.person.id, &names, &local);
        let (members, removed) = self.members.iter().map(row).partition(|row| row.removed.is_none());
        let invitations = self.invitations.iter();
        let shown = TeamPage {
            frame: Frame::new(portal, signed_in, Section::Team),
            members,
            removed,
            invitations: invitations.map(|pending| InvitationRow::new(pending, &names, &local)).collect(),
            invite,
            company_domain: portal.settings.company_domain.to_string(),
            valid_days: INVITATION_LIFETIME.as_secs() / (24 * 60 * 60),
            can_invite_partner: step_up::is_recent_for_page(signed_in.session.authenticated_at, local.now),
            has_directory_roles: portal.settings.identity.roles.is_some(),
            done,
            mail_page_url: portal.mailer.mail_page_url(),
        };
        Ok(page(status, &shown)?)
    }
}

/// Confirms the change that redirected here.
fn notice_text(done: &str) -> Option<&'static str> {
    match done {
        "invited" => Some("Invitation sent. It is listed below until the person signs in."),
        "resent" => Some("Invitation sent again."),
        "canceled" => Some("Invitation canceled."),
        _ => None,
    }
}

fn as_json(team: &[TeamMember], invitations: &[Invitation]) -> Response {
    let iso = |at: Option<UnixMillis>| at.map(UnixMillis::to_iso);
    let people: Vec<_> = team
        .iter()
        .map(|member| {
            json!({
                "id": member.person.id.0,
                "email": member.person.email.as_str(),
                "name": member.person.profile.name.as_ref().map(ToString::to_string),
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
    let invitations: Vec<_> = invitations
        .iter()
        .map(|pending| {
            json!({
                "email": pending.email.as_str(),
                "role": pending.role.as_str(),
                "invited_by": pending.invited_by.as_ref().map(|person| person.email.as_str()),
                "created_at": pending.created_at.to_iso(),
                "last_sent_at": pending.last_sent_at.to_iso(),
                "expires_at": pending.last_sent_at.after(INVITATION_LIFETIME).to_iso(),
            })
        })
        .collect();
    Json(json!({ "people": people, "invitations": invitations })).into_response()
}
