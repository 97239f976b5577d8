//! Invitations as the team page shows them: the form, and the rows of the list.

use super::row::role_label;
use crate::person_names::{DisplayPerson, PersonNames};
use crate::state::Portal;
use crate::time_format::{DisplayTime, LocalTime};
use chancery_domain::{EmailAddress, Role};
use chancery_store::{INVITATION_LIFETIME, Invitation};
use chancery_web::{Problems, capitalize};
use serde::Deserialize;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct InviteInput {
    pub(crate) email: String,
    pub(crate) role: String,
}

impl InviteInput {
    pub(super) fn is_partner(&self) -> bool {
        self.role == Role::Partner.as_str()
    }

    /// The company's domain rule is that of sign-in.
    pub(super) fn read(&self, portal: &Portal) -> Result<(EmailAddress, Role), Problems> {
        let domain = &portal.settings.company_domain;
        let mut problems = Problems::default();
        let email = match self.email.trim() {
            "" => Err("Enter an email address".to_owned()),
            email => email.parse::<EmailAddress>().map_err(|error| capitalize(&error.to_string())),
        };
        let email = email.and_then(|email| match email.has_domain(domain) {
            true => Ok(email),
            false => Err(format!("Only @{domain} addresses can sign in here")),
        });
        let email = email.map_err(|text| problems.add("email", text));
        let role = self.role.parse::<Role>().map_err(|_| problems.add("role", "Choose a role"));
        match (email, role) {
            (Ok(email), Ok(role)) => Ok((email, role)),
            _ => Err(problems),
        }
    }
}

/// A pending invitation in the list.
pub(super) struct InvitationRow {
    pub(super) email: String,
    pub(super) role: &'static str,
    /// `None` for the command line.
    pub(super) invited_by: Option<DisplayPerson>,
    pub(super) last_sent: DisplayTime,
    pub(super) expires: DisplayTime,
}

impl InvitationRow {
    pub(super) fn new(pending: &Invitation, names: &PersonNames, local: &LocalTime) -> Self {
        Self {
            email: pending.email.to_string(),
            role: role_label(pending.role),
            invited_by: pending.invited_by.as_ref().map(|person| names.of_ref(person)),
            last_sent: DisplayTime::new(pending.last_sent_at, local),
            expires: DisplayTime::new(pending.last_sent_at.after(INVITATION_LIFETIME), local),
        }
    }
}
