//! Wraps every request for a page: assigns a request id, rejects cross-site requests, turns panics into a 500, renders errors,
//! adds headers, compresses, and writes one log line.
//!
//! We do not use tower-http's layers. Its request id accepts one from the caller, but ours goes into the audit log. Its headers
//! take one layer each, ours one loop. Its body time-out counts between frames, ours the whole body. Its compression would
//! compress replies that other sites can probe (`compression`).

use crate::bar::BarRenderer;
use crate::error_page::{ErrorPage, wants_json};
use crate::favicon::{self, FAVICON_PATH};
use crate::preserved_text::{PreservedField, preserved_text};
use crate::security_headers::{SecurityHeaders, Tls};
use crate::stylesheet::{self, STYLESHEET_PATH};
use crate::trusted_proxies::TrustedProxies;
use crate::{body, compression, forwarded_for, same_origin};
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

/// Configuration of a surface's boundary.
#[derive(Clone)]
pub struct PageLayerConfig {
    /// `portal` or `auth`, for the log.
    pub surface: &'static str,
    pub firm_name: String,
    /// The URL of the surface, as browsers see it.
    pub public_url: String,
    /// Whether `Strict-Transport-Security` includes the subdomains of its host.
    pub hsts_include_subdomains: bool,
    /// Other origins that the reply to a form may redirect to.
    pub form_action_origins: Vec<String>,
    /// Proxies in front of us. `X-Forwarded-For` is trusted from these alone.
    pub trusted_proxies: TrustedProxies,
    pub max_body_bytes: usize,
    /// Paths that other sites may call. They use no cookies, so cross-site requests are harmless.
    pub cross_origin_paths: &'static [&'static str],
    /// The limit for those paths, which anyone may call.
    pub max_cross_origin_body_bytes: usize,
    /// Text fields of forms. If a form is rejected, the error page shows their values.
    pub preserved_fields: &'static [PreservedField],
    /// Renders the bar above errors. `None` if the surface has no bar.
    pub bar_renderer: Option<Arc<dyn BarRenderer>>,
    pub clock: Arc<dyn Clock>,
    pub randomness: Arc<dyn Randomness>,
}

#[derive(Clone)]
struct PageLayer {
    config: Arc<PageLayerConfig>,
    security_headers: SecurityHeaders,
}

/// Adds the boundary to a surface's routes, along with the stylesheet, the favicon and the error for unknown paths.
pub fn with_page_layer(routes: Router, config: PageLayerConfig) -> Router {
    let tls = match (config.public_url.starts_with("https://"), config.hsts_include_subdomains) {
        (false, _) => Tls::None,
        (true, false) => Tls::ThisHost,
        (true, true) => Tls::WithSubdomains,
    };
    let security_headers = SecurityHeaders::new(tls, &config.form_action_origins);
    let layer = PageLayer { config: Arc::new(config), security_headers };
    routes
        .route(STYLESHEET_PATH, get(stylesheet::handle))
        .route(FAVICON_PATH, get(favicon::handle))
        .method_not_allowed_fallback(async || ErrorPage::method_not_allowed())
        .fallback(async || ErrorPage::not_found())
        .layer(axum::middleware::from_fn_with_state(layer, handle))
}

async fn handle(State(layer): State<PageLayer>, mut request: Request, next: Next) -> Response {
    let PageLayer { config, security_headers } = &layer;
    let PageLayerConfig { surface, firm_name, clock, randomness, .. } = &**config;
    let started_at = clock.monotonic();
    let request_id = RequestId::new(clock.now(), randomness.as_ref());
    request.extensions_mut().insert(request_id.clone());
    let method = request.method().clone();
    let path = request.extensions().get::<MatchedPath>().map_or("(none)", MatchedPath::as_str).to_owned();
    let json = wants_json(request.headers());
    let may_compress = compression::is_allowed(request.headers());
    let is_open = config.cross_origin_paths.contains(&path.as_str());
    let is_allowed = is_open || same_origin::is_allowed(&method, request.headers());

    forwarded_for::apply_forwarded_for(&mut request, &config.trusted_proxies);

    let (parts, request_body) = request.into_parts();
    // The error page needs these for the user's bar and for the text they typed.
    let head = (!json).then(|| parts.clone());
    let request = Request::from_parts(parts, request_body);
    let request = match is_allowed {
        true if is_open => body::read_body(request, config.max_cross_origin_body_bytes).await,
        true => body::read_body(request, config.max_body_bytes).await,
        false => Err(ErrorPage::cross_origin()),
    };
    let (mut response, body_bytes) = match request {
        Ok((request, body_bytes)) => {
            // Unwind-safe: a future that panicked is never polled again, so no inconsistent state is observed.
            let response = AssertUnwindSafe(next.run(request)).catch_unwind().await.unwrap_or_else(|panic| {
                let message = panic_message(panic.as_ref());
                ErrorPage::internal(format!("handler panicked: {message}")).into_response()
            });
            (response, body_bytes)
        }
        Err(error) => (error.into_response(), Bytes::new()),
    };
    let error = response.extensions_mut().remove::<ErrorPage>();
    if let Some(error) = &error {
        response = match head {
            Some(mut head) => {
                let bar = match &config.bar_renderer {
                    Some(bar_renderer) => bar_renderer.render_bar(&mut head).await,
                    None => None,
                };
                let typed = match error.shows_typed_text {
                    true => preserved_text(config.preserved_fields, &head.headers, &body_bytes),
                    false => Vec::new(),
                };
                error.to_page(firm_name, bar.as_deref(), &typed)
            }
            None => error.to_json(),
        };
    }
    security_headers.add_to(response.headers_mut());
    if let Ok(id) = HeaderValue::from_str(request_id.as_str()) {
        response.headers_mut().insert("x-request-id", id);
    }
    response = compression::compress(response, may_compress).await;

    let duration = clock.monotonic().saturating_duration_since(started_at);
    let duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let (status, code) = (response.status().as_u16(), error.as_ref().map_or("", |error| error.code));
    match error.as_ref().and_then(|error| error.internal.as_deref()) {
        None => tracing::info!(%request_id, surface, %method, path, status, code, duration_ms, "request"),
        Some(internal) if response.status().is_server_error() => {
            tracing::error!(%request_id, surface, %method, path, status, code, duration_ms, internal, "request failed");
        }
        Some(internal) => {
            tracing::warn!(%request_id, surface, %method, path, status, code, duration_ms, internal, "request rejected");
        }
    }
    let labels = [("surface", (*surface).to_owned()), ("path", path), ("status", status.to_string())];
    metrics::counter!("chancery_page_requests_total", &labels).increment(1);
    response
}
