//! `POST /v1/generate`: text in, generated text and its token count out, whole or as a stream. The reply, or the
//! stream's last event, leaves only after its usage row is on disk; `chancery_metering::Meter` sees to that.

use crate::ApiState;
use crate::body::JsonRequest;
use crate::error::ApiError;
use crate::generate_events::GenerateEvents;
use crate::generation_fields::{self, GenerationFields};
use crate::{idempotency, sse};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use chancery_domain::RequestId;
use chancery_metering::{Call, Reply};

pub(crate) const PATH: &str = "/v1/generate";

#[derive(serde::Serialize)]
pub(crate) struct GenerateReply<'a> {
    /// The id, in the ledger, of the request that generated it.
    id: &'a str,
    model: &'a str,
    output_text: &'a str,
    stop_reason: &'static str,
    usage: UsageOfOne,
}

#[derive(serde::Serialize)]
struct UsageOfOne {
    input_tokens: u32,
    input_tokens_details: InputTokensDetails,
    output_tokens: u32,
}

#[derive(serde::Serialize)]
struct InputTokensDetails {
    /// How many did not have to be computed again; they are billed all the same.
    cached_tokens: u32,
}

pub(crate) async fn handle(
    State(state): State<ApiState>,
    Extension(request_id): Extension<RequestId>,
    headers: HeaderMap,
    JsonRequest { caller, body }: JsonRequest,
) -> Result<Response, ApiError> {
    let GenerationFields { request, stream } = generation_fields::parse(&body)?;
    let idempotency = idempotency::read(&headers, PATH, &body)?;
    let model = request.model.clone();
    let call = Call { caller, request_id, request, idempotency };
    if stream {
        let running = state.meter.stream(call).await?;
        return Ok(sse::respond(running, GenerateEvents::new(model)));
    }
    let reply = state.meter.generate(call).await?;
    let standing = reply.standing.map(Extension);
    let replayed = idempotency::mark(reply.is_replay);
    Ok((replayed, standing, Json(GenerateReply::of(&reply, &model))).into_response())
}

impl<'a> GenerateReply<'a> {
    pub(crate) fn of(reply: &'a Reply, model: &'a str) -> Self {
        Self {
            id: reply.id.as_str(),
            model,
            output_text: &reply.output_text,
            stop_reason: reply.ended.as_str(),
            usage: UsageOfOne {
                input_tokens: reply.input_tokens,
                input_tokens_details: InputTokensDetails { cached_tokens: reply.cached_tokens },
                output_tokens: reply.output_tokens,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_tells_its_usage_by_the_documented_names() {
        let reply = GenerateReply {
            id: "req_1",
            model: "m",
            output_text: "Dear",
            stop_reason: "complete",
            usage: UsageOfOne {
                input_tokens: 70,
                input_tokens_details: InputTokensDetails { cached_tokens: 64 },
                output_tokens: 1,
            },
        };
        assert_eq!(
            serde_json::to_string(&reply).unwrap(),
            r#"{"id":"req_1","model":"m","output_text":"Dear","stop_reason":"complete","usage":{"input_tokens":70,"input_tokens_details":{"cached_tokens":64},"output_tokens":1}}"#
        );
    }
}
