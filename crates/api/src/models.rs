//! `GET /v1/models`: what can be named as `model`, with its context length and prices, and `GET /v1/models/NAME` for one
//! of them. Both have the shape that the OpenAI clients expect, and more.

use crate::ApiState;
use crate::caller::Authenticated;
use crate::error::ApiError;
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use chancery_metering::Model;

#[derive(serde::Serialize)]
pub(crate) struct ModelList {
    object: &'static str,
    data: Vec<ModelEntry>,
}

#[derive(serde::Serialize)]
pub(crate) struct ModelEntry {
    id: String,
    object: &'static str,
    /// Unix time in seconds: since when this server offers it.
    created: i64,
    owned_by: &'static str,
    context_tokens: u32,
    currency: String,
    input_per_million: String,
    output_per_million: String,
}

pub(crate) async fn list(State(state): State<ApiState>, Authenticated(_): Authenticated) -> Json<ModelList> {
    let data = state.meter.models().iter().map(|model| ModelEntry::of(&state, model)).collect();
    Json(ModelList { object: "list", data })
}

pub(crate) async fn one(
    State(state): State<ApiState>,
    Authenticated(_): Authenticated,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<ModelEntry>, ApiError> {
    // A name that is not even text is no model's.
    let name = name.map_or_else(|_| String::new(), |Path(name)| name);
    let model = state.meter.models().named(&name)?;
    Ok(Json(ModelEntry::of(&state, model)))
}

impl ModelEntry {
    fn of(state: &ApiState, model: &Model) -> Self {
        Self {
            id: model.name.clone(),
            object: "model",
            created: state.meter.started_at().0 / 1_000,
            owned_by: "chancery",
            context_tokens: model.engine.context_tokens(),
            currency: state.currency.to_string(),
            input_per_million: model.prices.input.to_string(),
            output_per_million: model.prices.output.to_string(),
        }
    }
}
