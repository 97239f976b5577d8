//! `/team`, for partners: who works in the portal, in which role, with how many clients and sessions. Whatever is changed
//! about somebody is decided by the policy, and on record with the change.

mod member;
pub(crate) mod page;
pub(crate) mod reassign;
pub(crate) mod remove;
pub(crate) mod role;
pub(crate) mod sign_out;
