//! `POST /v1/chat/completions`: Chat Completions with text input and output, in one reply or as a stream.

use super::chat_events::{ChatEvent, ChatEvents};
use super::chat_request::ChatRequest;
use super::echoed::Metadata;
use super::id_with_prefix;
use crate::ApiState;
use crate::body::JsonRequest;
use crate::error::ApiError;
use crate::logprobs::{self, TokenLogprobs};
use crate::openapi::errors::OpenAiGenerateErrors;
use crate::openapi::values::{EmptyList, IdempotencyKeySchema};
use crate::{idempotency, sse};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use chancery_domain::{RequestId, StopReason};
use chancery_metering::{MeterError, Reply};

/// The completion.
#[derive(serde::Serialize, utoipa::ToSchema)]
struct ChatCompletion<'a> {
    id: String,
    object: &'static str,
    /// Unix time in seconds: when the request was admitted.
    created: i64,
    model: &'a str,
    #[schema(value_type = Vec<Choice<'a>>)]
    choices: [Choice<'a>; 1],
    usage: Usage,
    service_tier: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = std::collections::HashMap<String, String>, required = false)]
    metadata: Option<Metadata>,
}

#[derive(serde::Serialize, utoipa::ToSchema)]
#[schema(as = ChatChoice)]
struct Choice<'a> {
    index: u32,
    message: Message<'a>,
    /// Null where the request has no `logprobs: true`.
    #[schema(required)]
    logprobs: Option<ChoiceLogprobs<'a>>,
    /// `stop`, or `length` where a limit cut the reply short.
    finish_reason: &'static str,
}

/// The log probabilities of a completion, or of a chunk of it.
#[derive(serde::Serialize, utoipa::ToSchema)]
#[schema(as = ChatLogprobs)]
pub(super) struct ChoiceLogprobs<'a> {
    /// One entry for each token.
    content: Vec<TokenLogprobs<'a>>,
    #[schema(value_type = (), required)]
    refusal: Option<()>,
}

#[derive(serde::Serialize, utoipa::ToSchema)]
#[schema(as = ChatMessage)]
struct Message<'a> {
    role: &'static str,
    content: &'a str,
    /// What the model reasoned before its answer; absent if it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[schema(value_type = (), required)]
    refusal: Option<()>,
    #[schema(inline, value_type = EmptyList)]
    annotations: [(); 0],
}

/// The token meter.
#[derive(serde::Serialize, utoipa::ToSchema)]
#[schema(as = ChatUsage)]
pub(super) struct Usage {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u64,
    prompt_tokens_details: PromptTokensDetails,
    completion_tokens_details: CompletionTokensDetails,
}

#[derive(serde::Serialize, utoipa::ToSchema)]
struct PromptTokensDetails {
    /// How many are billed as cached input, because an earlier billed request of the account computed them.
    cached_tokens: u32,
}

#[derive(serde::Serialize, utoipa::ToSchema)]
struct CompletionTokensDetails {
    /// How many of the completion's tokens were reasoning.
    reasoning_tokens: u32,
}

/// Chat Completions, for OpenAI's own clients: text in and text out, whole or as a stream.
///
/// What that API knows and is not offered here is refused by its name, never ignored.
#[utoipa::path(
    post,
    path = "/v1/chat/completions",
    operation_id = "chat_completions",
    tag = "For OpenAI's clients",
    security(("key" = [])),
    params((
        "Idempotency-Key" = inline(Option<IdempotencyKeySchema>), Header,
        description = "Your own name for the request, as on `POST /v1/generate`.",
        example = "order-17"
    )),
    request_body = ChatRequest,
    responses(
        (
            status = 200,
            description = "The completion; with `stream: true`, Server-Sent Events.",
            content((ChatCompletion<'_> = "application/json"), (ChatEvent = "text/event-stream"))
        ),
        OpenAiGenerateErrors
    )
)]
pub(crate) async fn handle(
    State(state): State<ApiState>,
    JsonRequest { body, received }: JsonRequest<ChatRequest>,
) -> Result<Response, ApiError> {
    let ChatRequest { request, max_tokens_field, stream, metadata } = body;
    let rejected = |error: MeterError| {
        ApiError::from(error)
            .rename_field("max_output_tokens", max_tokens_field)
            .rename_field("input", "messages")
    };
    let model = request.model.clone();
    let (call, _reserved_bytes) = received.call(request)?;
    if let Some(options) = stream {
        let running = state.meter.stream(call).await.map_err(rejected)?;
        return Ok(sse::stream_response(running, ChatEvents::new(model, options)));
    }
    let reply = state.meter.generate(call).await.map_err(rejected)?;
    let rate_limit_status = reply.rate_limit_status.map(Extension);
    let completion = ChatCompletion {
        id: completion_id(&reply.id),
        object: "chat.completion",
        created: reply.at.0 / 1_000,
        model: &model,
        choices: [Choice {
            index: 0,
            message: Message {
                role: "assistant",
                content: &reply.output_text,
                reasoning_content: Some(reply.reasoning_text.as_str()).filter(|text| !text.is_empty()),
                refusal: None,
                annotations: [],
            },
            logprobs: reply.logprobs.as_deref().map(ChoiceLogprobs::of),
            finish_reason: finish_reason(reply.stop_reason),
        }],
        usage: Usage::of(&reply),
        service_tier: "default",
        metadata,
    };
    let replayed = idempotency::mark(reply.is_replay);
    Ok((replayed, rate_limit_status, Json(completion)).into_response())
}

pub(super) fn completion_id(id: &RequestId) -> String {
    id_with_prefix("chatcmpl-", id)
}

pub(super) fn finish_reason(stop_reason: StopReason) -> &'static str {
    match stop_reason {
        StopReason::ContentFilter => "content_filter",
        _ if sse::is_complete(stop_reason) => "stop",
        _ => "length",
    }
}

impl<'a> ChoiceLogprobs<'a> {
    pub(super) fn of(tokens: &'a [chancery_engine::TokenLogprobs]) -> Self {
        Self { content: logprobs::of(tokens), refusal: None }
    }
}

impl Usage {
    /// Usage before anything is generated.
    pub(super) fn of_prompt(input_tokens: u32) -> Self {
        Self::new(input_tokens, 0, 0, 0)
    }

    pub(super) fn of(reply: &Reply) -> Self {
        Self::new(reply.input_tokens, reply.output_tokens, reply.cached_tokens, reply.reasoning_tokens)
    }

    fn new(prompt_tokens: u32, completion_tokens: u32, cached_tokens: u32, reasoning_tokens: u32) -> Self {
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: u64::from(prompt_tokens) + u64::from(completion_tokens),
            prompt_tokens_details: PromptTokensDetails { cached_tokens },
            completion_tokens_details: CompletionTokensDetails { reasoning_tokens },
        }
    }
}
