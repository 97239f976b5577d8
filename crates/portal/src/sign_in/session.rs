//! The session in a browser's cookie: an opaque token of 256 random bits, of which the store keeps a hash. Whether it is
//! alive, whose it is and what that person's role is, is asked anew for every request.

use crate::authz::capabilities::Capabilities;
use crate::error::PageError;
use crate::sign_in::links::sign_in_url;
use crate::sign_in::session_cookie::{SESSION_COOKIE, sent_session};
use crate::sign_in::visitor::{self, Visitor};
use crate::state::Portal;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{Asker, LocalPath, Person, PersonId, RequestId, SecretToken, Session, TokenHash};
use chancery_policy::Asking;
use chancery_store::NewSession;
use chancery_web::ErrorPage;
use serde_json::json;
use std::sync::{Arc, OnceLock};

/// A handler that takes this is for people who are signed in. Anybody else gets on to signing in, or a 401.
#[derive(Debug)]
pub(crate) struct SignedIn {
    pub(crate) session: Session,
    pub(crate) person: Person,
    pub(crate) request_id: RequestId,
    pub(crate) token: TokenHash,
    capabilities: OnceLock<Capabilities>,
}

impl FromRequestParts<Arc<Portal>> for SignedIn {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, portal: &Arc<Portal>) -> Result<Self, Response> {
        match MaybeSignedIn::from_request_parts(parts, portal).await {
            Ok(MaybeSignedIn(Some(signed_in))) => Ok(signed_in),
            Ok(MaybeSignedIn(None)) => Err(not_signed_in(parts)),
            Err(error) => Err(error.into_response()),
        }
    }
}

impl SignedIn {
    pub(crate) fn new(found: chancery_store::SignedIn, request_id: RequestId, token: TokenHash) -> Self {
        let chancery_store::SignedIn { session, person } = found;
        Self { session, person, request_id, token, capabilities: OnceLock::new() }
    }

    pub(crate) fn principal(&self) -> Asker {
        Asker::Person { id: self.person.id, role: self.person.role }
    }

    /// For a decision of this request.
    pub(crate) fn asking(&self, portal: &Portal) -> Asking {
        Asking { by: self.principal(), at: portal.clock.now(), request_id: self.request_id.clone() }
    }

    /// What the pages of this request may offer; the policy is asked when the first page wants to know.
    pub(crate) fn capabilities(&self, portal: &Portal) -> Capabilities {
        *self.capabilities.get_or_init(|| Capabilities::of(&portal.policy, self.principal()))
    }

    /// The same person as they are now, for what takes long. A session that has ended meanwhile is refused.
    pub(crate) async fn again(self, portal: &Portal) -> Result<Self, PageError> {
        let Self { session, request_id, token, .. } = self;
        let times = portal.settings.session_times;
        let found = portal.store.sessions.signed_in(token, &session.place, times, portal.clock.now()).await?;
        let found = found.ok_or_else(|| signed_out("Your session ended before this was done."))?;
        Ok(Self::new(found, request_id, token))
    }
}

/// For handlers that are for everybody.
pub(crate) struct MaybeSignedIn(pub(crate) Option<SignedIn>);

impl FromRequestParts<Arc<Portal>> for MaybeSignedIn {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, portal: &Arc<Portal>) -> Result<Self, PageError> {
        let Some(token) = sent_session(&parts.headers)? else { return Ok(Self(None)) };
        let (place, times) = (visitor::place(parts), portal.settings.session_times);
        let found = portal.store.sessions.signed_in(token, &place, times, portal.clock.now()).await?;
        let Some(found) = found else { return Ok(Self(None)) };
        let request_id = parts.extensions.get::<RequestId>().cloned();
        let request_id = request_id.ok_or_else(|| ErrorPage::internal("a request without an id"))?;
        Ok(Self(Some(SignedIn::new(found, request_id, token))))
    }
}

/// Begins a session with a new token, and ends the one that the browser had. Gives the cookie.
pub(crate) async fn start(
    portal: &Portal,
    person: PersonId,
    visitor: &Visitor,
) -> Result<HeaderValue, PageError> {
    let token = SecretToken::generate(portal.randomness.as_ref());
    let new = NewSession {
        token: token.hash(),
        person,
        origin: visitor.origin(portal.clock.now()),
        place: visitor.place.clone(),
        browser: visitor.browser.clone(),
        replaces: visitor.session,
    };
    portal.store.sessions.start_session(new).await?;
    let cookie = SESSION_COOKIE.set(token.reveal(), None);
    Ok(cookie.ok_or_else(|| ErrorPage::internal("a session's token cannot be put into a cookie"))?)
}

/// A browser goes on to signing in, and comes back if it was only looking; a program is told.
fn not_signed_in(parts: &Parts) -> Response {
    let asked = parts.uri.path_and_query().map(|path| path.as_str()).and_then(LocalPath::parse);
    let asked = asked.filter(|_| matches!(parts.method, Method::GET | Method::HEAD));
    if parts.headers.contains_key("hx-request") {
        // A script asks for a part of a page. The whole page has to go, for signing in is another site's.
        let url = asked.as_ref().map_or_else(|| "/".to_owned(), sign_in_url);
        return (StatusCode::UNAUTHORIZED, [("hx-redirect", url)]).into_response();
    }
    let accept = parts.headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    if !accept.is_some_and(|accept| accept.contains("text/html")) {
        let reason = "Sign in first: open the portal in a browser.";
        let body = json!({"error": {"code": "not_signed_in", "reason": reason}}).to_string();
        let json = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        return (StatusCode::UNAUTHORIZED, json, body).into_response();
    }
    match asked {
        Some(path) => Redirect::to(&sign_in_url(&path)).into_response(),
        None => signed_out_meanwhile(parts).into_response(),
    }
}

/// For whoever sends a form after the session has ended. The page gives them back what they typed.
fn signed_out_meanwhile(parts: &Parts) -> ErrorPage {
    let text = |name| parts.headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let page = text(header::REFERER).and_then(|page| page.split_once("://")).map(|(_, page)| page);
    // The page that the form stands on, if it is one of ours.
    let page = page.and_then(|page| page.strip_prefix(text(header::HOST)?)).and_then(LocalPath::parse);
    let way_on = page.map_or_else(|| "/".to_owned(), |page| sign_in_url(&page));
    signed_out("Your session ended before this was sent, so nothing was saved.").next_link(way_on, "Sign in")
}

fn signed_out(reason: &str) -> ErrorPage {
    ErrorPage::new(StatusCode::UNAUTHORIZED, "not_signed_in", "You are signed out", reason)
        .advice("Sign in again, go back to the page, and do it once more.")
}
