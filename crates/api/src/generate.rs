//! `POST /v1/generate`: generates text and reports its token count, in one reply or as a stream.
//! `chancery_metering::Meter` ensures that the usage row is on disk before the reply or the last event is sent.

use crate::ApiState;
use crate::body::JsonRequest;
use crate::error::ApiError;
use crate::generate_events::{GenerateEvent, GenerateEvents};
use crate::generation_request::GenerationRequest;
use crate::logprobs::{self, TokenLogprobs};
use crate::openapi::errors::GenerateErrors;
use crate::openapi::values::{IdempotencyKeySchema, StopReason};
use crate::receipts::PendingReceipt;
use crate::{idempotency, sse};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use chancery_metering::Reply;

/// The generated text and what it took.
#[derive(serde::Serialize, utoipa::ToSchema)]
pub(crate) struct GenerateReply<'a> {
    /// The id, in the ledger, of the request that generated it.
    #[schema(examples("req_01kxa6y0rc4t3c8v1m5q9e2f7z"))]
    id: &'a str,
    /// The model that ran.
    #[schema(examples("smollm2-135m"))]
    model: &'a str,
    /// The generated text.
    #[schema(examples("A ledger is a record of financial transactions."))]
    output_text: &'a str,
    #[schema(value_type = StopReason)]
    stop_reason: &'static str,
    usage: RequestUsage,
    /// One entry for each token of `output_text`, where the request has `logprobs: true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    logprobs: Option<Vec<TokenLogprobs<'a>>>,
    /// What was billed, where the request has `receipt: true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    receipt: Option<PendingReceipt>,
}

/// The token meter.
#[derive(serde::Serialize, utoipa::ToSchema)]
#[schema(as = UsageOfOne)]
struct RequestUsage {
    /// Tokens counted in: `instructions` and `input` together, without the chat template's scaffolding.
    #[schema(examples(11))]
    input_tokens: u32,
    input_tokens_details: InputTokensDetails,
    /// Tokens generated, reasoning included; never more than `max_output_tokens`.
    #[schema(examples(9))]
    output_tokens: u32,
    output_tokens_details: OutputTokensDetails,
}

/// More about the tokens counted in.
#[derive(serde::Serialize, utoipa::ToSchema)]
struct InputTokensDetails {
    /// How many are billed as cached input, because an earlier billed request of the account computed them.
    #[schema(examples(0))]
    cached_tokens: u32,
}

/// More about the tokens generated.
#[derive(serde::Serialize, utoipa::ToSchema)]
struct OutputTokensDetails {
    /// How many the model spent on reasoning before its answer. They are billed as output; the reasoning is not shown.
    #[schema(examples(0))]
    reasoning_tokens: u32,
}

/// Text in, generated text and its token count out, whole or as a stream.
///
/// The reply, or the stream's last event, leaves only after its usage is on disk. At temperature 0 the same request gives
/// the same text.
#[utoipa::path(
    post,
    path = "/v1/generate",
    operation_id = "generate",
    tag = "Generation",
    security(("key" = [])),
    params((
        "Idempotency-Key" = inline(Option<IdempotencyKeySchema>), Header,
        description = "Your own name for the request, kept for 24 hours: sent again under it, the request is not run and not billed again, and the stored reply comes.",
        example = "order-17"
    )),
    request_body = GenerationRequest,
    responses(
        (
            status = 200,
            description = "The whole reply; with `stream: true`, Server-Sent Events.",
            content((GenerateReply<'_> = "application/json"), (GenerateEvent = "text/event-stream"))
        ),
        GenerateErrors
    )
)]
pub(crate) async fn handle(
    State(state): State<ApiState>,
    JsonRequest { body, received }: JsonRequest<GenerationRequest>,
) -> Result<Response, ApiError> {
    let GenerationRequest { request, stream, receipt } = body;
    let model = request.model.clone();
    let (call, _reserved_bytes) = received.call(request)?;
    if stream {
        let running = state.meter.stream(call).await?;
        return Ok(sse::stream_response(running, GenerateEvents::new(model, receipt)));
    }
    let reply = state.meter.generate(call).await?;
    let rate_limit_status = reply.rate_limit_status.map(Extension);
    let replayed = idempotency::mark(reply.is_replay);
    Ok((replayed, rate_limit_status, Json(GenerateReply::of(&reply, &model, receipt))).into_response())
}

impl<'a> GenerateReply<'a> {
    pub(crate) fn of(reply: &'a Reply, model: &'a str, has_receipt: bool) -> Self {
        Self {
            id: reply.id.as_str(),
            model,
            output_text: &reply.output_text,
            stop_reason: reply.stop_reason.as_str(),
            usage: RequestUsage {
                input_tokens: reply.input_tokens,
                input_tokens_details: InputTokensDetails { cached_tokens: reply.cached_tokens },
                output_tokens: reply.output_tokens,
                output_tokens_details: OutputTokensDetails { reasoning_tokens: reply.reasoning_tokens },
            },
            logprobs: reply.logprobs.as_deref().map(logprobs::of),
            receipt: if has_receipt { PendingReceipt::of(reply, model) } else { None },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reply_usage_has_the_documented_field_names() {
        let reply = GenerateReply {
            id: "req_1",
            model: "m",
            output_text: "Dear",
            stop_reason: "complete",
            usage: RequestUsage {
                input_tokens: 70,
                input_tokens_details: InputTokensDetails { cached_tokens: 64 },
                output_tokens: 1,
                output_tokens_details: OutputTokensDetails { reasoning_tokens: 0 },
            },
            logprobs: None,
            receipt: None,
        };
        assert_eq!(
            serde_json::to_string(&reply).unwrap(),
            r#"{"id":"req_1","model":"m","output_text":"Dear","stop_reason":"complete","usage":{"input_tokens":70,"input_tokens_details":{"cached_tokens":64},"output_tokens":1,"output_tokens_details":{"reasoning_tokens":0}}}"#
        );
    }
}
