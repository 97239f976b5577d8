//! HTTP surface A: the text-generation API. Each endpoint has its own file, and so does each shared concern (request
//! ids, errors, authentication, reading a body). Handlers translate; `chancery-metering` decides.

mod access_log;
mod body;
mod body_bytes;
mod caller;
mod docs_page;
mod drain_body;
mod error;
#[cfg(test)]
mod fuzz;
mod generate;
mod generate_events;
mod generation_request;
mod idempotency;
mod json;
mod key;
mod logprobs;
mod models;
mod openai;
mod openapi;
mod rate_limit;
mod receipts;
mod request;
mod request_layer;
mod route_metrics;
mod sse;
mod state;
mod tokens;
mod usage;

pub use openapi::document as openapi_document;
pub use state::ApiState;

use crate::caller::OptionalAuthenticated;
use crate::error::ApiError;
use axum::Router;
use axum::http::{Method, Uri};
use axum::routing::get;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Every endpoint with its OpenAPI description. A handler's path and method come from its description, so
/// `/openapi.json` lists every route.
fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(generate::handle))
        .routes(routes!(tokens::handle))
        .routes(routes!(openai::responses::handle))
        .routes(routes!(openai::input_tokens::handle))
        .routes(routes!(openai::chat_completions::handle))
        .routes(routes!(models::list))
        .routes(routes!(models::one))
        .routes(routes!(usage::handle))
        .routes(routes!(key::handle))
        .routes(routes!(receipts::handle))
        .routes(routes!(openapi::handle))
        .routes(routes!(docs_page::handle))
}

/// The endpoints and the files of `/docs`, plus errors for unknown paths and methods.
fn endpoints() -> Router<ApiState> {
    let (described, _) = routes().split_for_parts();
    // What the page at `/docs` loads; no endpoints, so not described.
    described
        .route(docs_page::STYLE_PATH, get(docs_page::style))
        .route(docs_page::SCRIPT_PATH, get(docs_page::script))
        .method_not_allowed_fallback(async |_: OptionalAuthenticated, method: Method, uri: Uri| {
            ApiError::method_not_allowed(&method, uri.path())
        })
        .fallback(async |_: OptionalAuthenticated, uri: Uri| ApiError::not_found(uri.path()))
}

pub fn router(state: ApiState) -> Router {
    endpoints()
        .layer(axum::middleware::from_fn_with_state(state.clone(), request_layer::request_layer))
        .with_state(state)
}
