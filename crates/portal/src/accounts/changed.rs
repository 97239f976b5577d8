//! Where a change of an account or a key leads.

use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::AccountId;
use chancery_store::{AccountDone, AccountEventId, AccountSubject};

/// To the page of what was changed, which says what was done.
pub(super) fn changed(done: AccountDone) -> Response {
    let account = match done.subject {
        AccountSubject::Account(account) => Some(account.id),
        AccountSubject::Key(key) => key.account,
    };
    redirect_to(account, done.event)
}

/// No event: it was so already.
fn redirect_to(account: Option<AccountId>, event: Option<AccountEventId>) -> Response {
    let event = event.map_or(0, |event| event.0);
    let page = match account {
        Some(account) => format!("/accounts/{account}?done={event}"),
        None => format!("/accounts?done={event}"),
    };
    Redirect::to(&page).into_response()
}
