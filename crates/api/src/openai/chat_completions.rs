//! `POST /v1/chat/completions`: Chat Completions, text in and text out, whole or as a stream.

use super::chat_events::ChatEvents;
use super::chat_fields::{self, ChatFields};
use super::echoed::Metadata;
use super::id_with_prefix;
use crate::ApiState;
use crate::body::JsonRequest;
use crate::error::ApiError;
use crate::{idempotency, sse};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use chancery_domain::{HowEnded, RequestId};
use chancery_metering::{Call, MeterError, Reply};

pub(crate) const PATH: &str = "/v1/chat/completions";

#[derive(serde::Serialize)]
struct ChatCompletion<'a> {
    id: String,
    object: &'static str,
    /// Unix time in seconds: when the request was admitted.
    created: i64,
    model: &'a str,
    choices: [Choice<'a>; 1],
    usage: Usage,
    service_tier: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Metadata>,
}

#[derive(serde::Serialize)]
struct Choice<'a> {
    index: u32,
    message: Message<'a>,
    logprobs: Option<()>,
    finish_reason: &'static str,
}

#[derive(serde::Serialize)]
struct Message<'a> {
    role: &'static str,
    content: &'a str,
    refusal: Option<()>,
    annotations: [(); 0],
}

#[derive(serde::Serialize)]
pub(super) struct Usage {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u64,
    prompt_tokens_details: PromptTokensDetails,
    completion_tokens_details: CompletionTokensDetails,
}

#[derive(serde::Serialize)]
struct PromptTokensDetails {
    /// How many did not have to be computed again; they are billed all the same.
    cached_tokens: u32,
}

#[derive(serde::Serialize)]
struct CompletionTokensDetails {
    reasoning_tokens: u32,
}

pub(crate) async fn handle(
    State(state): State<ApiState>,
    Extension(request_id): Extension<RequestId>,
    headers: HeaderMap,
    JsonRequest { caller, body }: JsonRequest,
) -> Result<Response, ApiError> {
    let ChatFields { request, cap_name, stream, metadata } = chat_fields::parse(&body)?;
    let refused = |error: MeterError| {
        ApiError::from(error).calling("max_output_tokens", cap_name).calling("input", "messages")
    };
    let model = request.model.clone();
    let idempotency = idempotency::read(&headers, PATH, &body)?;
    let call = Call { caller, request_id, request, idempotency };
    if let Some(options) = stream {
        let running = state.meter.stream(call).await.map_err(refused)?;
        return Ok(sse::respond(running, ChatEvents::new(model, options)));
    }
    let reply = state.meter.generate(call).await.map_err(refused)?;
    let standing = reply.standing.map(Extension);
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
                refusal: None,
                annotations: [],
            },
            logprobs: None,
            finish_reason: finish_reason(reply.ended),
        }],
        usage: Usage::of(&reply),
        service_tier: "default",
        metadata,
    };
    let replayed = idempotency::mark(reply.is_replay);
    Ok((replayed, standing, Json(completion)).into_response())
}

pub(super) fn completion_id(id: &RequestId) -> String {
    id_with_prefix("chatcmpl-", id)
}

pub(super) fn finish_reason(ended: HowEnded) -> &'static str {
    match ended {
        HowEnded::Complete | HowEnded::StopSequence => "stop",
        HowEnded::MaxOutputTokens | HowEnded::ContextLength | HowEnded::Cancelled => "length",
    }
}

impl Usage {
    pub(super) fn of(reply: &Reply) -> Self {
        Self {
            prompt_tokens: reply.input_tokens,
            completion_tokens: reply.output_tokens,
            total_tokens: u64::from(reply.input_tokens) + u64::from(reply.output_tokens),
            prompt_tokens_details: PromptTokensDetails { cached_tokens: reply.cached_tokens },
            completion_tokens_details: CompletionTokensDetails { reasoning_tokens: 0 },
        }
    }
}
