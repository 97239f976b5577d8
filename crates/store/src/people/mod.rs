//! The portal's people: roles, profiles, invitations, sessions and sign-ins.

pub(crate) mod email_codes;
pub(crate) mod error;
pub(crate) mod invitations;
pub(crate) mod profiles;
mod provider_logout;
pub(crate) mod roles;
pub(crate) mod rows;
pub(crate) mod sessions;
pub(crate) mod sign_ins;
pub(crate) mod team;
pub(crate) mod types;
