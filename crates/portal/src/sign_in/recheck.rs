//! `identity.session_recheck_min`: after this time, the identity provider must confirm that the person is still signed in
//! there. Without back-channel logout, it is how a person who was disabled at the provider loses access to the portal.
//!
//! A page is fetched again after the confirmation, which takes the browser to the provider and back (`prompt=none`). Forms
//! and programs cannot go that way. They go on for as long again, because a page usually confirms the session in the
//! meantime; then the session counts as ended for them.

use crate::sign_in::links::recheck_url;
use crate::sign_in::visitor::accepts_html;
use crate::state::Portal;
use axum::http::Method;
use axum::http::request::Parts;
use chancery_domain::{LocalPath, UnixMillis};
use std::time::Duration;

/// Whether a request may go on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Recheck {
    NotNeeded,
    /// The browser goes to this URL first.
    ConfirmFirst(String),
    /// The session counts as ended.
    TooLate,
}

/// For a session that the provider last confirmed at this time.
pub(crate) fn check(portal: &Portal, confirmed_at: UnixMillis, parts: &Parts) -> Recheck {
    let Some(recheck_after) = portal.settings.identity.recheck_after else { return Recheck::NotNeeded };
    let age = age(confirmed_at, portal.clock.now());
    if age < recheck_after {
        return Recheck::NotNeeded;
    }
    let is_page = matches!(parts.method, Method::GET | Method::HEAD) && accepts_html(&parts.headers);
    let path = parts.uri.path_and_query().map(|path| path.as_str()).and_then(LocalPath::parse);
    match path.filter(|_| is_page) {
        Some(path) => Recheck::ConfirmFirst(recheck_url(&path)),
        None if age < recheck_after.saturating_mul(2) => Recheck::NotNeeded,
        None => Recheck::TooLate,
    }
}

pub(crate) fn age(at: UnixMillis, now: UnixMillis) -> Duration {
    Duration::from_millis(u64::try_from(now.0.saturating_sub(at.0)).unwrap_or(0))
}
