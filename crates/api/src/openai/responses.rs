//! `POST /v1/responses`: the Responses API, text in and text out, whole or as a stream.

use super::response_events::{ResponseEvents, ResponsesEvent};
use super::response_object::{Names, ResponseObject, Stage};
use super::responses_request::ResponsesRequest;
use crate::ApiState;
use crate::body::JsonRequest;
use crate::error::ApiError;
use crate::openapi::errors::OpenAiGeneratingRefusals;
use crate::openapi::values::RequestName;
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
        "Idempotency-Key" = inline(Option<RequestName>), Header,
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
        OpenAiGeneratingRefusals
    )
)]
pub(crate) async fn handle(
    State(state): State<ApiState>,
    JsonRequest { body, sent }: JsonRequest<ResponsesRequest>,
) -> Result<Response, ApiError> {
    let ResponsesRequest { request, stream, repeated } = body;
    let call = sent.call(request)?;
    if stream {
        let running = state.meter.stream(call).await?;
        return Ok(sse::respond(running, ResponseEvents::new(repeated)));
    }
    let reply = state.meter.generate(call).await?;
    let names = Names::of(&reply.id);
    let response = ResponseObject::new(&names, reply.at, &repeated, Stage::Ended(&reply));
    let replayed = idempotency::mark(reply.is_replay);
    Ok((replayed, reply.standing.map(Extension), Json(response)).into_response())
}
