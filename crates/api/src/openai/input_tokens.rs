//! `POST /v1/responses/input_tokens`: what the input of a response would count. Runs nothing and costs nothing.

use super::response_fields;
use crate::ApiState;
use crate::body::JsonRequest;
use crate::error::ApiError;
use axum::Json;
use axum::extract::State;

#[derive(serde::Serialize)]
pub(crate) struct InputTokens {
    object: &'static str,
    input_tokens: u32,
}

pub(crate) async fn handle(
    State(state): State<ApiState>,
    JsonRequest { caller, body }: JsonRequest,
) -> Result<Json<InputTokens>, ApiError> {
    let request = response_fields::parse_for_counting(&body)?;
    let count = state.meter.count(caller, &request).await?;
    Ok(Json(InputTokens { object: "response.input_tokens", input_tokens: count.input_tokens }))
}
