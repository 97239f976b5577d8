//! `GET /security`: passkeys, authenticator app, recovery codes and password.

use super::super::second_factor::account_factors;
use super::notice::{delete_notice, notice_text};
use super::{browser_session, local};
use crate::Provider;
use crate::signed_in::to_sign_in;
use askama::Template;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chancery_domain::Day;
use chancery_store::StoredPasskey;
use chancery_web::{ErrorPage, page};
use std::sync::Arc;

#[derive(Template)]
#[template(path = "security.html")]
struct SecurityPage<'a> {
    firm_name: &'a str,
    email: &'a str,
    notice: Option<&'static str>,
    passkeys: Vec<PasskeyRow>,
    /// False on an IP address.
    has_passkeys_here: bool,
    totp_added_on: Option<String>,
    recovery_codes: u64,
    has_factor: bool,
    is_required: bool,
}

struct PasskeyRow {
    /// Base64url of the credential ID.
    id: String,
    name: String,
    added_on: String,
    last_used_on: Option<String>,
}

impl PasskeyRow {
    fn new(passkey: &StoredPasskey) -> Self {
        Self {
            id: URL_SAFE_NO_PAD.encode(&passkey.credential_id),
            name: passkey.name.clone(),
            added_on: Day::containing(passkey.created_at).to_string(),
            last_used_on: passkey.last_used_at.map(|at| Day::containing(at).to_string()),
        }
    }
}

pub(super) async fn show(
    State(provider): State<Arc<Provider>>,
    headers: HeaderMap,
) -> Result<Response, ErrorPage> {
    let Some(session) = browser_session(&provider, &headers).await? else {
        return Ok(to_sign_in(&local("/security")));
    };
    let account = &session.signed_in.account;
    let factors = account_factors(&provider, account).await?;
    let notice = notice_text(&headers);
    let template = SecurityPage {
        firm_name: &provider.settings.firm_name,
        email: account.email.as_str(),
        notice,
        passkeys: factors.passkeys.iter().map(PasskeyRow::new).collect(),
        has_passkeys_here: provider.passkeys.is_some(),
        totp_added_on: factors.totp_created_at.map(|at| Day::containing(at).to_string()),
        recovery_codes: factors.recovery_codes,
        has_factor: !factors.is_empty(),
        is_required: provider.settings.requires_second_factor(),
    };
    let mut response = page(StatusCode::OK, &template)?;
    if notice.is_some() {
        delete_notice(&mut response);
    }
    Ok(response)
}
