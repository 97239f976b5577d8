//! `GET /v1/models`: the models that the key may use, with their context lengths and prices. `GET /v1/models/NAME` returns one of
//! them. Both use the shape that OpenAI's clients expect, with extra fields.

use crate::ApiState;
use crate::caller::AuthenticatedRead;
use crate::error::ApiError;
use crate::openapi::errors::{NamedErrors, ReadErrors};
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use chancery_metering::Model;

/// All models that the key may use.
#[derive(serde::Serialize, utoipa::ToSchema)]
pub(crate) struct ModelList {
    /// Always `list`.
    #[schema(examples("list"))]
    object: &'static str,
    /// One entry for each model.
    data: Vec<ModelEntry>,
}

/// A model and its prices.
#[derive(serde::Serialize, utoipa::ToSchema)]
pub(crate) struct ModelEntry {
    /// What to send as `model`.
    #[schema(examples("smollm2-135m"))]
    id: String,
    /// Always `model`.
    #[schema(examples("model"))]
    object: &'static str,
    /// Unix time in seconds: when this server started.
    #[schema(examples(1_794_700_800))]
    created: i64,
    /// Always `chancery`.
    #[schema(examples("chancery"))]
    owned_by: &'static str,
    /// How many tokens prompt and reply may have together; the most that `max_output_tokens` may be.
    #[schema(examples(8192))]
    context_tokens: u32,
    /// How many parameters the model has. Absent if the server does not know, as for a model on another server.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, examples(134_515_008))]
    parameters: Option<u64>,
    /// The currency of the prices.
    #[schema(examples("USD"))]
    currency: String,
    /// The price of a million tokens counted in, as an exact decimal.
    #[schema(examples("0.10"))]
    input_per_million: String,
    /// The price of a million cached input tokens, as an exact decimal. Absent if they cost as much as other input.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, examples("0.025"))]
    cached_input_per_million: Option<String>,
    /// The price of a million tokens generated, as an exact decimal.
    #[schema(examples("0.40"))]
    output_per_million: String,
}

/// What can be named as `model`, with context lengths and prices. Only models that the key may use.
///
/// Counts against the account's reads per minute.
#[utoipa::path(
    get,
    path = "/v1/models",
    operation_id = "models",
    tag = "Account",
    security(("key" = [])),
    responses((status = 200, description = "The models.", body = ModelList), ReadErrors)
)]
pub(crate) async fn list(
    State(state): State<ApiState>,
    AuthenticatedRead(caller): AuthenticatedRead,
) -> Json<ModelList> {
    let models = state.meter.models();
    let allowed = models.iter().filter(|model| caller.key_limits.allows_model(&model.name));
    let data = allowed.map(|model| ModelEntry::of(&state, model)).collect();
    Json(ModelList { object: "list", data })
}

/// One of the models.
///
/// Counts against the account's reads per minute.
#[utoipa::path(
    get,
    path = "/v1/models/{model}",
    operation_id = "model",
    tag = "Account",
    security(("key" = [])),
    params(("model" = String, Path, description = "The model's name.", example = "smollm2-135m")),
    responses((status = 200, description = "The model.", body = ModelEntry), NamedErrors)
)]
pub(crate) async fn one(
    State(state): State<ApiState>,
    AuthenticatedRead(caller): AuthenticatedRead,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<ModelEntry>, ApiError> {
    // A name that is not valid UTF-8 matches no model.
    let name = name.map_or_else(|_| String::new(), |Path(name)| name);
    let model = state.meter.model_for(&caller, &name)?;
    Ok(Json(ModelEntry::of(&state, &model)))
}

impl ModelEntry {
    fn of(state: &ApiState, model: &Model) -> Self {
        Self {
            id: model.name.clone(),
            object: "model",
            created: state.meter.started_at().0 / 1_000,
            owned_by: "chancery",
            context_tokens: model.engine.context_tokens(),
            parameters: model.engine.parameters(),
            currency: state.currency.to_string(),
            input_per_million: model.prices.input.to_string(),
            cached_input_per_million: model.prices.cached_discount().map(|price| price.to_string()),
            output_per_million: model.prices.output.to_string(),
        }
    }
}
