//! What stands around every page of somebody who is signed in (`templates/bar.html`): the firm, the sections that
//! there are, the person, and the way out.

use crate::authz::capabilities::Capabilities;
use crate::sign_in::session::{MaybeSignedIn, SignedIn};
use crate::state::Portal;
use askama::Template;
use async_trait::async_trait;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use chancery_domain::Role;
use chancery_web::Bars;
use std::sync::Arc;

/// Where in the portal a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    Clients,
    Invoices,
    Usage,
    Accounts,
    Team,
    Audit,
    /// One's own affairs, reached by one's name.
    Sessions,
    /// Something that is in no section: an error.
    Nowhere,
}

/// The field `frame` of every template that extends `signed_in.html`.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) firm_name: &'a str,
    pub(crate) email: &'a str,
    pub(crate) role: &'static str,
    pub(crate) may: Capabilities,
    section: Section,
}

impl<'a> Frame<'a> {
    pub(crate) fn new(portal: &'a Portal, signed_in: &'a SignedIn, section: Section) -> Self {
        Self {
            firm_name: &portal.settings.firm_name,
            email: signed_in.person.email.as_str(),
            role: match signed_in.person.role {
                Role::Consultant => "Consultant",
                Role::Partner => "Partner",
            },
            may: signed_in.capabilities(portal),
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

/// Above an error, so that whoever meets one is not lost. It is made from who asks and from nothing that was asked for.
pub(crate) struct ErrorBars(pub(crate) Arc<Portal>);

#[async_trait]
impl Bars for ErrorBars {
    async fn bar_for(&self, asker: &mut Parts) -> Option<String> {
        let Self(portal) = self;
        let MaybeSignedIn(signed_in) = MaybeSignedIn::from_request_parts(asker, portal).await.ok()?;
        let signed_in = signed_in?;
        let frame = Frame::new(portal, &signed_in, Section::Nowhere);
        Bar { frame }.render().ok()
    }
}
