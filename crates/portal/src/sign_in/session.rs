//! The session in a browser's cookie: an opaque token of 256 random bits, of which the store has a hash. Its validity, its
//! person and that person's role are read again for every request.

use crate::authz::capabilities::Capabilities;
use crate::error::PageError;
use crate::request_limits::RequestDecision;
use crate::sign_in::authentication::{Authentication, UNKNOWN_TIME};
use crate::sign_in::links::sign_in_url;
use crate::sign_in::recheck::{self, Recheck};
use crate::sign_in::session_cookie::{SessionSecrets, sent_binding, sent_session};
use crate::sign_in::visitor::{self, Visitor, accepts_html};
use crate::state::Portal;
use crate::time_format::LocalTime;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{
    LocalPath, Person, PersonId, Principal, RequestId, Session, TokenHash, group_thousands,
};
use chancery_policy::AuthzRequest;
use chancery_store::NewSession;
use chancery_web::ErrorPage;
use serde_json::json;
use std::sync::{Arc, OnceLock};

/// An extractor for signed-in people. Others are redirected to sign in, or get a 401.
#[derive(Debug)]
pub(crate) struct SignedIn {
    pub(crate) session: Session,
    pub(crate) person: Person,
    pub(crate) request_id: RequestId,
    pub(crate) token: TokenHash,
    capabilities: OnceLock<Capabilities>,
}

/// Someone who took over a session can use up the person's requests. The person must still be able to end that session.
const UNLIMITED_PATHS: [&str; 2] = ["/sessions", "/sessions/end"];

impl FromRequestParts<Arc<Portal>> for SignedIn {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, portal: &Arc<Portal>) -> Result<Self, Response> {
        match MaybeSignedIn::from_request_parts(parts, portal).await {
            Ok(MaybeSignedIn(Some(signed_in))) => {
                match recheck::check(portal, signed_in.session.confirmed_at, parts) {
                    Recheck::NotNeeded if UNLIMITED_PATHS.contains(&parts.uri.path()) => Ok(signed_in),
                    Recheck::NotNeeded => {
                        count_request(portal, signed_in).await.map_err(IntoResponse::into_response)
                    }
                    Recheck::ConfirmFirst(url) => Err(Redirect::to(&url).into_response()),
                    Recheck::TooLate => Err(not_signed_in(parts)),
                }
            }
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

    pub(crate) fn principal(&self) -> Principal {
        Principal::Person { id: self.person.id, role: self.person.role }
    }

    /// For a decision of this request.
    pub(crate) fn authz_request(&self, portal: &Portal) -> AuthzRequest {
        AuthzRequest { by: self.principal(), at: portal.clock.now(), request_id: self.request_id.clone() }
    }

    /// The current time in the person's time zone, or in the firm's.
    pub(crate) fn local_time(&self, portal: &Portal) -> LocalTime {
        LocalTime::of(&self.person, &portal.settings.time_zone, portal.clock.now())
    }

    /// What the pages of this request may offer. The policy is evaluated on first use.
    pub(crate) fn capabilities(&self, portal: &Portal) -> Capabilities {
        *self.capabilities.get_or_init(|| Capabilities::of(&portal.policy, self.principal()))
    }

    /// Reads the person again, for long downloads. Fails if the session has ended, or if the person has another role: what
    /// is still to be sent was decided for the old one.
    pub(crate) async fn refresh(self, portal: &Portal) -> Result<Self, PageError> {
        let Self { session, person, request_id, token, .. } = self;
        let times = portal.settings.session_times;
        let found = portal
            .store
            .sessions
            .active_session(token, &session.ip_address, times, portal.clock.now())
            .await?;
        let found = found.ok_or_else(|| signed_out("Your session ended before this finished."))?;
        if found.person.role != person.role {
            return Err(signed_out("Your role changed before this finished.").into());
        }
        Ok(Self::new(found, request_id, token))
    }
}

/// Slows down a session that is used to copy records page by page.
async fn count_request(portal: &Portal, signed_in: SignedIn) -> Result<SignedIn, ErrorPage> {
    let limits = &portal.request_limits;
    match limits.count(signed_in.person.id, &signed_in.request_id).await {
        RequestDecision::Allowed => Ok(signed_in),
        RequestDecision::Denied { retry_after_s } => {
            let max = group_thousands(u64::from(limits.max_per_min()));
            let reason = format!("You can make {max} requests in a minute. Nothing was changed.");
            Err(ErrorPage::too_many_requests(reason, retry_after_s)
                .advice(format!("Wait {retry_after_s} s, then try again. If you did not send so many requests, end your other sessions and tell your administrator."))
                .next_link("/sessions", "Go to your sessions"))
        }
    }
}

/// For handlers that do not require a session.
pub(crate) struct MaybeSignedIn(pub(crate) Option<SignedIn>);

impl FromRequestParts<Arc<Portal>> for MaybeSignedIn {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, portal: &Arc<Portal>) -> Result<Self, PageError> {
        let Some(token) = sent_session(&parts.headers)? else { return Ok(Self(None)) };
        let (ip_address, times) = (visitor::ip_address(parts), portal.settings.session_times);
        let (sessions, now) = (&portal.store.sessions, portal.clock.now());
        let found = match (portal.settings.bind_session, sent_binding(&parts.headers)) {
            (false, _) => sessions.active_session(token, &ip_address, times, now).await?,
            (true, Some(binding)) => {
                sessions.active_bound_session(token, binding, &ip_address, times, now).await?
            }
            (true, None) => None,
        };
        let Some(found) = found else { return Ok(Self(None)) };
        let request_id = parts.extensions.get::<RequestId>().cloned();
        let request_id = request_id.ok_or_else(|| ErrorPage::internal("request has no ID"))?;
        Ok(Self(Some(SignedIn::new(found, request_id, token))))
    }
}

/// Starts a session with a new token, and ends the browser's previous one. Returns the cookies.
pub(crate) async fn start(
    portal: &Portal,
    person: PersonId,
    authentication: &Authentication,
    visitor: &Visitor,
) -> Result<Vec<HeaderValue>, PageError> {
    let (now, randomness) = (portal.clock.now(), portal.randomness.as_ref());
    let secrets = SessionSecrets::generate(portal.settings.bind_session, randomness);
    let new = NewSession {
        token: secrets.token.hash(),
        binding: secrets.binding_hash(),
        person,
        authentication: authentication.seal(&secrets.token, UNKNOWN_TIME, randomness),
        origin: visitor.origin(now),
        ip_address: visitor.ip_address.clone(),
        user_agent: visitor.browser.clone(),
        replaces: visitor.session,
    };
    portal.store.sessions.start_session(new).await?;
    Ok(secrets.cookies()?)
}

/// A browser is redirected to sign in and back for GET and HEAD, and gets an error page otherwise. A program gets a 401.
fn not_signed_in(parts: &Parts) -> Response {
    let requested_path = parts.uri.path_and_query().map(|path| path.as_str()).and_then(LocalPath::parse);
    let requested_path = requested_path.filter(|_| matches!(parts.method, Method::GET | Method::HEAD));
    if parts.headers.contains_key("hx-request") {
        // A script requests part of a page. Redirect the whole page, because sign-in is on another site.
        let url = requested_path.as_ref().map_or_else(|| "/".to_owned(), sign_in_url);
        return (StatusCode::UNAUTHORIZED, [("hx-redirect", url)]).into_response();
    }
    if !accepts_html(&parts.headers) {
        let reason = "Sign in first: open the portal in a browser.";
        let body = json!({"error": {"code": "not_signed_in", "reason": reason}}).to_string();
        let json = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        return (StatusCode::UNAUTHORIZED, json, body).into_response();
    }
    match requested_path {
        Some(path) => Redirect::to(&sign_in_url(&path)).into_response(),
        None => session_expired(parts).into_response(),
    }
}

/// For a form that is submitted after the session has ended. The page shows the input again, so that it is not lost.
fn session_expired(parts: &Parts) -> ErrorPage {
    let text = |name| parts.headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let page = text(header::REFERER).and_then(|page| page.split_once("://")).map(|(_, page)| page);
    // The page that contains the form, if it is one of ours.
    let page = page.and_then(|page| page.strip_prefix(text(header::HOST)?)).and_then(LocalPath::parse);
    let next_link = page.map_or_else(|| "/".to_owned(), |page| sign_in_url(&page));
    signed_out("Your session ended. Nothing was saved.").next_link(next_link, "Sign in")
}

fn signed_out(reason: &str) -> ErrorPage {
    ErrorPage::new(StatusCode::UNAUTHORIZED, "not_signed_in", "You are signed out", reason)
        .advice("Sign in and try again.")
}
