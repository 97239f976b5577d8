//! The cookies that remember a sign-out in the browser.

use axum::http::{HeaderValue, header};
use axum::response::Response;
use chancery_web::Cookie;
use std::time::Duration;

/// The next sign-in asks for credentials. Set at sign-out, until a sign-in or until the provider has signed the person out.
pub(crate) const ASK_AGAIN_COOKIE: Cookie = Cookie { name: "__Host-ask_again", path: "/" };
/// As long as a provider's session usually lasts.
pub(crate) const ASK_AGAIN_TTL: Duration = Duration::from_secs(12 * 60 * 60);

/// The `state` of a sign-out at the provider.
pub(crate) const STATE_COOKIE: Cookie = Cookie { name: "__Host-sign_out", path: "/" };
pub(crate) const STATE_TTL: Duration = Duration::from_secs(10 * 60);

pub(crate) fn with_cookies(
    mut response: Response,
    cookies: impl IntoIterator<Item = HeaderValue>,
) -> Response {
    for cookie in cookies {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    response
}
