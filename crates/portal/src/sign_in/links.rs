//! URLs that start a sign-in.

use chancery_domain::LocalPath;
use chancery_web::ErrorPage;

/// Makes the provider ask for credentials although it knows the browser.
pub(crate) const SOMEONE_ELSE: (&str, &str) = ("as", "someone-else");

/// Makes the provider ask again unless the last authentication is recent.
pub(crate) const STEP_UP: (&str, &str) = ("for", "step-up");

/// Asks the provider whether the person is still signed in there.
pub(crate) const RECHECK: (&str, &str) = ("for", "recheck");

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
    with_parameter(return_to, SOMEONE_ELSE)
}

/// URL for authenticating again, and returning to this page.
pub(crate) fn step_up_url(return_to: &LocalPath) -> String {
    with_parameter(return_to, STEP_UP)
}

/// URL for confirming the session at the provider, and returning to this page.
pub(crate) fn recheck_url(return_to: &LocalPath) -> String {
    with_parameter(return_to, RECHECK)
}

fn with_parameter(return_to: &LocalPath, (name, value): (&str, &str)) -> String {
    format!("{}&{name}={value}", sign_in_url(return_to))
}

/// Label of the link after a failed sign-in.
pub(crate) const SIGN_IN_AGAIN: &str = "Sign in again";
