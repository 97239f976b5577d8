//! `POST /sign-out` ends the browser's session with the provider, in the browser and on the server. `GET /signed-out`
//! confirms it.

use crate::Provider;
use crate::signed_in::{SESSION_COOKIE, end_session, see_other};
use askama::Template;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use chancery_web::{ErrorPage, page};
use std::sync::Arc;

#[derive(Template)]
#[template(path = "signed_out.html")]
struct SignedOutPage<'a> {
    firm_name: &'a str,
}

pub(crate) async fn send(
    State(provider): State<Arc<Provider>>,
    headers: HeaderMap,
) -> Result<Response, ErrorPage> {
    end_session(&provider, &headers).await?;
    let mut response = see_other("/signed-out");
    if let Some(cookie) = SESSION_COOKIE.expire() {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    Ok(response)
}

pub(crate) async fn show(State(provider): State<Arc<Provider>>) -> Result<Response, ErrorPage> {
    page(StatusCode::OK, &SignedOutPage { firm_name: &provider.settings.firm_name })
}
