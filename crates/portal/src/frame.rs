//! What stands around every page of somebody who is signed in (`templates/signed_in.html`): the firm, the sections that
//! there are, the person, and the way out.

use crate::session::SignedIn;
use crate::state::Portal;
use chancery_domain::Role;

/// Where in the portal a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    Clients,
    /// One's own affairs, reached by one's name.
    Sessions,
}

/// The field `frame` of every template that extends `signed_in.html`.
#[derive(Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) firm_name: &'a str,
    pub(crate) email: &'a str,
    pub(crate) role: &'static str,
    pub(crate) section: Section,
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
            section,
        }
    }

    pub(crate) fn is_at(&self, section: Section) -> bool {
        self.section == section
    }
}
