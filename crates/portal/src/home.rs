//! `GET /`: a sign-in button for signed-out users; signed-in users are redirected.

use crate::error::PageError;
use crate::sign_in::session::MaybeSignedIn;
use crate::state::Portal;
use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_web::page;
use std::sync::Arc;

#[derive(Template)]
#[template(path = "home.html")]
struct HomePage<'a> {
    firm_name: &'a str,
    provider_host: String,
    company_domain: String,
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    MaybeSignedIn(signed_in): MaybeSignedIn,
) -> Result<Response, PageError> {
    if signed_in.is_some() {
        return Ok(Redirect::to("/clients").into_response());
    }
    let settings = &portal.settings;
    let home = HomePage {
        firm_name: &settings.firm_name,
        provider_host: settings.identity.host(),
        company_domain: settings.company_domain.to_string(),
    };
    Ok(page(StatusCode::OK, &home)?)
}
