//! The confirmation on `/security` after a change. It is in a cookie: a query parameter could be forged in a link.

use crate::signed_in::see_other;
use axum::http::{HeaderMap, header};
use axum::response::Response;
use chancery_web::{Cookie, CookieLookup, find_cookie};
use std::time::Duration;

const COOKIE: Cookie = Cookie { name: "__Host-security_notice", path: "/" };
const TTL: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SecurityNotice {
    PasskeyAdded,
    PasskeyRenamed,
    PasskeyRemoved,
    AuthenticatorAdded,
    AuthenticatorRemoved,
    PasswordChanged,
}

const ALL: [(SecurityNotice, &str, &str); 6] = [
    (SecurityNotice::PasskeyAdded, "passkey-added", "Passkey added."),
    (SecurityNotice::PasskeyRenamed, "passkey-renamed", "Passkey renamed."),
    (SecurityNotice::PasskeyRemoved, "passkey-removed", "Passkey removed. Delete it on your device too."),
    (SecurityNotice::AuthenticatorAdded, "authenticator-added", "Authenticator app added."),
    (SecurityNotice::AuthenticatorRemoved, "authenticator-removed", "Authenticator app removed."),
    (
        SecurityNotice::PasswordChanged,
        "password-changed",
        "Password changed. All other browsers were signed out.",
    ),
];

/// Redirects to `/security`, which confirms the change.
pub(super) fn to_security(notice: SecurityNotice) -> Response {
    let mut response = see_other("/security");
    let value = ALL.iter().find(|(own, ..)| *own == notice).map(|(_, value, _)| *value);
    if let Some(cookie) = value.and_then(|value| COOKIE.set(value, Some(TTL))) {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    response
}

/// The text to show, if a change has just happened.
pub(super) fn notice_text(headers: &HeaderMap) -> Option<&'static str> {
    let CookieLookup::One(sent) = find_cookie(headers, COOKIE.name) else { return None };
    ALL.iter().find(|(_, value, _)| *value == sent).map(|(_, _, text)| *text)
}

/// Deletes the notice, which is shown once.
pub(super) fn delete_notice(response: &mut Response) {
    if let Some(cookie) = COOKIE.expire() {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
}
