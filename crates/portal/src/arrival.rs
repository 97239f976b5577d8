//! Somebody whom the identity provider knows arrives: the person is made or found, and the session begins.

use crate::state::Portal;
use axum::extract::{ConnectInfo, FromRequestParts};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use chancery_domain::{EmailAddress, Identity, LocalPath, Role, SecretToken};
use chancery_pages::{Cookie, Refusal};
use chancery_store::{Arrival, NewSession};
use std::net::SocketAddr;

const SESSION_COOKIE: Cookie = Cookie { name: "session", path: "/" };

/// What the identity provider has proved.
pub(crate) struct Proven {
    pub(crate) identity: Identity,
    /// The claim, if it is a string.
    pub(crate) email: Option<String>,
    pub(crate) is_email_verified: bool,
    pub(crate) return_to: LocalPath,
}

/// Who asks, as far as the connection and the browser say.
pub(crate) struct Visitor {
    /// An IP address.
    pub(crate) place: String,
    pub(crate) browser: String,
}

impl<S: Send + Sync> FromRequestParts<S> for Visitor {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>();
        let place = peer.map_or_else(String::new, |ConnectInfo(peer)| peer.ip().to_string());
        Ok(Self { place, browser: String::new() })
    }
}

pub(crate) async fn arrive(portal: &Portal, proven: Proven, visitor: &Visitor) -> Result<Response, Refusal> {
    let address = proven.email.and_then(|email| email.parse::<EmailAddress>().ok());
    let address = address.filter(|address| address.is_at(&portal.settings.company_domain));
    let Some(email) = address.filter(|_| proven.is_email_verified) else {
        return Err(Refusal::new(
            StatusCode::FORBIDDEN,
            "not_of_the_firm",
            "You cannot sign in here",
            "This portal is for people with a proved address of the firm.",
        )
        .logged("no proved address of the firm"));
    };
    let unavailable = |error: &dyn std::fmt::Display| Refusal::unavailable(error.to_string());
    let at = portal.clock.now();
    let arrival = Arrival { identity: proven.identity, email, role: Role::Consultant, at };
    let person = portal.store.arrive(arrival).await.map_err(|error| unavailable(&error))?;
    let token = SecretToken::generate(portal.randomness.as_ref());
    let new = NewSession {
        token: token.hash(),
        person: person.id,
        at,
        place: visitor.place.clone(),
        browser: visitor.browser.clone(),
    };
    portal.store.start_session(new).await.map_err(|error| unavailable(&error))?;
    let location = HeaderValue::from_str(proven.return_to.as_str());
    let location = location.map_err(|error| Refusal::internal(error.to_string()))?;
    let cookie = SESSION_COOKIE.set(token.reveal(), None);
    let cookie = cookie.ok_or_else(|| Refusal::internal("a token that is no cookie"))?;
    Ok((StatusCode::SEE_OTHER, [(header::LOCATION, location), (header::SET_COOKIE, cookie)]).into_response())
}
