//! The portal's people: roles, sessions and sign-ins.

pub(crate) mod email_codes;
pub(crate) mod error;
pub(crate) mod roles;
mod rows;
pub(crate) mod sessions;
pub(crate) mod sign_ins;
pub(crate) mod team;
pub(crate) mod types;
