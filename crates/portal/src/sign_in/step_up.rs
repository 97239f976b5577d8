//! Step-up: creating keys, changing roles, inviting and restoring partners, resetting second factors, closing accounts and
//! exporting all clients need a recent authentication at the identity provider, so that a browser that was left open
//! cannot do them.
//!
//! It is asked for when the page with the form opens, so that no typed text is lost, and with enough time left to fill
//! the form in. A form that comes too late anyway gets a page that shows what was typed. Programs get
//! `reauthentication_required`.

use crate::error::PageError;
use crate::sign_in::links::{start, step_up_url};
use crate::sign_in::recheck::age;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{EventOrigin, LocalPath, UnixMillis};
use chancery_web::ErrorPage;
use std::time::Duration;

/// The action itself needs an authentication younger than this.
pub(crate) const MAX_AGE: Duration = Duration::from_secs(10 * 60);
/// The page with the form needs a younger one: half of the time is left for the form.
pub(crate) const PAGE_MAX_AGE: Duration = Duration::from_secs(5 * 60);
/// The provider is asked for less than the page needs (`max_age`), because clocks differ and the way back takes time.
pub(crate) const REQUESTED_MAX_AGE: Duration = Duration::from_secs(4 * 60);

/// Whether an authentication is recent enough for a page with such a form.
pub(crate) fn is_recent_for_page(authenticated_at: UnixMillis, now: UnixMillis) -> bool {
    age(authenticated_at, now) < PAGE_MAX_AGE
}

/// For the page that offers the action: the redirect to authenticate first, if that is needed.
pub(crate) fn required_for_page(
    portal: &Portal,
    signed_in: &SignedIn,
    page: &str,
) -> Result<Option<Response>, PageError> {
    if is_recent_for_page(signed_in.session.authenticated_at, portal.clock.now()) {
        return Ok(None);
    }
    Ok(Some(Redirect::to(&step_up_url(&local_path(page)?)).into_response()))
}

/// For the action itself. `page` is the one that offers it. A rejection is audited, next to the policy's decision.
pub(crate) async fn ensure_recent(
    portal: &Portal,
    signed_in: &SignedIn,
    page: &str,
) -> Result<(), PageError> {
    let now = portal.clock.now();
    if age(signed_in.session.authenticated_at, now) < MAX_AGE {
        return Ok(());
    }
    let ip = signed_in.session.ip_address.parse().ok();
    let origin = EventOrigin { ip, at: now, request_id: signed_in.request_id.clone() };
    portal.store.sessions.record_reauthentication_required(&signed_in.person, &origin).await?;
    Err(required_page(page)?.into())
}

/// An address that no link of ours has leads to the start page.
fn local_path(page: &str) -> Result<LocalPath, ErrorPage> {
    LocalPath::parse(page).map_or_else(start, Ok)
}

fn required_page(page: &str) -> Result<ErrorPage, ErrorPage> {
    let minutes = MAX_AGE.as_secs() / 60;
    let reason = format!("This needs a sign-in from the last {minutes} minutes. Nothing was changed.");
    let required = ErrorPage::new(
        StatusCode::FORBIDDEN,
        "reauthentication_required",
        "Sign in again to continue",
        reason,
    );
    Ok(required
        .advice("Sign in again, and then repeat what you did. You stay in the same session.")
        .next_link(step_up_url(&local_path(page)?), "Sign in again"))
}

/// For a provider that did not ask again, or does not say when it asked.
pub(crate) fn not_confirmed_page(host: &str, return_to: &LocalPath) -> ErrorPage {
    let reason = format!(
        "{host} sent you back without a new sign-in, or without the time of it. Nothing was changed, and you are still signed in."
    );
    ErrorPage::new(StatusCode::BAD_GATEWAY, "reauthentication_not_confirmed", "Sign-in not confirmed", reason)
        .advice(format!(
            "Try again. If it fails again, contact your administrator: {host} must say when you signed in."
        ))
        .next_link(step_up_url(return_to), "Try again")
        .other_link(Some("/clients".to_owned()), "Go to clients")
        .with_log_detail("step-up failed: `auth_time` is absent or older than `max_age` asked for")
}
