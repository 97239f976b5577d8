//! URLs that start a sign-in.

use chancery_domain::LocalPath;
use chancery_web::ErrorPage;
use openidconnect::url::form_urlencoded;

/// Makes the provider ask for credentials although it knows the browser.
pub(crate) const SOMEONE_ELSE: (&str, &str) = ("as", "someone-else");

/// Default destination after signing in.
const START: &str = "/clients";

pub(crate) fn start() -> Result<LocalPath, ErrorPage> {
    LocalPath::parse(START).ok_or_else(|| ErrorPage::internal("invalid start path"))
}

/// URL of a sign-in that ends at `return_to`.
pub(crate) fn sign_in_url(return_to: &LocalPath) -> String {
    let path: String = form_urlencoded::byte_serialize(return_to.as_str().as_bytes()).collect();
    format!("/auth/sign-in?return_to={path}")
}

/// URL for signing in with another account than the one signed in at the provider.
pub(crate) fn someone_else_url(return_to: &LocalPath) -> String {
    let (name, value) = SOMEONE_ELSE;
    format!("{}&{name}={value}", sign_in_url(return_to))
}

/// Label of the link after a failed sign-in.
pub(crate) const SIGN_IN_AGAIN: &str = "Sign in again";
