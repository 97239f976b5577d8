//! Where signing in begins, as pages and redirects link to it.

use chancery_domain::LocalPath;
use chancery_web::ErrorPage;
use openidconnect::url::form_urlencoded;

/// Asks the provider who it is, though it knows the browser.
pub(crate) const SOMEONE_ELSE: (&str, &str) = ("as", "someone-else");

/// Where somebody goes who was going nowhere in particular.
const START: &str = "/clients";

pub(crate) fn start() -> Result<LocalPath, ErrorPage> {
    LocalPath::parse(START).ok_or_else(|| ErrorPage::internal("the start is no path of this portal"))
}

/// Where a sign-in begins that ends at `return_to`.
pub(crate) fn sign_in_url(return_to: &LocalPath) -> String {
    let path: String = form_urlencoded::byte_serialize(return_to.as_str().as_bytes()).collect();
    format!("/auth/sign-in?return_to={path}")
}

/// Where somebody signs in with another account than the one that the provider knows this browser by.
pub(crate) fn someone_else_url(return_to: &LocalPath) -> String {
    let (name, value) = SOMEONE_ELSE;
    format!("{}&{name}={value}", sign_in_url(return_to))
}

/// What pages offer after a sign-in that came to nothing.
pub(crate) const SIGN_IN_AGAIN: &str = "Sign in again";
