//! `/logout`: a client asks to end the session here too (OpenID Connect RP-Initiated Logout). The user is asked first,
//! unless the client presents an ID token of the same user: anyone could link to this URL. An expired token counts, as the
//! standard wants it: users sign out long after they signed in.

use super::authorization_request::see_other;
use super::authorize::{invalid_form, redirect_post_to_get};
use super::id_token::IdTokenHint;
use super::jwks::key_error_page;
use super::parameters::{ParameterError, Parameters, with_parameters};
use super::signing_keys::key_ring;
use crate::signed_in::{SESSION_COOKIE, end_session, signed_in};
use crate::{Client, Provider, store_error_page};
use askama::Template;
use axum::extract::{RawQuery, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use chancery_web::{ErrorPage, page};
use std::sync::Arc;

#[derive(Template)]
#[template(path = "logout.html")]
struct LogoutPage<'a> {
    firm_name: &'a str,
    email: (&'a str, &'a str),
    client_name: Option<&'a str>,
    fields: Vec<(&'a str, &'a str)>,
}

/// A validated logout request.
struct LogoutRequest<'a> {
    client: Option<&'a Client>,
    hint: Option<IdTokenHint>,
    return_to: Option<ReturnTo<'a>>,
}

struct ReturnTo<'a> {
    client_id: &'a str,
    uri: &'a str,
    state: Option<&'a str>,
}

pub(crate) async fn show(
    State(provider): State<Arc<Provider>>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<Response, ErrorPage> {
    let parameters = Parameters::parse(query.as_deref().unwrap_or_default()).map_err(invalid_form)?;
    let request = read(&provider, &parameters).await?;
    let hinted = request.hint.as_ref();
    let signed_in = match signed_in(&provider, &headers).await? {
        Some(signed_in) if hinted.is_none_or(|hint| hint.subject != signed_in.account.subject) => signed_in,
        _ => {
            end_hinted_session(&provider, hinted).await?;
            return sign_out_and_redirect(&provider, &headers, request.return_to.as_ref()).await;
        }
    };
    let fields = request.return_to.as_ref().map(|return_to| {
        let needed = [("client_id", return_to.client_id), ("post_logout_redirect_uri", return_to.uri)];
        needed.into_iter().chain(return_to.state.map(|state| ("state", state))).collect()
    });
    let logout_page = LogoutPage {
        firm_name: &provider.settings.firm_name,
        email: signed_in.account.email.as_str().split_once('@').unwrap_or_default(),
        client_name: request.client.map(|client| client.name.as_str()),
        fields: fields.unwrap_or_default(),
    };
    page(StatusCode::OK, &logout_page)
}

/// Clients may also POST the request.
pub(crate) async fn redirect_post_to_get_handler(request: Request) -> Result<Response, ErrorPage> {
    redirect_post_to_get("/logout", request).await
}

/// The button of our own page. The cross-origin check prevents other pages from submitting it.
pub(crate) async fn confirm(
    State(provider): State<Arc<Provider>>,
    headers: HeaderMap,
    request: Request,
) -> Result<Response, ErrorPage> {
    let parameters = Parameters::from_form(request).await.map_err(invalid_form)?;
    let request = read(&provider, &parameters).await?;
    sign_out_and_redirect(&provider, &headers, request.return_to.as_ref()).await
}

async fn read<'a>(
    provider: &'a Provider,
    parameters: &'a Parameters,
) -> Result<LogoutRequest<'a>, ErrorPage> {
    let one = |name| parameters.one(name).map_err(|error: ParameterError| bad_request(&error.to_string()));
    let hint = match one("id_token_hint")? {
        Some(token) => {
            let keys = key_ring(provider.store.as_ref(), provider.randomness.as_ref(), provider.clock.now());
            IdTokenHint::read(token, &provider.settings.issuer, &keys.await.map_err(key_error_page)?)
        }
        None => None,
    };
    let (hinted, named) = (hint.as_ref().map(|hint| hint.client_id.as_str()), one("client_id")?);
    if let (Some(hinted), Some(named)) = (hinted, named)
        && hinted != named
    {
        return Err(bad_request("client_id does not match the ID token"));
    }
    let client = match named.or(hinted) {
        Some(id) => {
            let client = provider.settings.client(id);
            Some(client.ok_or_else(|| bad_request("unknown client_id"))?)
        }
        None => None,
    };
    let return_to = match (one("post_logout_redirect_uri")?, client) {
        (None, _) => None,
        (Some(_), None) => {
            return Err(bad_request("post_logout_redirect_uri needs a client_id or a valid id_token_hint"));
        }
        (Some(uri), Some(client)) if client.post_logout_redirect_uris.iter().any(|own| own == uri) => {
            Some(ReturnTo { client_id: &client.id, uri, state: one("state")? })
        }
        (Some(_), Some(_)) => {
            return Err(bad_request("post_logout_redirect_uri is not registered for this client"));
        }
    };
    Ok(LogoutRequest { client, hint, return_to })
}

/// Ends the session that the ID token was issued in, in case this browser no longer has its cookie.
async fn end_hinted_session(provider: &Provider, hint: Option<&IdTokenHint>) -> Result<(), ErrorPage> {
    if let Some(IdTokenHint { subject, sid: Some(sid), .. }) = hint {
        let ended = provider.store.provider_sessions.end_provider_session_by_sid(subject, sid).await;
        ended.map_err(|error| store_error_page(&error))?;
    }
    Ok(())
}

/// Ends the session and redirects.
async fn sign_out_and_redirect(
    provider: &Provider,
    headers: &HeaderMap,
    return_to: Option<&ReturnTo<'_>>,
) -> Result<Response, ErrorPage> {
    end_session(provider, headers).await?;
    let mut response = match return_to {
        Some(ReturnTo { uri, state, .. }) => {
            see_other(&with_parameters(uri, state.map(|state| ("state", state))))
        }
        None => see_other("/signed-out"),
    };
    if let Some(cookie) = SESSION_COOKIE.expire() {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    Ok(response)
}

fn bad_request(description: &str) -> ErrorPage {
    ErrorPage::new(
        StatusCode::BAD_REQUEST,
        "invalid_request",
        "Not signed out",
        format!("The application sent an invalid request: {description}."),
    )
    .advice("You can sign out from your account page.")
    .next_link("/", "Go to your account")
    .with_log_detail(format!("logout request rejected: {description}"))
}
