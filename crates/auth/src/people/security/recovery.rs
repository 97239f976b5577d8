//! Recovery codes: shown once, on the page that follows the first factor, or after they are replaced.

use super::super::factor_emails::{FactorChange, notify};
use super::super::form::{ConfirmedFields, PostedForm};
use super::{ask_before_removal, fresh_session, local, to_confirm};
use crate::recovery_codes::NewRecoveryCodes;
use crate::{Provider, store_error_page};
use askama::Template;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use chancery_domain::LocalPath;
use chancery_store::RemoveFactorOutcome;
use chancery_web::{Confirmation, ErrorPage, page};
use std::sync::Arc;

#[derive(Template)]
#[template(path = "recovery_codes.html")]
struct RecoveryCodesPage<'a> {
    firm_name: &'a str,
    email: &'a str,
    /// What has just been added; `None` if the codes were replaced.
    added: Option<&'static str>,
    codes: Vec<String>,
    next: &'a LocalPath,
}

/// Shows new codes, the only time.
pub(super) fn show_codes(
    provider: &Provider,
    email: &str,
    added: Option<&'static str>,
    codes: &NewRecoveryCodes,
    next: &LocalPath,
) -> Result<Response, ErrorPage> {
    let firm_name = &provider.settings.firm_name;
    page(StatusCode::OK, &RecoveryCodesPage { firm_name, email, added, codes: codes.texts(), next })
}

pub(super) async fn replace(
    State(provider): State<Arc<Provider>>,
    headers: HeaderMap,
    PostedForm(ConfirmedFields { confirmed }): PostedForm<ConfirmedFields>,
) -> Result<Response, ErrorPage> {
    let security = local("/security");
    let Some(session) = fresh_session(&provider, &headers).await? else { return Ok(to_confirm(&security)) };
    let account = &session.signed_in.account;
    let codes = NewRecoveryCodes::generate(provider.randomness.as_ref());
    let hashes = codes.hashes(&account.subject);
    // Nothing is lost if none are left.
    let agreed = confirmed.clone();
    let is_confirmed = Box::new(move |count| count == 0 || agreed.is(count));
    let factors = &provider.store.second_factors;
    let replaced = factors.replace_recovery_codes(&account.subject, &hashes, is_confirmed).await;
    match replaced.map_err(store_error_page)? {
        RemoveFactorOutcome::Removed => {
            notify(&provider, &account.email, FactorChange::RecoveryCodesReplaced);
            show_codes(&provider, account.email.as_str(), None, &codes, &security)
        }
        RemoveFactorOutcome::Unconfirmed(factors) => {
            let change = Confirmation {
                changes: Vec::new(),
                count: 0,
                action: "/security/recovery-codes",
                fields: Vec::new(),
                button: "Replace recovery codes".to_owned(),
            };
            Err(ask_before_removal("Replace recovery codes?", change, factors.recovery_codes, &confirmed))
        }
        RemoveFactorOutcome::NotFound | RemoveFactorOutcome::IsLast => Err(ErrorPage::conflict(
            "no_second_factor",
            "No second factor",
            "Recovery codes replace a second factor that you cannot use, and your account has none.",
        )
        .advice("Add a passkey or an authenticator app first. Recovery codes come with it.")
        .next_link("/security", "Back to security")),
    }
}
