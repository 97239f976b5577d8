//! `POST /v1/tokens`: the body of a generation, counted and priced by the same code that would bill it. Runs nothing.

use crate::ApiState;
use crate::body::JsonRequest;
use crate::error::ApiError;
use crate::generation_fields;
use axum::Json;
use axum::extract::State;

#[derive(serde::Serialize)]
pub(crate) struct TokensReply {
    model: String,
    input_tokens: u32,
    /// The most that could be generated: the cap, or what the context leaves room for.
    max_output_tokens: u32,
    cost: CostRange,
}

/// Exact decimal amounts.
#[derive(serde::Serialize)]
struct CostRange {
    currency: String,
    input: String,
    max_output: String,
    max_total: String,
}

pub(crate) async fn handle(
    State(state): State<ApiState>,
    JsonRequest { caller, body }: JsonRequest,
) -> Result<Json<TokensReply>, ApiError> {
    let request = generation_fields::parse(&body)?.request;
    let count = state.meter.count(caller, &request).await?;
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
