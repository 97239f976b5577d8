//! Middleware around every request. It assigns the request id, rejects browsers and requests during shutdown, and turns
//! a panic into a 500. It also writes error bodies and response headers, and logs one line per request.

use crate::ApiState;
use crate::access_log::{AccessLogEntry, StreamOutcome};
use crate::docs_page;
use crate::drain_body::drain_on_drop;
use crate::error::ApiError;
use crate::openai;
use crate::rate_limit::{self, CallerSlot};
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use chancery_domain::{RateLimitStatus, RequestId, panic_message};
use futures_util::FutureExt;
use http_body_util::BodyExt;
use std::panic::AssertUnwindSafe;

/// One function rather than tower-http layers, because the last steps depend on everything before them:
/// - tower-http's request id keeps the one the caller sends, but ours names the ledger row;
/// - its timeouts drop the handler and respond in its place, but only the meter may abandon a reply, because it knows
///   what is billed;
/// - its compression costs more CPU than it saves on short replies, and a proxy in front can do it;
/// - its response headers would take two layers instead of two lines.
pub(crate) async fn request_layer(State(state): State<ApiState>, request: Request, next: Next) -> Response {
    let request_id = state.meter.new_request_id();
    let log_entry = AccessLogEntry::begin(&state, &request, request_id.clone());
    // A caller that sends `Expect: 100-continue` sends no body after a rejection.
    let mut request = match request.headers().contains_key(header::EXPECT) {
        true => request,
        false => request.map(drain_on_drop),
    };
    let is_openai = openai::is_openai_path(request.uri().path());
    request.extensions_mut().insert(request_id.clone());
    let caller_slot = CallerSlot::default();
    request.extensions_mut().insert(caller_slot.clone());

    let mut response = match pre_routing_error(&state, &request) {
        Some(error) => error.into_response(),
        // A future that panicked is never polled again, so nothing observes its half-changed state.
        None => AssertUnwindSafe(next.run(request)).catch_unwind().await.unwrap_or_else(|panic| {
            let message = panic_message(panic.as_ref());
            ApiError::internal(format!("handler panicked: {message}")).into_response()
        }),
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
    if let Some(caller) = caller_slot.get() {
        // A metered request already carries the status after its own usage. Other replies query it.
        let rate_limit_status = match response.extensions_mut().remove::<RateLimitStatus>() {
            Some(rate_limit_status) => Some(rate_limit_status),
            None => state.meter.rate_limit_status(&caller).await,
        };
        rate_limit::add_headers(response.headers_mut(), caller.limits, rate_limit_status);
    }
    match response.extensions_mut().remove::<StreamOutcome>() {
        // A stream is logged after its last event, or when the caller disconnects.
        Some(outcome) => {
            let log_entry = log_entry.log_when_streamed(outcome);
            response.map(|body| Body::new(body.map_frame(move |frame| log_entry.pass_through(frame))))
        }
        None => {
            log_entry.end(response.status().as_u16(), error.as_ref());
            response
        }
    }
}

fn pre_routing_error(state: &ApiState, request: &Request) -> Option<ApiError> {
    if state.meter.is_draining() {
        return Some(ApiError::shutting_down());
    }
    // Pages that need no key are open to browsers.
    if docs_page::is_for_browsers(request.method(), request.uri().path()) {
        return None;
    }
    is_from_browser(request.headers()).then(ApiError::browser_request)
}

/// Node's `fetch` is not a browser, but sends `Sec-Fetch-Mode: cors` and `Accept-Language: *` by default. A browser
/// never sends a single `Sec-Fetch-*` header alone, nor `*` as its language.
fn is_from_browser(headers: &HeaderMap) -> bool {
    let is = |name: &str, value: &str| headers.get(name).is_some_and(|received| received == value);
    let fetch_headers = headers.keys().filter(|name| name.as_str().starts_with("sec-fetch-")).count();
    let is_node = fetch_headers == 1 && is("sec-fetch-mode", "cors") && is("accept-language", "*");
    headers.contains_key(header::ORIGIN) || (fetch_headers > 0 && !is_node)
}

/// How many headers every reply to a valid key gets here and in `rate_limit`.
const ADDED_HEADERS: usize = 11;

fn add_headers(headers: &mut HeaderMap, request_id: &RequestId) {
    // Otherwise the map grows twice.
    headers.reserve(ADDED_HEADERS);
    if let Ok(id) = HeaderValue::from_str(request_id.as_str()) {
        headers.insert("x-request-id", id);
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
}
