//! The response object of `POST /v1/responses`: complete, or partial in the events of a stream.

use super::errors;
use super::id_with_prefix;
use super::responses_request::EchoedRequest;
use crate::error::ApiError;
use crate::logprobs::{self, TokenLogprobs};
use crate::openapi::values::EmptyList;
use crate::sse::is_complete;
use chancery_domain::{RequestId, StopReason, UnixMillis};
use chancery_metering::Reply;

/// Progress of a response.
#[derive(Clone, Copy)]
pub(super) enum ResponseStatus<'a> {
    InProgress,
    Ended(&'a Reply),
    /// The end of a stream that showed no reasoning item, although the reply may have late reasoning.
    EndedWithoutReasoning(&'a Reply),
    Failed(&'a ApiError),
}

/// The response.
#[derive(serde::Serialize, utoipa::ToSchema)]
pub(super) struct ResponseObject<'a> {
    id: String,
    object: &'static str,
    /// Unix time in seconds: when the request was admitted.
    created_at: i64,
    status: &'static str,
    background: bool,
    #[schema(required)]
    error: Option<errors::Failure>,
    frequency_penalty: f32,
    #[schema(required)]
    incomplete_details: Option<IncompleteDetails>,
    #[schema(required)]
    instructions: Option<&'a str>,
    #[schema(required)]
    max_output_tokens: Option<u64>,
    model: &'a str,
    output: Vec<OutputItem<'a>>,
    parallel_tool_calls: bool,
    presence_penalty: f32,
    #[schema(required)]
    previous_response_id: Option<&'a str>,
    reasoning: Reasoning,
    service_tier: &'static str,
    store: bool,
    temperature: f32,
    text: TextFormat,
    tool_choice: &'static str,
    #[schema(inline, value_type = EmptyList)]
    tools: [(); 0],
    top_logprobs: u8,
    top_p: f32,
    truncation: &'static str,
    #[schema(required)]
    usage: Option<Usage>,
    #[serde(flatten)]
    echoed: &'a super::echoed::EchoedFields,
}

#[derive(serde::Serialize, utoipa::ToSchema)]
struct IncompleteDetails {
    reason: &'static str,
}

/// Whether and how to reason is left to the model.
#[derive(Default, serde::Serialize, utoipa::ToSchema)]
struct Reasoning {
    #[schema(value_type = (), required)]
    effort: Option<()>,
    #[schema(value_type = (), required)]
    summary: Option<()>,
}

#[derive(serde::Serialize, utoipa::ToSchema)]
struct TextFormat {
    format: Format,
}

#[derive(serde::Serialize, utoipa::ToSchema)]
struct Format {
    r#type: &'static str,
}

/// One item of the output: the message, after the reasoning if there was any.
#[derive(serde::Serialize, utoipa::ToSchema)]
#[serde(untagged)]
pub(super) enum OutputItem<'a> {
    Reasoning(ReasoningItem<'a>),
    Message(OutputMessage<'a>),
}

/// What the model reasoned before its answer.
#[derive(serde::Serialize, utoipa::ToSchema)]
pub(super) struct ReasoningItem<'a> {
    id: &'a str,
    r#type: &'static str,
    /// Reasoning is never summarized here.
    #[schema(inline, value_type = EmptyList)]
    summary: [(); 0],
    content: Vec<ReasoningText<'a>>,
    status: &'static str,
}

#[derive(serde::Serialize, utoipa::ToSchema)]
pub(super) struct ReasoningText<'a> {
    r#type: &'static str,
    text: &'a str,
}

/// The answer.
#[derive(serde::Serialize, utoipa::ToSchema)]
pub(super) struct OutputMessage<'a> {
    id: &'a str,
    r#type: &'static str,
    status: &'static str,
    role: &'static str,
    content: Vec<OutputText<'a>>,
}

#[derive(serde::Serialize, utoipa::ToSchema)]
pub(super) struct OutputText<'a> {
    r#type: &'static str,
    text: &'a str,
    #[schema(inline, value_type = EmptyList)]
    annotations: [(); 0],
    /// One entry for each token, where the request includes `message.output_text.logprobs`.
    logprobs: Vec<TokenLogprobs<'a>>,
}

/// The token meter.
#[derive(serde::Serialize, utoipa::ToSchema)]
#[schema(as = ResponseUsage)]
struct Usage {
    input_tokens: u32,
    input_tokens_details: InputTokensDetails,
    output_tokens: u32,
    output_tokens_details: OutputTokensDetails,
    total_tokens: u64,
}

#[derive(serde::Serialize, utoipa::ToSchema)]
#[schema(as = ResponseInputTokensDetails)]
struct InputTokensDetails {
    /// How many are billed as cached input, because an earlier billed request of the account computed them.
    cached_tokens: u32,
    /// Writing to a cache is never billed here.
    cache_write_tokens: u32,
}

#[derive(serde::Serialize, utoipa::ToSchema)]
#[schema(as = ResponseOutputTokensDetails)]
struct OutputTokensDetails {
    /// How many of the output's tokens were reasoning.
    reasoning_tokens: u32,
}

/// The ids of a response and its items, created once.
pub(super) struct ObjectIds {
    response: String,
    pub(super) reasoning: String,
    pub(super) message: String,
}

impl ObjectIds {
    pub(super) fn of(id: &RequestId) -> Self {
        Self {
            response: id_with_prefix("resp_", id),
            reasoning: id_with_prefix("rs_", id),
            message: id_with_prefix("msg_", id),
        }
    }
}

impl<'a> ResponseObject<'a> {
    pub(super) fn new(
        ids: &'a ObjectIds,
        at: UnixMillis,
        echoed_request: &'a EchoedRequest,
        stage: ResponseStatus<'a>,
    ) -> Self {
        let mut object = Self {
            id: ids.response.clone(),
            object: "response",
            created_at: at.0 / 1_000,
            status: "in_progress",
            background: false,
            error: None,
            frequency_penalty: echoed_request.frequency_penalty,
            incomplete_details: None,
            instructions: echoed_request.instructions.as_deref(),
            max_output_tokens: echoed_request.max_output_tokens,
            model: &echoed_request.model,
            output: Vec::new(),
            parallel_tool_calls: echoed_request.parallel_tool_calls,
            presence_penalty: echoed_request.presence_penalty,
            previous_response_id: None,
            reasoning: Reasoning::default(),
            service_tier: "default",
            store: false,
            temperature: echoed_request.temperature,
            text: TextFormat { format: Format { r#type: "text" } },
            tool_choice: echoed_request.tool_choice,
            tools: [],
            top_logprobs: echoed_request.top_logprobs,
            top_p: echoed_request.top_p,
            truncation: "disabled",
            usage: None,
            echoed: &echoed_request.echoed,
        };
        match stage {
            ResponseStatus::InProgress => {}
            ResponseStatus::Ended(reply) | ResponseStatus::EndedWithoutReasoning(reply) => {
                object.status = status(reply.stop_reason);
                object.incomplete_details = incomplete_details(reply.stop_reason);
                if matches!(stage, ResponseStatus::Ended(_)) && !reply.reasoning_text.is_empty() {
                    let reasoning = ReasoningItem::ended(ids, &reply.reasoning_text, reasoning_status(reply));
                    object.output.push(OutputItem::Reasoning(reasoning));
                }
                object.output.push(OutputItem::Message(OutputMessage::ended(ids, reply)));
                object.usage = Some(Usage::of(reply));
            }
            ResponseStatus::Failed(error) => {
                object.status = "failed";
                object.error = Some(errors::Failure::of(error));
            }
        }
        object
    }
}

pub(super) const COMPLETED: &str = "completed";

fn status(stop_reason: StopReason) -> &'static str {
    if is_complete(stop_reason) { COMPLETED } else { "incomplete" }
}

/// Reasoning is complete once the answer has begun.
pub(super) fn reasoning_status(reply: &Reply) -> &'static str {
    if reply.output_text.is_empty() { status(reply.stop_reason) } else { COMPLETED }
}

/// OpenAI's clients know two reasons, and would take half a text for a whole one without any. So `content_filter` is
/// reported as such, and every other limit as `max_output_tokens`.
fn incomplete_details(stop_reason: StopReason) -> Option<IncompleteDetails> {
    let reason = match stop_reason {
        StopReason::ContentFilter => "content_filter",
        _ => "max_output_tokens",
    };
    (!is_complete(stop_reason)).then_some(IncompleteDetails { reason })
}

impl<'a> ReasoningItem<'a> {
    pub(super) fn in_progress(ids: &'a ObjectIds) -> Self {
        Self::with(ids, "in_progress", Vec::new())
    }

    pub(super) fn ended(ids: &'a ObjectIds, text: &'a str, status: &'static str) -> Self {
        Self::with(ids, status, vec![ReasoningText::of(text)])
    }

    fn with(ids: &'a ObjectIds, status: &'static str, content: Vec<ReasoningText<'a>>) -> Self {
        Self { id: &ids.reasoning, r#type: "reasoning", summary: [], content, status }
    }
}

impl<'a> ReasoningText<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        Self { r#type: "reasoning_text", text }
    }
}

impl<'a> OutputMessage<'a> {
    pub(super) fn in_progress(ids: &'a ObjectIds) -> Self {
        Self::with(ids, "in_progress", Vec::new())
    }

    pub(super) fn ended(ids: &'a ObjectIds, reply: &'a Reply) -> Self {
        let logprobs = reply.logprobs.as_deref().unwrap_or_default();
        Self::with(ids, status(reply.stop_reason), vec![OutputText::of(&reply.output_text, logprobs)])
    }

    fn with(ids: &'a ObjectIds, status: &'static str, content: Vec<OutputText<'a>>) -> Self {
        Self { id: &ids.message, r#type: "message", status, role: "assistant", content }
    }
}

impl<'a> OutputText<'a> {
    pub(super) fn of(text: &'a str, logprobs: &'a [chancery_engine::TokenLogprobs]) -> Self {
        Self { r#type: "output_text", text, annotations: [], logprobs: logprobs::of(logprobs) }
    }
}

impl Usage {
    fn of(reply: &Reply) -> Self {
        Self {
            input_tokens: reply.input_tokens,
            input_tokens_details: InputTokensDetails {
                cached_tokens: reply.cached_tokens,
                cache_write_tokens: 0,
            },
            output_tokens: reply.output_tokens,
            output_tokens_details: OutputTokensDetails { reasoning_tokens: reply.reasoning_tokens },
            total_tokens: u64::from(reply.input_tokens) + u64::from(reply.output_tokens),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::responses_request::ResponsesRequest;
    use crate::request;
    use chancery_domain::{AccountId, KeyId, Prices, TokenPrice};

    #[test]
    fn stop_reason_maps_to_openai_response_status() {
        for (stop_reason, status, reason, of_message) in [
            (StopReason::Complete, "completed", None, "completed"),
            (StopReason::StopSequence, "completed", None, "completed"),
            (StopReason::MaxOutputTokens, "incomplete", Some("max_output_tokens"), "incomplete"),
            (StopReason::ContextLength, "incomplete", Some("max_output_tokens"), "incomplete"),
            (StopReason::Cancelled, "incomplete", Some("max_output_tokens"), "incomplete"),
            (StopReason::Deadline, "incomplete", Some("max_output_tokens"), "incomplete"),
            (StopReason::ContentFilter, "incomplete", Some("content_filter"), "incomplete"),
            (StopReason::Repetition, "incomplete", Some("max_output_tokens"), "incomplete"),
        ] {
            let reply = Reply {
                id: RequestId::from_stored("req_1".to_owned()),
                at: UnixMillis(1_800_000_000_999),
                reasoning_text: "Whom?".to_owned(),
                output_text: "Dear".to_owned(),
                logprobs: None,
                stop_reason,
                input_tokens: 3,
                output_tokens: 2,
                reasoning_tokens: 1,
                cached_tokens: 0,
                account: AccountId(1),
                key: KeyId(1),
                prices: Prices {
                    input: TokenPrice::from_nanos_per_token(100),
                    cached_input: TokenPrice::from_nanos_per_token(100),
                    output: TokenPrice::from_nanos_per_token(400),
                },
                rate_limit_status: None,
                is_replay: false,
            };
            let body = br#"{"model":"m","input":"x"}"#;
            let ResponsesRequest { echoed_request, .. } = request::parse(body).unwrap();
            let ids = ObjectIds::of(&reply.id);
            let object = ResponseObject::new(&ids, reply.at, &echoed_request, ResponseStatus::Ended(&reply));
            assert_eq!((object.status, object.created_at), (status, 1_800_000_000));
            assert_eq!(object.incomplete_details.map(|details| details.reason), reason);
            let [OutputItem::Reasoning(reasoning), OutputItem::Message(message)] = &object.output[..] else {
                panic!("reasoning comes before the message");
            };
            assert_eq!((reasoning.status, message.status), ("completed", of_message));
        }
    }
}
