//! Redirects after a change to an account or a key.

use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::AccountId;
use chancery_store::{AccountChangeOutcome, AccountEventId, AccountSubject};

/// Redirects to the page of the changed item, which confirms the change.
pub(super) fn changed(done: AccountChangeOutcome) -> Response {
    let account = match done.subject {
        AccountSubject::Account(account) => Some(account.id),
        AccountSubject::Key(key) => key.account,
    };
    redirect_to(account, done.event)
}

/// Without an event, nothing changed.
fn redirect_to(account: Option<AccountId>, event: Option<AccountEventId>) -> Response {
    let event = event.map_or(0, |event| event.0);
    let page = match account {
        Some(account) => format!("/accounts/{account}?done={event}"),
        None => format!("/accounts?done={event}"),
    };
    Redirect::to(&page).into_response()
}
