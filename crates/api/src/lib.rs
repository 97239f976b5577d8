//! HTTP surface A: the text-generation API. One file per endpoint; what is common to all of them (request ids, refusals,
//! authentication, reading a body) has a file of its own each. Handlers translate; `chancery-metering` decides.

mod body;
mod boundary;
mod caller;
mod docs_page;
mod error;
mod generate;
mod generate_events;
mod generation_request;
mod idempotency;
mod json;
mod log_line;
mod models;
mod openai;
mod openapi;
mod rate_limit;
mod request;
mod sse;
mod state;
mod tokens;
mod unread_body;
mod usage;

pub use openapi::document as openapi_document;
pub use state::ApiState;

use crate::caller::PossiblyAuthenticated;
use crate::error::ApiError;
use axum::Router;
use axum::http::{Method, Uri};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Every endpoint with its description. A handler's path and method are in its description, so the document at
/// `/openapi.json` has all of them.
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
        .routes(routes!(openapi::handle))
        .routes(routes!(docs_page::handle))
        .routes(routes!(docs_page::handle_style))
}

/// The endpoints, and a refusal for everything else.
fn endpoints() -> Router<ApiState> {
    let (described, _) = routes().split_for_parts();
    described
        .method_not_allowed_fallback(async |_: PossiblyAuthenticated, method: Method, uri: Uri| {
            ApiError::method_not_allowed(&method, uri.path())
        })
        .fallback(async |_: PossiblyAuthenticated, uri: Uri| ApiError::not_found(uri.path()))
}

/// The whole API.
pub fn router(state: ApiState) -> Router {
    endpoints().layer(axum::middleware::from_fn_with_state(state.clone(), boundary::around)).with_state(state)
}
