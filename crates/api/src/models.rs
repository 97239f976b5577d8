//! `GET /v1/models`: what can be named as `model`, with its context length and prices. The list has the outer shape
//! that the OpenAI clients expect.

use crate::ApiState;
use crate::caller::Authenticated;
use axum::Json;
use axum::extract::State;

#[derive(serde::Serialize)]
pub(crate) struct ModelList {
    object: &'static str,
    data: Vec<ModelEntry>,
}

#[derive(serde::Serialize)]
struct ModelEntry {
    id: String,
    object: &'static str,
    owned_by: &'static str,
    context_tokens: u32,
    currency: String,
    input_per_million: String,
    output_per_million: String,
}

pub(crate) async fn handle(
    State(state): State<ApiState>,
    Authenticated(_): Authenticated,
) -> Json<ModelList> {
    let entry = |model: &chancery_metering::Model| ModelEntry {
        id: model.name.clone(),
        object: "model",
        owned_by: "chancery",
        context_tokens: model.engine.context_tokens(),
        currency: state.currency.to_string(),
        input_per_million: model.prices.input.to_string(),
        output_per_million: model.prices.output.to_string(),
    };
    Json(ModelList { object: "list", data: state.meter.models().iter().map(entry).collect() })
}
