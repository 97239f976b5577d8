//! Around every request: it gets its id, browsers and a stopping server are refused, a panic becomes a 500, refusals
//! get their body, the reply gets its headers, and one log line is written. The line names no key, no prompt and no
//! reply.

use crate::ApiState;
use crate::error::ApiError;
use crate::rate_limit::{self, KnownCaller};
use crate::unread_body::read_to_the_end;
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use chancery_domain::{RequestId, Standing};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

pub(crate) async fn around(State(state): State<ApiState>, request: Request, next: Next) -> Response {
    let request_id = state.meter.new_request_id();
    let line = LogLine::begin(&state, &request, request_id.clone());
    // A caller who waits for leave to send a body sends none after a refusal.
    let mut request = match request.headers().contains_key(header::EXPECT) {
        true => request,
        false => request.map(read_to_the_end),
    };
    request.extensions_mut().insert(request_id.clone());
    let known_caller = KnownCaller::default();
    request.extensions_mut().insert(known_caller.clone());

    let mut response = match refusal_before_routing(&state, request.headers()) {
        Some(refusal) => refusal.into_response(),
        None => CatchPanic(Box::pin(next.run(request))).await.unwrap_or_else(IntoResponse::into_response),
    };

    let error = response.extensions_mut().remove::<ApiError>();
    if let Some(error) = &error {
        *response.body_mut() = Body::from(error.body(request_id.as_str()));
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
    line.end(response.status().as_u16(), error.as_ref());
    response
}

/// One line in the log and one count in the metrics for every request, also for one whose caller hung up: that one's
/// future is dropped in the middle, and so is its `LogLine`.
struct LogLine {
    state: ApiState,
    started_at: Instant,
    request_id: RequestId,
    method: Method,
    path: String,
    is_written: bool,
}

/// What is logged where no reply could be sent, after nginx's example.
const HUNG_UP: (u16, &str) = (499, "hung_up");

impl LogLine {
    fn begin(state: &ApiState, request: &Request, request_id: RequestId) -> Self {
        // Only paths of ours are named: a stranger's would make the metrics grow without bound.
        let path = request.extensions().get::<MatchedPath>().map_or("(none)", MatchedPath::as_str).to_owned();
        let method = request.method().clone();
        let started_at = state.meter.clock().monotonic();
        Self { state: state.clone(), started_at, request_id, method, path, is_written: false }
    }

    fn end(mut self, status: u16, error: Option<&ApiError>) {
        let code = error.map_or("", |error| error.code);
        let internal = error.and_then(|error| error.internal.as_deref()).unwrap_or_default();
        self.write(status, code, internal);
    }

    fn write(&mut self, status: u16, code: &'static str, internal: &str) {
        self.is_written = true;
        let duration = self.state.meter.clock().monotonic().saturating_duration_since(self.started_at);
        let duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let Self { request_id, method, path, .. } = &self;
        if internal.is_empty() {
            tracing::info!(%request_id, %method, path, status, code, duration_ms, "request");
        } else {
            tracing::error!(%request_id, %method, path, status, code, duration_ms, internal, "request failed");
        }
        let status = status.to_string();
        metrics::counter!("chancery_http_requests_total", "path" => path.clone(), "status" => status, "code" => code)
            .increment(1);
        metrics::histogram!("chancery_http_request_seconds", "path" => path.clone())
            .record(duration.as_secs_f64());
    }
}

impl Drop for LogLine {
    fn drop(&mut self) {
        if !self.is_written {
            self.write(HUNG_UP.0, HUNG_UP.1, "");
        }
    }
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
