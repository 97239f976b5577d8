//! People of the portal. A person is identified by the identity provider's issuer and subject together, never by email address.

use crate::{EmailAddress, PersonName, TimeZoneName, UnixMillis};
use std::fmt;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PersonId(pub i64);

/// A person's permanent identity at an identity provider.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    pub issuer: String,
    pub subject: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Reads their own clients.
    Consultant,
    /// Reads every client, and the invoices.
    Partner,
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

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a role is `consultant` or `partner`")]
pub struct RoleError;

impl fmt::Display for PersonId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Role {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Consultant => "consultant",
            Self::Partner => "partner",
        }
    }
}

impl FromStr for Role {
    type Err = RoleError;

    fn from_str(text: &str) -> Result<Self, RoleError> {
        match text {
            "consultant" => Ok(Self::Consultant),
            "partner" => Ok(Self::Partner),
            _ => Err(RoleError),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
