//! `/team`, for partners: people, their roles, and their numbers of clients and sessions. The policy decides on every change, and the
//! decision is audited with it.

mod member;
pub(crate) mod page;
pub(crate) mod reassign;
pub(crate) mod remove;
pub(crate) mod role;
pub(crate) mod sign_out;
