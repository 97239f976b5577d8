//! `POST /v1/tokens`: counts and prices a generation request with the same code that would bill it. Generates nothing.

use crate::ApiState;
use crate::body::JsonRequest;
use crate::error::ApiError;
use crate::generation_request::GenerationRequest;
use crate::openapi::errors::CountingErrors;
use axum::Json;
use axum::extract::State;

/// The body, counted and priced.
#[derive(serde::Serialize, utoipa::ToSchema)]
pub(crate) struct TokensReply {
    /// The model that counted.
    #[schema(examples("smollm2-135m"))]
    model: String,
    /// Tokens counted in, as a generation would bill them.
    #[schema(examples(11))]
    input_tokens: u32,
    /// The most that could be generated: the cap, or what the context leaves room for.
    #[schema(examples(64))]
    max_output_tokens: u32,
    cost: CostRange,
}

/// Exact decimal amounts.
#[derive(serde::Serialize, utoipa::ToSchema)]
struct CostRange {
    /// The currency of the amounts.
    #[schema(examples("USD"))]
    currency: String,
    /// What the input costs.
    #[schema(examples("0.0000011"))]
    input: String,
    /// What the longest reply costs.
    #[schema(examples("0.0000256"))]
    max_output: String,
    /// The most that the request can cost.
    #[schema(examples("0.0000267"))]
    max_total: String,
}

/// The body of a generation, counted and priced by the code that would bill it.
///
/// Runs nothing and costs nothing. Counts against the account's reads per minute.
#[utoipa::path(
    post,
    path = "/v1/tokens",
    operation_id = "tokens",
    tag = "Generation",
    security(("key" = [])),
    request_body = GenerationRequest,
    responses((status = 200, description = "The count and the price.", body = TokensReply), CountingErrors)
)]
pub(crate) async fn handle(
    State(state): State<ApiState>,
    JsonRequest { body, received }: JsonRequest<GenerationRequest>,
) -> Result<Json<TokensReply>, ApiError> {
    let request = body.request;
    let count = state.meter.count(&received.caller, &request).await?;
    Ok(Json(TokensReply {
        model: request.model,
        input_tokens: count.input_tokens,
        max_output_tokens: count.max_output_tokens,
        cost: CostRange {
            currency: state.currency.to_string(),
            input: count.input_cost.to_string(),
            max_output: count.max_output_cost.to_string(),
            max_total: count.max_cost.to_string(),
        },
    }))
}
