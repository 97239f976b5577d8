//! Around every request for a page: it gets its id, what another site sent is stopped, a panic becomes a 500, errors get
//! their page, the reply gets its headers, and one log line is written.
//!
//! tower-http's layers were weighed and left: its request id takes one that the caller sends, and ours goes into the audit; its
//! headers are a layer each, ours one loop; its body time-out counts between frames, ours the whole body; compression is the
//! proxy's, and pages that hold secrets are better sent without.

use crate::bar::Bars;
use crate::error_page::{ErrorPage, wants_json};
use crate::favicon::{self, FAVICON_PATH};
use crate::security_headers::SecurityHeaders;
use crate::stylesheet::{self, STYLESHEET_PATH};
use crate::trusted_proxies::TrustedProxies;
use crate::typed::{TypedField, typed_into};
use crate::{body, client_address, same_origin};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{MatchedPath, Request, State};
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use chancery_domain::{Clock, Randomness, RequestId, panic_message};
use futures_util::FutureExt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

/// What the boundary of a surface must know.
#[derive(Clone)]
pub struct Surroundings {
    /// `portal` or `auth`, in the log.
    pub surface: &'static str,
    pub firm_name: String,
    /// Under this address browsers know the surface.
    pub public_url: String,
    /// Other origins that the reply to a form may lead to.
    pub form_targets: Vec<String>,
    /// Proxies in front of us. Of what they forward, and of nothing else, `X-Forwarded-For` says where it comes from.
    pub trusted_proxies: TrustedProxies,
    /// A form or another body may have so many bytes.
    pub max_body_bytes: usize,
    /// Paths that are asked by programs of other sites, and hold no cookie to be misused.
    pub open_to_other_sites: &'static [&'static str],
    /// Fields that people write into. Where a form with some is refused, the page gives them back.
    pub typed_fields: &'static [TypedField],
    /// What stands above errors. None: nobody has a bar here.
    pub bars: Option<Arc<dyn Bars>>,
    pub clock: Arc<dyn Clock>,
    pub randomness: Arc<dyn Randomness>,
}

#[derive(Clone)]
struct Boundary {
    surroundings: Arc<Surroundings>,
    security_headers: SecurityHeaders,
}

/// Puts the boundary around a surface's routes, and adds what is the same on all: the stylesheet, the favicon, and
/// errors for what is not there.
pub fn surround(routes: Router, surroundings: Surroundings) -> Router {
    let is_tls = surroundings.public_url.starts_with("https://");
    let security_headers = SecurityHeaders::new(is_tls, &surroundings.form_targets);
    let boundary = Boundary { surroundings: Arc::new(surroundings), security_headers };
    routes
        .route(STYLESHEET_PATH, get(stylesheet::handle))
        .route(FAVICON_PATH, get(favicon::handle))
        .method_not_allowed_fallback(async || ErrorPage::method_not_allowed())
        .fallback(async || ErrorPage::not_found())
        .layer(axum::middleware::from_fn_with_state(boundary, around))
}

async fn around(State(boundary): State<Boundary>, mut request: Request, next: Next) -> Response {
    let Boundary { surroundings, security_headers } = &boundary;
    let Surroundings { surface, firm_name, clock, randomness, .. } = &**surroundings;
    let started_at = clock.monotonic();
    let request_id = RequestId::new(clock.now(), randomness.as_ref());
    request.extensions_mut().insert(request_id.clone());
    let method = request.method().clone();
    let path = request.extensions().get::<MatchedPath>().map_or("(none)", MatchedPath::as_str).to_owned();
    let json = wants_json(request.headers());
    let is_open = surroundings.open_to_other_sites.contains(&path.as_str());
    let is_allowed = is_open || same_origin::is_allowed(&method, request.headers());

    client_address::correct(&mut request, &surroundings.trusted_proxies);

    let (parts, request_body) = request.into_parts();
    // For an error's page: it may be for somebody who has a bar, and for somebody who wrote something.
    let head = (!json).then(|| parts.clone());
    let request = Request::from_parts(parts, request_body);
    let request = match is_allowed {
        true => body::take_in(request, surroundings.max_body_bytes).await,
        false => Err(ErrorPage::cross_origin()),
    };
    let (mut response, sent) = match request {
        Ok((request, sent)) => {
            // A future that panicked is never polled again, so a state that it left half-changed is never seen.
            let response = AssertUnwindSafe(next.run(request)).catch_unwind().await.unwrap_or_else(|panic| {
                let message = panic_message(panic.as_ref());
                ErrorPage::internal(format!("a handler panicked: {message}")).into_response()
            });
            (response, sent)
        }
        Err(error) => (error.into_response(), Bytes::new()),
    };
    let error = response.extensions_mut().remove::<ErrorPage>();
    if let Some(error) = &error {
        response = match head {
            Some(mut head) => {
                let bar = match &surroundings.bars {
                    Some(bars) => bars.bar_for(&mut head).await,
                    None => None,
                };
                let typed = typed_into(surroundings.typed_fields, &head.headers, &sent);
                error.to_page(firm_name, bar.as_deref(), &typed)
            }
            None => error.to_json(),
        };
    }
    security_headers.add_to(response.headers_mut());
    if let Ok(id) = HeaderValue::from_str(request_id.as_str()) {
        response.headers_mut().insert("x-request-id", id);
    }

    let duration = clock.monotonic().saturating_duration_since(started_at);
    let duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let (status, code) = (response.status().as_u16(), error.as_ref().map_or("", |error| error.code));
    match error.as_ref().and_then(|error| error.internal.as_deref()) {
        None => tracing::info!(%request_id, surface, %method, path, status, code, duration_ms, "request"),
        Some(internal) if response.status().is_server_error() => {
            tracing::error!(%request_id, surface, %method, path, status, code, duration_ms, internal, "request failed");
        }
        Some(internal) => {
            tracing::warn!(%request_id, surface, %method, path, status, code, duration_ms, internal, "request refused");
        }
    }
    let labels = [("surface", (*surface).to_owned()), ("path", path), ("status", status.to_string())];
    metrics::counter!("chancery_page_requests_total", &labels).increment(1);
    response
}
