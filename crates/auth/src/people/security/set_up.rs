//! `GET /security/set-up`: where a person without a second factor goes if the firm requires one.

use super::super::form::ReturnToParam;
use super::browser_session;
use crate::Provider;
use crate::signed_in::{see_other, to_sign_in};
use askama::Template;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use chancery_domain::LocalPath;
use chancery_web::{ErrorPage, page};
use std::sync::Arc;

#[derive(Template)]
#[template(path = "second_factor_set_up.html")]
struct SetUpPage<'a> {
    firm_name: &'a str,
    email: &'a str,
    return_to: &'a LocalPath,
    has_passkeys_here: bool,
}

pub(super) async fn show(
    State(provider): State<Arc<Provider>>,
    ReturnToParam(return_to): ReturnToParam,
    headers: HeaderMap,
) -> Result<Response, ErrorPage> {
    // Also if the session was started before the factor was added: signing in asks for it.
    let Some(session) = browser_session(&provider, &headers).await? else {
        return Ok(to_sign_in(&return_to));
    };
    if !session.signed_in.lacks_required_factor(&provider) {
        return Ok(see_other(return_to.as_str()));
    }
    let template = SetUpPage {
        firm_name: &provider.settings.firm_name,
        email: session.signed_in.account.email.as_str(),
        return_to: &return_to,
        has_passkeys_here: provider.passkeys.is_some(),
    };
    page(StatusCode::OK, &template)
}
