//! Renaming and removing passkeys.

use super::super::factor_emails::{FactorChange, notify};
use super::super::form::{Confirmed, PostedForm, Problems};
use super::super::second_factor::account_factors;
use super::notice::{SecurityNotice, to_security};
use super::{ask_before_removal, end_other_sessions, fresh_session, last_factor, local, to_confirm};
use crate::limits::MAX_PASSKEY_NAME_CHARS;
use crate::{Provider, store_error_page};
use askama::Template;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chancery_domain::{LineMode, TextBounds};
use chancery_store::RemoveFactorOutcome;
use chancery_web::{Confirmation, ErrorPage, page, text_error_message};
use serde::Deserialize;
use std::sync::Arc;

const NAME: TextBounds =
    TextBounds { what: "the name", min_chars: 1, max_chars: MAX_PASSKEY_NAME_CHARS, lines: LineMode::Single };

#[derive(Template)]
#[template(path = "passkey_rename.html")]
struct RenamePage<'a> {
    firm_name: &'a str,
    problems: Problems,
    id: &'a str,
    name: &'a str,
}

#[derive(Deserialize)]
pub(super) struct IdQuery {
    #[serde(default)]
    id: String,
}

#[derive(Deserialize)]
pub(super) struct RenameFields {
    #[serde(default)]
    id: String,
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
pub(super) struct RemoveFields {
    #[serde(default)]
    id: String,
    #[serde(default)]
    confirmed: Confirmed,
}

/// A valid name for a passkey, or what to do about it.
pub(super) fn passkey_name(typed: &str) -> Result<String, String> {
    NAME.take(typed).map_err(|error| text_error_message(&error, "Enter a name for the passkey"))
}

fn credential_id(id: &str) -> Result<Vec<u8>, ErrorPage> {
    URL_SAFE_NO_PAD.decode(id).map_err(|_| not_found())
}

fn not_found() -> ErrorPage {
    ErrorPage::missing("Passkey not found", "Your account has no such passkey. It may have been removed.")
        .next_link("/security", "Back to security")
}

pub(super) async fn show_rename(
    State(provider): State<Arc<Provider>>,
    Query(query): Query<IdQuery>,
    headers: HeaderMap,
) -> Result<Response, ErrorPage> {
    let wanted = credential_id(&query.id)?;
    // Decoded and encoded again, it is plain base64url.
    let id = URL_SAFE_NO_PAD.encode(&wanted);
    let Some(session) = fresh_session(&provider, &headers).await? else {
        return Ok(to_confirm(&local(&format!("/security/passkeys/rename?id={id}"))));
    };
    let factors = account_factors(&provider, &session.signed_in.account).await?;
    let passkey = factors.passkeys.iter().find(|passkey| passkey.credential_id == wanted);
    let name = passkey.map(|passkey| passkey.name.as_str()).ok_or_else(not_found)?;
    let firm_name = &provider.settings.firm_name;
    page(StatusCode::OK, &RenamePage { firm_name, problems: Problems::default(), id: &id, name })
}

pub(super) async fn rename(
    State(provider): State<Arc<Provider>>,
    headers: HeaderMap,
    PostedForm(fields): PostedForm<RenameFields>,
) -> Result<Response, ErrorPage> {
    let wanted = credential_id(&fields.id)?;
    let Some(session) = fresh_session(&provider, &headers).await? else {
        return Ok(to_confirm(&local("/security")));
    };
    let name = match passkey_name(&fields.name) {
        Ok(name) => name,
        Err(text) => {
            let template = RenamePage {
                firm_name: &provider.settings.firm_name,
                problems: Problems::one("name", text),
                id: &fields.id,
                name: fields.name.trim(),
            };
            return page(StatusCode::UNPROCESSABLE_ENTITY, &template);
        }
    };
    let account = &session.signed_in.account;
    let renamed = provider.store.second_factors.rename_passkey(&account.subject, &wanted, &name).await;
    match renamed.map_err(store_error_page)? {
        true => {
            notify(&provider, &account.email, FactorChange::PasskeyRenamed);
            Ok(to_security(SecurityNotice::PasskeyRenamed))
        }
        false => Err(not_found()),
    }
}

pub(super) async fn remove(
    State(provider): State<Arc<Provider>>,
    headers: HeaderMap,
    PostedForm(fields): PostedForm<RemoveFields>,
) -> Result<Response, ErrorPage> {
    let wanted = credential_id(&fields.id)?;
    let Some(session) = fresh_session(&provider, &headers).await? else {
        return Ok(to_confirm(&local("/security")));
    };
    let account = &session.signed_in.account;
    let must_keep_one = provider.settings.requires_second_factor();
    let agreed = fields.confirmed.clone();
    let is_confirmed = Box::new(move |count| agreed.is(count));
    let factors = &provider.store.second_factors;
    let removed = factors.remove_passkey(&account.subject, &wanted, must_keep_one, is_confirmed).await;
    match removed.map_err(store_error_page)? {
        RemoveFactorOutcome::Removed => {
            notify(&provider, &account.email, FactorChange::PasskeyRemoved);
            end_other_sessions(&provider, &session).await?;
            Ok(to_security(SecurityNotice::PasskeyRemoved))
        }
        RemoveFactorOutcome::NotFound => Err(not_found()),
        RemoveFactorOutcome::IsLast => Err(last_factor()),
        RemoveFactorOutcome::Unconfirmed(factors) => {
            let passkey = factors.passkeys.iter().find(|passkey| passkey.credential_id == wanted);
            let name = passkey.map_or("", |passkey| passkey.name.as_str());
            let change = Confirmation {
                changes: vec![format!("Passkey \u{201c}{name}\u{201d}")],
                count: 1,
                action: "/security/passkeys/remove",
                fields: vec![("id", URL_SAFE_NO_PAD.encode(&wanted))],
                button: "Remove passkey".to_owned(),
            };
            let codes = factors.recovery_codes_of_last();
            Err(ask_before_removal("Remove passkey?", change, codes, &fields.confirmed))
        }
    }
}
