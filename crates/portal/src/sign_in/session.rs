//! The session in a browser's cookie: an opaque token of 256 random bits, of which the store keeps a hash. Whether it is
//! alive, whose it is and what that person's role is, is asked anew for every request.

use crate::failure::refused_by_store;
use crate::sign_in::begin::sign_in_url;
use crate::sign_in::visitor::{self, Visitor};
use crate::state::Portal;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{LocalPath, Person, PersonId, RequestId, SecretToken, Session, TokenHash};
use chancery_store::NewSession;
use chancery_web::{Cookie, Refusal, SentCookie, sent_cookie};
use serde_json::json;
use std::sync::Arc;

/// It goes with the browser; how long it works, the store knows.
pub(crate) const SESSION_COOKIE: Cookie = Cookie { name: "session", path: "/" };

/// A handler that takes this is for people who are signed in. Anybody else gets on to signing in, or a 401.
#[derive(Debug)]
pub(crate) struct SignedIn {
    pub(crate) session: Session,
    pub(crate) person: Person,
    pub(crate) request_id: RequestId,
    pub(crate) token: TokenHash,
}

impl FromRequestParts<Arc<Portal>> for SignedIn {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, portal: &Arc<Portal>) -> Result<Self, Response> {
        match MaybeSignedIn::from_request_parts(parts, portal).await {
            Ok(MaybeSignedIn(Some(signed_in))) => Ok(signed_in),
            Ok(MaybeSignedIn(None)) => Err(not_signed_in(parts)),
            Err(refusal) => Err(refusal.into_response()),
        }
    }
}

impl SignedIn {
    /// The same person as they are now, for what takes long. A session that has ended meanwhile is refused.
    pub(crate) async fn again(self, portal: &Portal) -> Result<Self, Refusal> {
        let Self { session, request_id, token, .. } = self;
        let times = portal.settings.session_times;
        let found = portal.store.signed_in(token, &session.place, times, portal.clock.now()).await;
        let found = found.map_err(|error| refused_by_store(&error))?;
        let found = found.ok_or_else(|| signed_out("Your session ended before this was done."))?;
        Ok(Self { session: found.session, person: found.person, request_id, token })
    }
}

/// For handlers that are for everybody.
pub(crate) struct MaybeSignedIn(pub(crate) Option<SignedIn>);

impl FromRequestParts<Arc<Portal>> for MaybeSignedIn {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, portal: &Arc<Portal>) -> Result<Self, Refusal> {
        refuse_two(&parts.headers)?;
        let Some(token) = sent_token(&parts.headers) else { return Ok(Self(None)) };
        let (place, times) = (visitor::place(parts), portal.settings.session_times);
        let found = portal.store.signed_in(token, &place, times, portal.clock.now()).await;
        let found = found.map_err(|error| refused_by_store(&error))?;
        let Some(found) = found else { return Ok(Self(None)) };
        let request_id = parts.extensions.get::<RequestId>().cloned();
        let request_id = request_id.ok_or_else(|| Refusal::internal("a request without an id"))?;
        Ok(Self(Some(SignedIn { session: found.session, person: found.person, request_id, token })))
    }
}

/// Somebody may have planted one of two.
pub(crate) fn refuse_two(headers: &HeaderMap) -> Result<(), Refusal> {
    match sent_cookie(headers, SESSION_COOKIE.name) {
        SentCookie::Several => Err(two_sessions()),
        SentCookie::None | SentCookie::One(_) => Ok(()),
    }
}

/// The session that the browser says is its own, if it says so once.
pub(crate) fn sent_token(headers: &HeaderMap) -> Option<TokenHash> {
    match sent_cookie(headers, SESSION_COOKIE.name) {
        SentCookie::One(value) => SecretToken::parse(value).map(|token| token.hash()),
        SentCookie::None | SentCookie::Several => None,
    }
}

/// Begins a session with a new token, and ends the one that the browser had. Gives the cookie.
pub(crate) async fn start(
    portal: &Portal,
    person: PersonId,
    visitor: &Visitor,
) -> Result<HeaderValue, Refusal> {
    let token = SecretToken::generate(portal.randomness.as_ref());
    let new = NewSession {
        token: token.hash(),
        person,
        origin: visitor.origin(portal.clock.now()),
        place: visitor.place.clone(),
        browser: visitor.browser.clone(),
        replaces: visitor.session,
    };
    portal.store.start_session(new).await.map_err(|error| refused_by_store(&error))?;
    let cookie = SESSION_COOKIE.set(token.reveal(), None);
    cookie.ok_or_else(|| Refusal::internal("a session's token cannot be put into a cookie"))
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
fn signed_out_meanwhile(parts: &Parts) -> Refusal {
    let text = |name| parts.headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let page = text(header::REFERER).and_then(|page| page.split_once("://")).map(|(_, page)| page);
    // The page that the form stands on, if it is one of ours.
    let page = page.and_then(|page| page.strip_prefix(text(header::HOST)?)).and_then(LocalPath::parse);
    let way_on = page.map_or_else(|| "/".to_owned(), |page| sign_in_url(&page));
    signed_out("Your session ended before this was sent, so nothing was saved.").way_on(way_on, "Sign in")
}

fn signed_out(reason: &str) -> Refusal {
    Refusal::new(StatusCode::UNAUTHORIZED, "not_signed_in", "You are signed out", reason)
        .advice("Sign in again, go back to the page, and do it once more.")
}

fn two_sessions() -> Refusal {
    Refusal::new(
        StatusCode::BAD_REQUEST,
        "two_sessions",
        "Your browser sent two sessions",
        "It has two cookies named “session” for this site, and one of them is not ours. We cannot tell which, so we took \
         neither. Nothing was changed.",
    )
    .advice("Sign in again. If this page comes back, remove this site’s cookies in the browser’s settings first.")
    .way_on("/", "Go to sign-in")
    .with_cookie(SESSION_COOKIE.take_back())
    .logged("two cookies named session in one request")
}
