//! Around every request: it gets its id, browsers and a stopping server are refused, a panic becomes a 500, refusals
//! get their body, the reply gets its headers, and one log line is written. The line names no key, no prompt and no
//! reply.

use crate::ApiState;
use crate::error::ApiError;
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use chancery_domain::RequestId;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};

pub(crate) async fn around(State(state): State<ApiState>, mut request: Request, next: Next) -> Response {
    let started_at = state.meter.clock().monotonic();
    let request_id = state.meter.new_request_id();
    request.extensions_mut().insert(request_id.clone());
    let method = request.method().clone();
    let path = request.extensions().get::<MatchedPath>().map_or("(none)", MatchedPath::as_str).to_owned();

    let mut response = match refusal_before_routing(&state, request.headers()) {
        Some(refusal) => refusal.into_response(),
        None => CatchPanic(Box::pin(next.run(request))).await.unwrap_or_else(IntoResponse::into_response),
    };

    let error = response.extensions_mut().remove::<ApiError>();
    if let Some(error) = &error {
        *response.body_mut() = Body::from(error.body(request_id.as_str()));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    if state.meter.is_draining() || response.status() == StatusCode::PAYLOAD_TOO_LARGE {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    add_headers(response.headers_mut(), &request_id);

    let status = response.status().as_u16();
    let duration = state.meter.clock().monotonic().saturating_duration_since(started_at);
    let code = error.as_ref().map_or("", |error| error.code);
    let internal = error.as_ref().and_then(|error| error.internal.as_deref()).unwrap_or_default();
    let duration_ms = duration.as_secs_f64() * 1000.0;
    if status >= 500 {
        tracing::error!(%request_id, %method, path, status, code, duration_ms, internal, "request failed");
    } else {
        tracing::info!(%request_id, %method, path, status, code, duration_ms, "request");
    }
    metrics::counter!("chancery_http_requests_total", "path" => path.clone(), "status" => status.to_string(), "code" => code)
        .increment(1);
    metrics::histogram!("chancery_http_request_seconds", "path" => path).record(duration.as_secs_f64());
    response
}

fn refusal_before_routing(state: &ApiState, headers: &HeaderMap) -> Option<ApiError> {
    if state.meter.is_draining() {
        return Some(ApiError::shutting_down());
    }
    let from_browser = headers.contains_key(header::ORIGIN)
        || headers.keys().any(|name| name.as_str().starts_with("sec-fetch-"));
    from_browser.then(ApiError::browser_request)
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
