//! HTTP surface A: the text-generation API. One file per endpoint; what is common to all of them (request ids, refusals,
//! authentication, reading a body) has a file of its own each. Handlers translate; `chancery-metering` decides.

mod body;
mod boundary;
mod caller;
mod error;
mod fields;
mod generate;
mod generate_events;
mod generation_fields;
mod idempotency;
mod json;
mod log_line;
mod models;
mod openai;
mod rate_limit;
mod sampling_fields;
mod sse;
mod state;
mod tokens;
mod unread_body;
mod usage;

pub use state::ApiState;

use crate::caller::PossiblyAuthenticated;
use crate::error::ApiError;
use axum::Router;
use axum::http::{Method, Uri};
use axum::routing::{get, post};

/// The whole API.
pub fn router(state: ApiState) -> Router {
    Router::new()
        .route(generate::PATH, post(generate::handle))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{model}", get(models::one))
        .route("/v1/tokens", post(tokens::handle))
        .route("/v1/usage", get(usage::handle))
        .route(openai::responses::PATH, post(openai::responses::handle))
        .route("/v1/responses/input_tokens", post(openai::input_tokens::handle))
        .route(openai::chat_completions::PATH, post(openai::chat_completions::handle))
        .method_not_allowed_fallback(async |_: PossiblyAuthenticated, method: Method, uri: Uri| {
            ApiError::method_not_allowed(&method, uri.path())
        })
        .fallback(async |_: PossiblyAuthenticated, uri: Uri| ApiError::not_found(uri.path()))
        .layer(axum::middleware::from_fn_with_state(state.clone(), boundary::around))
        .with_state(state)
}
