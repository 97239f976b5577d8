//! `POST /v1/responses/input_tokens`: counts the input tokens of a response. Generates nothing and is not billed.

use super::responses_request::InputTokensRequest;
use crate::ApiState;
use crate::body::JsonRequest;
use crate::error::ApiError;
use crate::openapi::errors::OpenAiCountingErrors;
use axum::Json;
use axum::extract::State;

/// The count.
#[derive(serde::Serialize, utoipa::ToSchema)]
pub(crate) struct InputTokens {
    /// Always `response.input_tokens`.
    object: &'static str,
    /// Tokens counted in, as a response would bill them.
    input_tokens: u32,
}

/// What the input of a response would count. Runs nothing and costs nothing.
///
/// Counts against the account's reads per minute.
#[utoipa::path(
    post,
    path = "/v1/responses/input_tokens",
    operation_id = "input_tokens",
    tag = "For OpenAI's clients",
    security(("key" = [])),
    request_body = InputTokensRequest,
    responses((status = 200, description = "The count.", body = InputTokens), OpenAiCountingErrors)
)]
pub(crate) async fn handle(
    State(state): State<ApiState>,
    JsonRequest { body: InputTokensRequest(request), received }: JsonRequest<InputTokensRequest>,
) -> Result<Json<InputTokens>, ApiError> {
    let count = state.meter.count(&received.caller, &request).await?;
    Ok(Json(InputTokens { object: "response.input_tokens", input_tokens: count.input_tokens }))
}
