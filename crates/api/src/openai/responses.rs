//! `POST /v1/responses`: the Responses API with text input and output, in one reply or as a stream.

use super::response_events::{ResponseEvents, ResponsesEvent};
use super::response_object::{ObjectIds, ResponseObject, ResponseStatus};
use super::responses_request::ResponsesRequest;
use crate::ApiState;
use crate::body::JsonRequest;
use crate::error::ApiError;
use crate::openapi::errors::OpenAiGenerateErrors;
use crate::openapi::values::IdempotencyKeySchema;
use crate::{idempotency, sse};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

/// The Responses API, for OpenAI's own clients: text in and text out, whole or as a stream.
///
/// What that API knows and is not offered here is refused by its name, never ignored.
#[utoipa::path(
    post,
    path = "/v1/responses",
    operation_id = "responses",
    tag = "For OpenAI's clients",
    security(("key" = [])),
    params((
        "Idempotency-Key" = inline(Option<IdempotencyKeySchema>), Header,
        description = "Your own name for the request, as on `POST /v1/generate`.",
        example = "order-17"
    )),
    request_body = ResponsesRequest,
    responses(
        (
            status = 200,
            description = "The response; with `stream: true`, Server-Sent Events.",
            content((ResponseObject<'_> = "application/json"), (ResponsesEvent = "text/event-stream"))
        ),
        OpenAiGenerateErrors
    )
)]
pub(crate) async fn handle(
    State(state): State<ApiState>,
    JsonRequest { body, received }: JsonRequest<ResponsesRequest>,
) -> Result<Response, ApiError> {
    let ResponsesRequest { request, stream, echoed_request } = body;
    let (call, _reserved_bytes) = received.call(request)?;
    if stream {
        let running = state.meter.stream(call).await?;
        return Ok(sse::stream_response(running, ResponseEvents::new(echoed_request)));
    }
    let reply = state.meter.generate(call).await?;
    let ids = ObjectIds::of(&reply.id);
    let response = ResponseObject::new(&ids, reply.at, &echoed_request, ResponseStatus::Ended(&reply));
    let replayed = idempotency::mark(reply.is_replay);
    Ok((replayed, reply.rate_limit_status.map(Extension), Json(response)).into_response())
}
