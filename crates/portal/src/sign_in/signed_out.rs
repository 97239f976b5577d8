//! `GET /signed-out`: says which sessions have ended. The provider returns here with the `state` of the sign-out; only
//! then has it ended its own session. The page's link to the provider has a `state` too.

use crate::error::PageError;
use crate::sign_in::session::MaybeSignedIn;
use crate::sign_in::sign_out_cookies::{ASK_AGAIN_COOKIE, STATE_COOKIE, STATE_TTL, with_cookies};
use crate::state::Portal;
use askama::Template;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::SecretToken;
use chancery_web::{CookieLookup, ErrorPage, find_cookie, page};
use std::sync::Arc;

#[derive(Template)]
#[template(path = "sign_in/signed_out.html")]
struct SignedOutPage<'a> {
    firm_name: &'a str,
    provider_host: String,
    /// Whether the provider has ended its session, too.
    is_signed_out_there: bool,
    /// The provider's sign-out URL, if it has one.
    provider_sign_out: Option<String>,
}

pub(crate) async fn show(
    State(portal): State<Arc<Portal>>,
    MaybeSignedIn(signed_in): MaybeSignedIn,
    headers: HeaderMap,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response, PageError> {
    if signed_in.is_some() {
        return Ok(Redirect::to("/clients").into_response());
    }
    let is_signed_out_there = is_expected_return(&headers, &query);
    // The same one as long as it is valid: a sign-out may be under way in another tab.
    let state = match find_cookie(&headers, STATE_COOKIE.name) {
        CookieLookup::One(sent) => SecretToken::parse(sent),
        CookieLookup::None | CookieLookup::Multiple => None,
    };
    let state = state.unwrap_or_else(|| SecretToken::generate(portal.randomness.as_ref()));
    let provider_sign_out = portal.identity.end_session_url(Some(state.reveal()));
    let state = match is_signed_out_there || provider_sign_out.is_none() {
        true => None,
        false => STATE_COOKIE.set(state.reveal(), Some(STATE_TTL)),
    };
    let shown = SignedOutPage {
        firm_name: &portal.settings.firm_name,
        provider_host: portal.settings.identity.host(),
        is_signed_out_there,
        provider_sign_out,
    };
    let asked = is_signed_out_there.then(|| ASK_AGAIN_COOKIE.expire()).flatten();
    Ok(with_cookies(page(StatusCode::OK, &shown)?, asked.into_iter().chain(state)))
}

/// Whether the provider returns from a sign-out of this browser. Anyone can link to this page.
fn is_expected_return(headers: &HeaderMap, query: &[(String, String)]) -> bool {
    let mut states = query.iter().filter(|(name, _)| name == "state").map(|(_, value)| value.as_str());
    match (find_cookie(headers, STATE_COOKIE.name), states.next(), states.next()) {
        (CookieLookup::One(expected), Some(state), None) => expected == state,
        _ => false,
    }
}

/// A page that goes on to the provider by itself. Its link is for browsers that do not.
pub(crate) fn leave_for(portal: &Portal, url: &str) -> Result<Response, ErrorPage> {
    let shown = SignedOutPage {
        firm_name: &portal.settings.firm_name,
        provider_host: portal.settings.identity.host(),
        is_signed_out_there: false,
        provider_sign_out: Some(url.to_owned()),
    };
    let refresh = HeaderValue::from_str(&format!("0; url={url}"))
        .map_err(|_| ErrorPage::internal("the provider's address does not fit in a header"))?;
    let mut response = page(StatusCode::OK, &shown)?;
    response.headers_mut().insert(header::REFRESH, refresh);
    Ok(response)
}
