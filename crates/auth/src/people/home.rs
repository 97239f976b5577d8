//! `GET /`: says what this site is and who is signed in.

use crate::Provider;
use crate::signed_in::signed_in;
use askama::Template;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use chancery_web::{ErrorPage, page};
use std::sync::Arc;

#[derive(Template)]
#[template(path = "home.html")]
struct HomePage<'a> {
    firm_name: &'a str,
    email: Option<&'a str>,
}

pub(crate) async fn show(
    State(provider): State<Arc<Provider>>,
    headers: HeaderMap,
) -> Result<Response, ErrorPage> {
    let signed_in = signed_in(&provider, &headers).await?;
    let email = signed_in.as_ref().map(|signed_in| signed_in.account.email.as_str());
    page(StatusCode::OK, &HomePage { firm_name: &provider.settings.firm_name, email })
}
