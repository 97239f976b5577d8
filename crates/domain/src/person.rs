//! People of the portal. A person is identified by the identity provider's issuer and subject together, never by email address.

use crate::{EmailAddress, PersonName, TimeZoneName, UnixMillis};
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PersonId(pub i64);

/// A person's permanent identity at an identity provider.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    pub issuer: String,
    pub subject: String,
}

closed_enum! {
    pub enum Role {
        /// Reads their own clients.
        Consultant = "consultant",
        /// Reads every client, and the invoices.
        Partner = "partner",
    }
    error RoleError = "a role is `consultant` or `partner`";
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Person {
    pub id: PersonId,
    pub identity: Identity,
    pub email: EmailAddress,
    pub role: Role,
    pub joined_at: UnixMillis,
    pub profile: Profile,
}

/// What people say about themselves. It decides nothing: only identities and roles do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Shown instead of the address. `None`: the address is shown.
    pub name: Option<PersonName>,
    /// `None`: times are shown in the firm's time zone.
    pub time_zone: Option<TimeZoneName>,
}

impl fmt::Display for PersonId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
