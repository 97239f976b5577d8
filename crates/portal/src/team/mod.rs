//! `/team`, for partners: people, their roles, their numbers of clients and sessions, and invitations. The policy
//! decides on every change, and the decision is audited with it.

pub(crate) mod factor_reset;
pub(crate) mod invitations;
mod invite_form;
mod member;
pub(crate) mod page;
mod person_page;
pub(crate) mod reassign;
pub(crate) mod remove;
pub(crate) mod role;
mod row;
pub(crate) mod sign_out;
