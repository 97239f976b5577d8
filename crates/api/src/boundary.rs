//! Around every request: it gets its id, browsers and a stopping server are refused, a panic becomes a 500, refusals
//! get their body, the reply gets its headers, and one log line is written.

use crate::ApiState;
use crate::docs_page;
use crate::error::ApiError;
use crate::log_line::{LogLine, StreamOutcome};
use crate::openai;
use crate::rate_limit::{self, KnownCaller};
use crate::unread_body::read_to_the_end;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use chancery_domain::{RequestId, Standing};
use http_body_util::BodyExt;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};

/// One function and not layers of tower-http, because what happens at the end depends on all that came before:
/// - its request id keeps the one that a caller sends, and ours names the row in the ledger;
/// - its time-outs drop the handler and answer for it, and a reply may only be given up by the meter, which knows what is billed;
/// - its compression costs more CPU than short replies are worth, and a proxy in front can do it;
/// - its response headers are two layers in place of two lines.
pub(crate) async fn around(State(state): State<ApiState>, request: Request, next: Next) -> Response {
    let request_id = state.meter.new_request_id();
    let line = LogLine::begin(&state, &request, request_id.clone());
    // A caller who waits for leave to send a body sends none after a refusal.
    let mut request = match request.headers().contains_key(header::EXPECT) {
        true => request,
        false => request.map(read_to_the_end),
    };
    let is_openai = openai::is_of_family(request.uri().path());
    request.extensions_mut().insert(request_id.clone());
    let known_caller = KnownCaller::default();
    request.extensions_mut().insert(known_caller.clone());

    let mut response = match refusal_before_routing(&state, &request) {
        Some(refusal) => refusal.into_response(),
        None => CatchPanic(Box::pin(next.run(request))).await.unwrap_or_else(IntoResponse::into_response),
    };

    let error = response.extensions_mut().remove::<ApiError>();
    if let Some(error) = &error {
        let body = match is_openai {
            true => openai::error_body(error),
            false => error.body(request_id.as_str()),
        };
        *response.body_mut() = Body::from(body);
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    if state.meter.is_draining() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    add_headers(response.headers_mut(), &request_id);
    if let Some(caller) = known_caller.get() {
        // Work on the limits tells where the account stands after it; for other replies it is asked.
        let standing = match response.extensions_mut().remove::<Standing>() {
            Some(standing) => Some(standing),
            None => state.meter.standing(caller).await,
        };
        rate_limit::add_headers(response.headers_mut(), caller.limits, standing);
    }
    match response.extensions_mut().remove::<StreamOutcome>() {
        // Its line is written when its last event has left, or its caller.
        Some(outcome) => {
            let line = line.until_streamed(outcome);
            response.map(|body| Body::new(body.map_frame(move |frame| line.passing(frame))))
        }
        None => {
            line.end(response.status().as_u16(), error.as_ref());
            response
        }
    }
}

fn refusal_before_routing(state: &ApiState, request: &Request) -> Option<ApiError> {
    if state.meter.is_draining() {
        return Some(ApiError::shutting_down());
    }
    // What needs no key is for people to read.
    if docs_page::is_for_browsers(request.method(), request.uri().path()) {
        return None;
    }
    is_from_browser(request.headers()).then(ApiError::browser_request)
}

/// Node's `fetch`, which is no browser, says `Sec-Fetch-Mode: cors` and `Accept-Language: *` of its own accord. No browser
/// says either so: it never sends one `Sec-Fetch-*` header alone, nor any language but its user's.
fn is_from_browser(headers: &HeaderMap) -> bool {
    let is = |name: &str, value: &str| headers.get(name).is_some_and(|sent| sent == value);
    let fetch_headers = headers.keys().filter(|name| name.as_str().starts_with("sec-fetch-")).count();
    let is_node = fetch_headers == 1 && is("sec-fetch-mode", "cors") && is("accept-language", "*");
    headers.contains_key(header::ORIGIN) || (fetch_headers > 0 && !is_node)
}

fn add_headers(headers: &mut HeaderMap, request_id: &RequestId) {
    if let Ok(id) = HeaderValue::from_str(request_id.as_str()) {
        headers.insert("x-request-id", id);
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
}

/// A panic in a handler fails that request and no other.
struct CatchPanic(Pin<Box<dyn Future<Output = Response> + Send>>);

impl Future for CatchPanic {
    type Output = Result<Response, ApiError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // The future is never polled again after a panic, so a state that it left half-changed is never seen.
        match std::panic::catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(context))) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => {
                let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
                let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
                Poll::Ready(Err(ApiError::internal(format!("a handler panicked: {text}"))))
            }
        }
    }
}
