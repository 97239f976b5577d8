//! `GET /`: says what this site is and who is signed in, with the applications that the user has allowed to receive data.
//! `POST /consents/withdraw` withdraws such a consent: the application has to ask again.

use super::form::PostedForm;
use crate::signed_in::{see_other, signed_in, to_sign_in};
use crate::{Client, Provider, store_error_page};
use askama::Template;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use chancery_web::{ErrorPage, page};
use serde::Deserialize;
use std::sync::Arc;

#[derive(Template)]
#[template(path = "home.html")]
struct HomePage<'a> {
    firm_name: &'a str,
    email: Option<&'a str>,
    allowed_clients: Vec<&'a Client>,
}

#[derive(Deserialize)]
pub(crate) struct WithdrawalFields {
    #[serde(default)]
    client_id: String,
}

pub(crate) async fn show(
    State(provider): State<Arc<Provider>>,
    headers: HeaderMap,
) -> Result<Response, ErrorPage> {
    let signed_in = signed_in(&provider, &headers).await?;
    let allowed = match &signed_in {
        Some(signed_in) => provider.store.grants.consented_clients(&signed_in.account.subject).await,
        None => Ok(Vec::new()),
    };
    let allowed = allowed.map_err(|error| store_error_page(&error))?;
    let home_page = HomePage {
        firm_name: &provider.settings.firm_name,
        email: signed_in.as_ref().map(|signed_in| signed_in.account.email.as_str()),
        allowed_clients: allowed.iter().filter_map(|id| provider.settings.client(id)).collect(),
    };
    page(StatusCode::OK, &home_page)
}

pub(crate) async fn withdraw_consent(
    State(provider): State<Arc<Provider>>,
    headers: HeaderMap,
    PostedForm(fields): PostedForm<WithdrawalFields>,
) -> Result<Response, ErrorPage> {
    let Some(signed_in) = signed_in(&provider, &headers).await? else {
        return Ok(to_sign_in(&super::form::local_path("/")));
    };
    let subject = &signed_in.account.subject;
    let withdrawn = provider.store.grants.revoke_consents(subject, &fields.client_id).await;
    withdrawn.map_err(|error| store_error_page(&error))?;
    Ok(see_other("/"))
}
