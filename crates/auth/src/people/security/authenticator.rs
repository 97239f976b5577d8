//! `/security/authenticator/add`: an authenticator app is added once one of its codes is correct. The secret waits on
//! the server until then, so that it is the same when the page is reloaded.

use super::super::factor_emails::{FactorChange, notify};
use super::super::form::{ConfirmedFields, PostedForm, Problems, ReturnToParam, local_path};
use super::super::second_factor::{INVALID_CODE, account_factors};
use super::notice::{SecurityNotice, to_security};
use super::{
    BrowserSession, ask_before_removal, email_code, end_other_sessions, fresh_session, last_factor, local,
    recovery, to_confirm,
};
use crate::authentication_methods::AuthenticationMethod;
use crate::limits::CEREMONY_TTL;
use crate::recovery_codes::NewRecoveryCodes;
use crate::signed_in::{reauthenticate, see_other, with_return_to};
use crate::totp::{self, QrImage};
use crate::{Provider, store_error_page};
use askama::Template;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use chancery_domain::{LocalPath, TokenHash};
use chancery_store::{
    AddFactorOutcome, CeremonyKind, FactorCeremony, NewTotpSecret, ProviderAccount, RemoveFactorOutcome,
};
use chancery_web::{Confirmation, ErrorPage, page};
use serde::Deserialize;
use std::sync::Arc;

const PATH: &str = "/security/authenticator/add";
const KIND: CeremonyKind = CeremonyKind::TotpEnrolment;

#[derive(Template)]
#[template(path = "authenticator_add.html")]
struct AuthenticatorPage<'a> {
    firm_name: &'a str,
    problems: Problems,
    code: &'a str,
    qr: Option<QrImage>,
    secret: String,
    return_to: &'a LocalPath,
}

#[derive(Deserialize)]
pub(super) struct Fields {
    #[serde(default)]
    code: String,
    #[serde(default)]
    return_to: String,
}

fn ceremony_key(session: &BrowserSession) -> TokenHash {
    session.token.hash_with("authenticator")
}

/// The secret that waits for its code, in base32. A new one if there is none.
async fn waiting_secret(provider: &Provider, session: &BrowserSession) -> Result<String, ErrorPage> {
    let (ceremonies, now) = (&provider.store.ceremonies, provider.clock.now());
    let key = ceremony_key(session);
    let found = ceremonies.find_ceremony(key, KIND, now).await.map_err(store_error_page)?;
    if let Some(found) = found {
        return Ok(found.state);
    }
    let state = totp::to_base32(&totp::generate_secret(provider.randomness.as_ref()));
    let subject = Some(session.signed_in.account.subject.clone());
    let ceremony = FactorCeremony { kind: KIND, subject, state, expires_at: now.after(CEREMONY_TTL) };
    ceremonies.begin_ceremony(key, &ceremony).await.map_err(store_error_page)?;
    Ok(ceremony.state)
}

fn show_page(
    provider: &Provider,
    account: &ProviderAccount,
    base32: &str,
    problems: Problems,
    code: &str,
    return_to: &LocalPath,
) -> Result<Response, ErrorPage> {
    let status = if problems.any() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    let uri = totp::uri(&provider.settings.firm_name, &account.email, base32);
    let template = AuthenticatorPage {
        firm_name: &provider.settings.firm_name,
        problems,
        code,
        qr: totp::qr_image(&uri),
        secret: totp::grouped(base32),
        return_to,
    };
    page(status, &template)
}

pub(super) async fn show(
    State(provider): State<Arc<Provider>>,
    ReturnToParam(return_to): ReturnToParam,
    headers: HeaderMap,
) -> Result<Response, ErrorPage> {
    let Some(session) = fresh_session(&provider, &headers).await? else {
        return Ok(to_confirm(&local(&with_return_to(PATH, &return_to))));
    };
    let account = &session.signed_in.account;
    if account_factors(&provider, account).await?.totp_created_at.is_some() {
        return Ok(see_other("/security"));
    }
    if email_code::is_needed(&provider, &session).await? {
        return Ok(email_code::to_email_code(&local(&with_return_to(PATH, &return_to))));
    }
    let base32 = waiting_secret(&provider, &session).await?;
    show_page(&provider, account, &base32, Problems::default(), "", &return_to)
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
    let base32 = waiting_secret(&provider, &session).await?;
    let show_again = |text: &str| {
        let problems = Problems::one("code", text);
        show_page(&provider, account, &base32, problems, fields.code.trim(), &return_to)
    };
    let Some(code) = totp::parse_code(&fields.code) else { return show_again(INVALID_CODE) };
    let now = provider.clock.now();
    let secret =
        totp::from_base32(&base32).ok_or_else(|| ErrorPage::internal("a TOTP secret is no base32"))?;
    let Some(step) = totp::matching_step(&secret, &code, now) else {
        return show_again(
            "Incorrect code. Enter the code that the app shows now. If it is wrong again, check your phone\u{2019}s clock.",
        );
    };
    let consumed = provider.store.ceremonies.consume_ceremony(ceremony_key(&session), KIND, now).await;
    // A concurrent request of this browser was faster.
    if consumed.map_err(store_error_page)?.is_none() {
        return Ok(see_other("/security"));
    }
    let codes = NewRecoveryCodes::generate(provider.randomness.as_ref());
    let new = NewTotpSecret {
        subject: account.subject.clone(),
        secret,
        step,
        recovery_codes: codes.hashes(&account.subject),
        at: now,
    };
    let added = provider.store.second_factors.add_totp(&new).await.map_err(store_error_page)?;
    let AddFactorOutcome::Added { is_first } = added else { return Ok(see_other("/security")) };
    // The person has just proved it. When they authenticated stays.
    let methods = session.signed_in.methods.with(AuthenticationMethod::OneTimeCode);
    reauthenticate(&provider, &headers, &methods, session.signed_in.authenticated_at).await?;
    notify(&provider, &account.email, FactorChange::AuthenticatorAdded);
    match is_first {
        true => {
            end_other_sessions(&provider, &session).await?;
            email_code::use_up_proof(&provider, &session).await?;
            let added = Some("Authenticator app added.");
            recovery::show_codes(&provider, account.email.as_str(), added, &codes, &return_to)
        }
        false => Ok(to_security(SecurityNotice::AuthenticatorAdded)),
    }
}

pub(super) async fn remove(
    State(provider): State<Arc<Provider>>,
    headers: HeaderMap,
    PostedForm(ConfirmedFields { confirmed }): PostedForm<ConfirmedFields>,
) -> Result<Response, ErrorPage> {
    let Some(session) = fresh_session(&provider, &headers).await? else {
        return Ok(to_confirm(&local("/security")));
    };
    let account = &session.signed_in.account;
    let must_keep_one = provider.settings.requires_second_factor();
    let agreed = confirmed.clone();
    let is_confirmed = Box::new(move |count| agreed.is(count));
    let factors = &provider.store.second_factors;
    let removed = factors.remove_totp(&account.subject, must_keep_one, is_confirmed).await;
    match removed.map_err(store_error_page)? {
        RemoveFactorOutcome::Removed => {
            notify(&provider, &account.email, FactorChange::AuthenticatorRemoved);
            end_other_sessions(&provider, &session).await?;
            Ok(to_security(SecurityNotice::AuthenticatorRemoved))
        }
        RemoveFactorOutcome::NotFound => Ok(see_other("/security")),
        RemoveFactorOutcome::IsLast => Err(last_factor()),
        RemoveFactorOutcome::Unconfirmed(factors) => {
            let change = Confirmation {
                changes: vec!["Authenticator app".to_owned()],
                count: 1,
                action: "/security/authenticator/remove",
                fields: Vec::new(),
                button: "Remove authenticator app".to_owned(),
            };
            let codes = factors.recovery_codes_of_last();
            Err(ask_before_removal("Remove authenticator app?", change, codes, &confirmed))
        }
    }
}
