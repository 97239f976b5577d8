//! `/accounts`, for partners: who pays, how much they may use, and the keys that bill them. Each deed is one step of the store
//! with its decision and its line in the history; the page that it leads to says what was changed in that line's words.

pub(crate) mod account;
pub(crate) mod deeds;
mod forms;
mod json;
pub(crate) mod key_deeds;
mod key_made;
pub(crate) mod list;
mod view;

use crate::failure::refused_by_store;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::{FromRequestParts, Path};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{AccountId, KeyPrefix};
use chancery_policy::{ManageAccounts, Permit, TheFirm};
use chancery_store::{AccountEventId, StoreError};
use chancery_web::Refusal;
use std::collections::HashMap;

/// May this person manage accounts? Asked before anything of the form is read.
async fn manage(portal: &Portal, who: &SignedIn) -> Result<Permit<ManageAccounts>, Refusal> {
    portal.permit::<ManageAccounts>(who, TheFirm).await
}

/// The number in a path `/accounts/{account}…`. What is no integer is no account's address; handlers say so only after the policy
/// was asked, so that a refusal tells nothing.
pub(crate) struct AccountNumber(pub(crate) AccountId);

impl<S: Send + Sync> FromRequestParts<S> for AccountNumber {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let number = segment(parts, state, "account").await?;
        let digits = number.strip_prefix('-').unwrap_or(&number);
        match !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
            // One that is too large for any account is a number like another that is nobody's.
            true => Ok(Self(AccountId(number.parse().unwrap_or(i64::MAX)))),
            false => Err(Refusal::not_found()),
        }
    }
}

/// The public part of a key in a path `/accounts/keys/{prefix}/…`.
pub(crate) struct KeyName(pub(crate) KeyPrefix);

impl<S: Send + Sync> FromRequestParts<S> for KeyName {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        Ok(Self(KeyPrefix::from_stored(segment(parts, state, "prefix").await?)))
    }
}

async fn segment<S: Send + Sync>(parts: &mut Parts, state: &S, name: &str) -> Result<String, Refusal> {
    let Path(mut segments) = Path::<HashMap<String, String>>::from_request_parts(parts, state)
        .await
        .map_err(|_| Refusal::not_found())?;
    segments.remove(name).ok_or_else(Refusal::not_found)
}

/// To the page of what a deed was done to, which says what was done. 0: it was so already.
fn done(account: Option<AccountId>, event: Option<AccountEventId>) -> Response {
    let event = event.map_or(0, |event| event.0);
    let page = match account {
        Some(account) => format!("/accounts/{account}?done={event}"),
        None => format!("/accounts?done={event}"),
    };
    Redirect::to(&page).into_response()
}

fn refused(error: &StoreError) -> Refusal {
    match error {
        StoreError::NoSuchAccountId(_) => no_such_account(),
        StoreError::NoSuchKey => no_such_key(),
        StoreError::AccountClosed(name) => Refusal::new(
            StatusCode::CONFLICT,
            "account_closed",
            "This account is closed",
            format!("{name} is closed, so no key can bill it. Nothing was changed."),
        )
        .advice("Choose another account, or make a new one.")
        .way_on("/accounts", "Go to the accounts"),
        StoreError::KeyRevoked(prefix) => Refusal::new(
            StatusCode::CONFLICT,
            "key_revoked",
            "This key is revoked",
            format!(
                "{prefix} was revoked meanwhile, and a revoked key never works again. Nothing was changed."
            ),
        )
        .advice("Make a new key in its place.")
        .way_on("/accounts", "Go to the accounts"),
        error => refused_by_store(error),
    }
}

/// For those who may see every account: there is none of this number.
pub(crate) fn no_such_account() -> Refusal {
    Refusal::new(
        StatusCode::NOT_FOUND,
        "not_found",
        "There is no such account",
        "No account of the firm has this number.",
    )
    .advice("If you typed it, check it.")
    .way_on("/accounts", "Go to the accounts")
}

fn no_such_key() -> Refusal {
    Refusal::new(
        StatusCode::NOT_FOUND,
        "not_found",
        "There is no such key",
        "No key of the firm begins like this. Nothing was changed.",
    )
    .advice("If you typed it, check it.")
    .way_on("/accounts", "Go to the accounts")
}
