//! `GET /v1/receipts/{request_id}`: what a request was billed, with the proof that a signed checkpoint covers it. Also the
//! `receipt` field of replies, which has the same row before a checkpoint exists.

use crate::ApiState;
use crate::caller::AuthenticatedRead;
use crate::error::ApiError;
use crate::openapi::errors::ReceiptErrors;
use crate::openapi::values::StopReason;
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use chancery_domain::{Nanos, RequestId, UsageRow, leaf_hash};
use chancery_metering::{ReceiptOutcome, Reply};
use chancery_tlog::hash_to_base64;

/// No id of a request is longer.
const MAX_ID_CHARS: usize = 64;

/// What a request was billed, and the proof of it.
#[derive(serde::Serialize, utoipa::ToSchema)]
pub(crate) struct ReceiptReply {
    row: ReceiptRow,
    /// The row's place in the ledger's log, from 0.
    #[schema(examples(41))]
    leaf_index: u64,
    /// How many rows the checkpoint covers.
    #[schema(examples(60))]
    tree_size: u64,
    /// The inclusion proof (RFC 6962), hashes in Base64.
    proof: Vec<String>,
    /// The signed checkpoint (C2SP tlog-checkpoint) whose root the proof leads to.
    #[schema(examples("api.example.com/ledger\n60\n…"))]
    checkpoint: String,
}

/// What the reply already knows of its receipt.
#[derive(serde::Serialize, utoipa::ToSchema)]
pub(crate) struct PendingReceipt {
    row: ReceiptRow,
    /// The hash of the row in the ledger's log (RFC 6962), in Base64.
    leaf_hash: String,
    /// Where the receipt with its proof is, after the next checkpoint.
    #[schema(examples("/v1/receipts/req_01kxa6y0rc4t3c8v1m5q9e2f7z"))]
    url: String,
}

/// The ledger's row.
#[derive(serde::Serialize, utoipa::ToSchema)]
pub(crate) struct ReceiptRow {
    /// The request.
    #[schema(examples("req_01kxa6y0rc4t3c8v1m5q9e2f7z"))]
    request_id: String,
    /// The number of the account.
    #[schema(examples(1))]
    account_id: i64,
    /// The number of the key.
    #[schema(examples(1))]
    key_id: i64,
    /// The model that ran.
    #[schema(examples("smollm2-135m"))]
    model: String,
    /// Tokens counted in.
    #[schema(examples(11))]
    input_tokens: u32,
    /// How many of `input_tokens` are billed as cached input.
    #[schema(examples(0))]
    cached_input_tokens: u32,
    /// Tokens generated.
    #[schema(examples(9))]
    output_tokens: u32,
    /// The price of one token counted in, in thousand-millionths of the currency's unit.
    #[schema(examples(100))]
    input_price_nanos: i64,
    /// The price of one cached token.
    #[schema(examples(100))]
    cached_input_price_nanos: i64,
    /// The price of one generated token.
    #[schema(examples(400))]
    output_price_nanos: i64,
    /// The cost: tokens times prices.
    #[schema(examples(4700))]
    cost_nanos: i64,
    /// When the request was admitted, in milliseconds since 1970 (UTC).
    #[schema(examples(1_794_744_000_000_i64))]
    at_ms: i64,
    #[schema(value_type = StopReason)]
    stop_reason: &'static str,
}

/// What a request was billed, with the proof that a signed checkpoint covers it.
///
/// A request has a receipt after the next checkpoint, within about a minute. It is always the same. Counts against the
/// account's reads per minute.
#[utoipa::path(
    get,
    path = "/v1/receipts/{request_id}",
    operation_id = "receipt",
    tag = "Account",
    security(("key" = [])),
    params((
        "request_id" = String, Path,
        description = "The `id` of a reply of this account.",
        example = "req_01kxa6y0rc4t3c8v1m5q9e2f7z"
    )),
    responses((status = 200, description = "The receipt.", body = ReceiptReply), ReceiptErrors)
)]
pub(crate) async fn handle(
    State(state): State<ApiState>,
    AuthenticatedRead(caller): AuthenticatedRead,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<ReceiptReply>, ApiError> {
    let id = id.ok().map(|Path(id)| id).filter(|id| is_id(id)).ok_or_else(ApiError::no_such_request)?;
    match state.meter.receipt(&caller, &RequestId::from_stored(id)).await? {
        ReceiptOutcome::NotFound => Err(ApiError::no_such_request()),
        ReceiptOutcome::NotYetLogged => Err(ApiError::not_yet_logged()),
        ReceiptOutcome::Found(found) => Ok(Json(ReceiptReply {
            row: ReceiptRow::of(&found.row),
            leaf_index: found.index,
            tree_size: found.size,
            proof: found.proof.iter().map(|hash| hash_to_base64(*hash)).collect(),
            checkpoint: found.checkpoint,
        })),
    }
}

/// Anything else matches no request, and need not reach the database.
fn is_id(text: &str) -> bool {
    let is_id_char = |character: char| character.is_ascii_alphanumeric() || character == '_';
    text.len() <= MAX_ID_CHARS && !text.is_empty() && text.chars().all(is_id_char)
}

impl PendingReceipt {
    /// `None` for a cost that cannot be computed, which no settled row has.
    pub(crate) fn of(reply: &Reply, model: &str) -> Option<Self> {
        let row = reply.usage_row(model).ok()?;
        let url = format!("/v1/receipts/{}", row.request_id);
        Some(Self { leaf_hash: hash_to_base64(leaf_hash(&row)), row: ReceiptRow::of(&row), url })
    }
}

impl ReceiptRow {
    fn of(row: &UsageRow) -> Self {
        let Nanos(cost_nanos) = row.cost;
        Self {
            request_id: row.request_id.to_string(),
            account_id: row.account.0,
            key_id: row.key.0,
            model: row.model.clone(),
            input_tokens: row.input_tokens,
            cached_input_tokens: row.cached_input_tokens,
            output_tokens: row.output_tokens,
            input_price_nanos: row.prices.input.nanos_per_token(),
            cached_input_price_nanos: row.prices.cached_input.nanos_per_token(),
            output_price_nanos: row.prices.output.nanos_per_token(),
            cost_nanos,
            at_ms: row.at.0,
            stop_reason: row.stop_reason.as_str(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_texts_like_ids_are_looked_up() {
        assert!(is_id("req_01kxa6y0rc4t3c8v1m5q9e2f7z"));
        for text in ["", "req 1", "req\0", "réq", "a/b", &"a".repeat(65)] {
            assert!(!is_id(text), "{text:?}");
        }
    }
}
