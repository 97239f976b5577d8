//! `/security/passkeys/add`: the browser creates a passkey, and the person names it.

use super::super::factor_emails::{FactorChange, notify};
use super::super::form::{PostedForm, Problems, ReturnToParam, local_path};
use super::super::second_factor::{PASSKEY_MISSING, account_factors};
use super::notice::{SecurityNotice, to_security};
use super::passkey_list::passkey_name;
use super::{
    BrowserSession, email_code, end_other_sessions, fresh_session, local, passkeys_unavailable, recovery,
    to_confirm,
};
use crate::authentication_methods::AuthenticationMethod;
use crate::passkeys;
use crate::recovery_codes::NewRecoveryCodes;
use crate::signed_in::{reauthenticate, with_return_to};
use crate::{Provider, store_error_page};
use askama::Template;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use chancery_domain::{LocalPath, TokenHash};
use chancery_store::{AddFactorOutcome, MAX_PASSKEYS_PER_ACCOUNT, NewPasskey};
use chancery_web::{ErrorPage, page};
use serde::Deserialize;
use std::sync::Arc;

const PATH: &str = "/security/passkeys/add";
const DEFAULT_NAME: &str = "Passkey";

#[derive(Template)]
#[template(path = "passkey_add.html")]
struct PasskeyPage<'a> {
    firm_name: &'a str,
    problems: Problems,
    name: &'a str,
    options: String,
    return_to: &'a LocalPath,
}

#[derive(Deserialize)]
pub(super) struct Fields {
    #[serde(default)]
    name: String,
    #[serde(default)]
    credential: String,
    #[serde(default)]
    return_to: String,
}

fn ceremony_key(session: &BrowserSession) -> TokenHash {
    session.token.hash_with("passkey registration")
}

/// Shows the page with a new challenge.
async fn show_page(
    provider: &Provider,
    session: &BrowserSession,
    problems: Problems,
    name: &str,
    return_to: &LocalPath,
) -> Result<Response, ErrorPage> {
    let account = &session.signed_in.account;
    let existing = account_factors(provider, account).await?.passkeys;
    let options = passkeys::begin_registration(provider, ceremony_key(session), account, &existing).await?;
    let options = options.ok_or_else(passkeys_unavailable)?;
    let status = if problems.any() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    let firm_name = &provider.settings.firm_name;
    page(status, &PasskeyPage { firm_name, problems, name, options, return_to })
}

pub(super) async fn show(
    State(provider): State<Arc<Provider>>,
    ReturnToParam(return_to): ReturnToParam,
    headers: HeaderMap,
) -> Result<Response, ErrorPage> {
    let Some(session) = fresh_session(&provider, &headers).await? else {
        return Ok(to_confirm(&local(&with_return_to(PATH, &return_to))));
    };
    // Otherwise a code would be emailed for nothing.
    if provider.passkeys.is_none() {
        return Err(passkeys_unavailable());
    }
    if email_code::is_needed(&provider, &session).await? {
        return Ok(email_code::to_email_code(&local(&with_return_to(PATH, &return_to))));
    }
    show_page(&provider, &session, Problems::default(), DEFAULT_NAME, &return_to).await
}

pub(super) async fn send(
    State(provider): State<Arc<Provider>>,
    headers: HeaderMap,
    PostedForm(fields): PostedForm<Fields>,
) -> Result<Response, ErrorPage> {
    let return_to = local_path(&fields.return_to);
    let Some(session) = fresh_session(&provider, &headers).await? else {
        return Ok(to_confirm(&local(&with_return_to(PATH, &return_to))));
    };
    if email_code::is_needed(&provider, &session).await? {
        return Ok(email_code::to_email_code(&local(&with_return_to(PATH, &return_to))));
    }
    let account = &session.signed_in.account;
    let show_again = |field: &'static str, text: String| {
        show_page(&provider, &session, Problems::one(field, text), fields.name.trim(), &return_to)
    };
    let name = match passkey_name(&fields.name) {
        Ok(name) => name,
        Err(text) => return show_again("name", text).await,
    };
    if fields.credential.is_empty() {
        return show_again("passkey", PASSKEY_MISSING.to_owned()).await;
    }
    let key = ceremony_key(&session);
    let registered = passkeys::finish_registration(&provider, key, account, &fields.credential).await?;
    let Some((credential_id, credential)) = registered else {
        return show_again("passkey", "The passkey was not accepted. Try again.".to_owned()).await;
    };
    let codes = NewRecoveryCodes::generate(provider.randomness.as_ref());
    let new = NewPasskey {
        credential_id,
        subject: account.subject.clone(),
        name,
        credential,
        recovery_codes: codes.hashes(&account.subject),
        at: provider.clock.now(),
    };
    let added = provider.store.second_factors.add_passkey(&new).await.map_err(store_error_page)?;
    let is_first = match added {
        AddFactorOutcome::Added { is_first } => is_first,
        AddFactorOutcome::AlreadyExists => {
            return show_again("passkey", "This passkey is registered already.".to_owned()).await;
        }
        AddFactorOutcome::TooMany => {
            let text =
                format!("You have {MAX_PASSKEYS_PER_ACCOUNT} passkeys, the maximum. Remove one first.");
            return show_again("passkey", text).await;
        }
    };
    // The person has just proved it. When they authenticated stays.
    let methods = session.signed_in.methods.with(AuthenticationMethod::Passkey);
    reauthenticate(&provider, &headers, &methods, session.signed_in.authenticated_at).await?;
    notify(&provider, &account.email, FactorChange::PasskeyAdded);
    match is_first {
        true => {
            end_other_sessions(&provider, &session).await?;
            email_code::use_up_proof(&provider, &session).await?;
            let added = Some("Passkey added.");
            recovery::show_codes(&provider, account.email.as_str(), added, &codes, &return_to)
        }
        false => Ok(to_security(SecurityNotice::PasskeyAdded)),
    }
}
