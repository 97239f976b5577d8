//! `POST /auth/sign-out` ends the session on the server and in the browser. The next page warns that the identity provider may
//! still have a session, which would let the next person in without asking.

use crate::error::PageError;
use crate::sign_in::session::MaybeSignedIn;
use crate::sign_in::session_cookie::SESSION_COOKIE;
use crate::sign_in::visitor::Visitor;
use crate::state::Portal;
use askama::Template;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use chancery_web::page;
use std::sync::Arc;

/// Succeeds even if the browser's session has already ended.
pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    MaybeSignedIn(signed_in): MaybeSignedIn,
    visitor: Visitor,
) -> Result<Response, PageError> {
    if let Some(signed_in) = signed_in {
        let origin = visitor.origin(portal.clock.now());
        portal.store.sessions.end_session(signed_in.person.id, signed_in.session.id, &origin).await?;
    }
    Ok(redirect_to_signed_out())
}

/// For a browser whose session has ended.
pub(crate) fn redirect_to_signed_out() -> Response {
    let mut response = Redirect::to("/signed-out").into_response();
    response.headers_mut().extend(SESSION_COOKIE.expire().map(|cookie| (header::SET_COOKIE, cookie)));
    response
}

#[derive(Template)]
#[template(path = "sign_in/signed_out.html")]
struct SignedOutPage<'a> {
    firm_name: &'a str,
    provider_host: String,
    /// The provider's sign-out URL, if it has one.
    provider_sign_out: Option<String>,
}

pub(crate) async fn show_signed_out(
    State(portal): State<Arc<Portal>>,
    MaybeSignedIn(signed_in): MaybeSignedIn,
) -> Result<Response, PageError> {
    if signed_in.is_some() {
        return Ok(Redirect::to("/clients").into_response());
    }
    let signed_out = SignedOutPage {
        firm_name: &portal.settings.firm_name,
        provider_host: portal.settings.identity.host(),
        provider_sign_out: portal.end_session_url(),
    };
    Ok(page(StatusCode::OK, &signed_out)?)
}
