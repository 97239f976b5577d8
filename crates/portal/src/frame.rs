//! The frame of every signed-in page (`templates/bar.html`): the firm, the available sections, the user, and
//! sign-out.

use crate::authz::capabilities::Capabilities;
use crate::person_names::initials;
use crate::sign_in::session::{MaybeSignedIn, SignedIn};
use crate::state::Portal;
use askama::Template;
use async_trait::async_trait;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use chancery_domain::{PersonId, PersonName, Role};
use chancery_web::BarRenderer;
use std::sync::Arc;

/// The section that a page belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    Home,
    Clients,
    Invoices,
    Usage,
    Accounts,
    Team,
    Audit,
    /// The user's own profile, linked from their name.
    Profile,
    /// The user's own sessions, linked from their profile.
    Sessions,
    /// For error pages.
    ErrorPage,
}

/// The field `frame` of every template that extends `signed_in.html`.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) firm_name: &'a str,
    pub(crate) person_id: PersonId,
    /// The user's name, or their address.
    pub(crate) person: &'a str,
    pub(crate) email: &'a str,
    pub(crate) initials: String,
    /// The time zone that the user has chosen, or the firm's.
    pub(crate) time_zone: &'a str,
    pub(crate) role: &'static str,
    pub(crate) can: Capabilities,
    section: Section,
}

impl<'a> Frame<'a> {
    pub(crate) fn new(portal: &'a Portal, signed_in: &'a SignedIn, section: Section) -> Self {
        let person = &signed_in.person;
        Self {
            firm_name: &portal.settings.firm_name,
            person_id: person.id,
            person: person.profile.name.as_ref().map_or(person.email.as_str(), PersonName::as_str),
            email: person.email.as_str(),
            initials: initials(person.profile.name.as_ref().map(PersonName::as_str), &person.email),
            time_zone: person.profile.time_zone.as_ref().unwrap_or(&portal.settings.time_zone).as_str(),
            role: match signed_in.person.role {
                Role::Consultant => "Consultant",
                Role::Partner => "Partner",
            },
            can: signed_in.capabilities(portal),
            section,
        }
    }

    pub(crate) fn is_at(&self, section: Section) -> bool {
        self.section == section
    }
}

#[derive(Template)]
#[template(path = "bar.html")]
struct Bar<'a> {
    frame: Frame<'a>,
}

/// Renders the navigation bar of error pages, so that the user can go elsewhere. It depends on the signed-in user only, never on
/// what was requested.
pub(crate) struct PortalBarRenderer(pub(crate) Arc<Portal>);

#[async_trait]
impl BarRenderer for PortalBarRenderer {
    async fn render_bar(&self, parts: &mut Parts) -> Option<String> {
        let Self(portal) = self;
        let MaybeSignedIn(signed_in) = MaybeSignedIn::from_request_parts(parts, portal).await.ok()?;
        let signed_in = signed_in?;
        let frame = Frame::new(portal, &signed_in, Section::ErrorPage);
        Bar { frame }.render().ok()
    }
}
