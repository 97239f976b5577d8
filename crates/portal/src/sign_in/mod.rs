//! Sign-in at an identity provider, the email code, sessions, and sign-out. Passwords are up to the provider.

pub(crate) mod admission;
pub(crate) mod authentication;
pub(crate) mod backchannel_logout;
pub(crate) mod begin;
pub(crate) mod callback;
mod confirmation;
pub(crate) mod email_code;
pub(crate) mod email_code_resend;
mod emails;
pub(crate) mod finish;
pub(crate) mod identity;
mod known_browser;
pub(crate) mod links;
mod pending_email_code;
mod recheck;
mod requirements;
pub(crate) mod session;
pub(crate) mod session_cookie;
pub(crate) mod session_end;
pub(crate) mod session_list;
pub(crate) mod sign_out;
mod sign_out_cookies;
pub(crate) mod signed_out;
pub(crate) mod step_up;
pub(crate) mod throttle;
pub(crate) mod visitor;
