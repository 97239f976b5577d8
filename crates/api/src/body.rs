//! Authenticates the caller, then receives and parses a JSON body within its size and time limits.

use crate::ApiState;
use crate::body_bytes::ReservedBytes;
use crate::caller::{authenticate, hashed_key};
use crate::error::{ApiError, ApiResult};
use crate::idempotency;
use crate::request::{self, RequestBody};
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use chancery_domain::RequestId;
use chancery_metering::{Call, Caller, GenerateRequest};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use std::time::Duration;

/// Maximum time for a body to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct JsonRequest<B> {
    pub body: B,
    pub received: ReceivedRequest,
}

pub(crate) struct ReceivedRequest {
    pub caller: Caller,
    parts: Parts,
    bytes: Bytes,
    reserved_bytes: ReservedBytes,
}

impl<B: RequestBody> FromRequest<ApiState> for JsonRequest<B> {
    type Rejection = ApiError;

    /// Checks the key twice. The check before the body stops unauthenticated callers from uploading one. The check
    /// after it applies changes made during a slow upload: a revoked key, a new limit or a new cap.
    async fn from_request(request: Request, state: &ApiState) -> ApiResult<Self> {
        let (parts, body) = request.into_parts();
        let key = hashed_key(&parts)?;
        let sender = authenticate(&parts, &key, state).await?;
        let reserved_bytes = state.body_bytes.start_upload(sender.account);
        let mut reserved_bytes = reserved_bytes.map_err(ApiError::body_bytes_exceeded)?;
        let bytes = read(&parts.headers, body, state.max_body_bytes, &mut reserved_bytes).await?;
        reserved_bytes.end_upload();
        let caller = authenticate(&parts, &key, state).await?;
        let body = request::parse(&bytes)?;
        Ok(Self { body, received: ReceivedRequest { caller, parts, bytes, reserved_bytes } })
    }
}

impl ReceivedRequest {
    /// Assembles everything needed to run the request once. The body's bytes count until the handler drops them: when a stream
    /// has begun or a whole reply is ready, because until then the request's texts wait in memory.
    pub(crate) fn call(self, request: GenerateRequest) -> ApiResult<(Call, ReservedBytes)> {
        let Self { caller, parts, bytes, reserved_bytes } = self;
        let idempotency = idempotency::read(&parts.headers, parts.uri.path(), &bytes)?;
        let request_id = parts.extensions.get::<RequestId>().cloned();
        let request_id = request_id.ok_or_else(|| ApiError::internal("request ID missing"))?;
        Ok((Call { caller, request_id, request, idempotency }, reserved_bytes))
    }
}

async fn read(
    headers: &HeaderMap,
    body: Body,
    max_body_bytes: usize,
    reserved_bytes: &mut ReservedBytes,
) -> ApiResult<Bytes> {
    check_media_type(headers)?;
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    if announced
        .and_then(|length| length.parse::<u64>().ok())
        .is_some_and(|length| length > max_body_bytes as u64)
    {
        return Err(ApiError::body_too_large(max_body_bytes));
    }
    let reading = read_all(Limited::new(body, max_body_bytes), max_body_bytes, reserved_bytes);
    let timed_out = |_| Err(ApiError::body_timeout(BODY_TIMEOUT.as_secs()));
    tokio::time::timeout(BODY_TIMEOUT, reading).await.unwrap_or_else(timed_out)
}

async fn read_all(
    mut body: Limited<Body>,
    max_body_bytes: usize,
    reserved_bytes: &mut ReservedBytes,
) -> ApiResult<Bytes> {
    // Most bodies are one part, which needs no copy.
    let (mut first, mut joined) = (Bytes::new(), Vec::<u8>::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| match error.is::<LengthLimitError>() {
            true => ApiError::body_too_large(max_body_bytes),
            false => ApiError::malformed("request body incomplete; send it again"),
        })?;
        // Trailers are ignored.
        if let Ok(data) = frame.into_data() {
            reserved_bytes.add(data.len()).map_err(ApiError::body_bytes_exceeded)?;
            if first.is_empty() && joined.is_empty() {
                first = data;
                continue;
            }
            joined.extend_from_slice(&std::mem::take(&mut first));
            joined.extend_from_slice(&data);
        }
    }
    Ok(if joined.is_empty() { first } else { joined.into() })
}

fn check_media_type(headers: &HeaderMap) -> ApiResult<()> {
    if headers.get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        return Err(ApiError::unsupported_media_type(
            "compressed bodies are not supported; send it without `Content-Encoding`",
        ));
    }
    let media_type =
        headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut parts = media_type.split(';').map(str::trim);
    let is_json = parts.next().is_some_and(|essence| essence.eq_ignore_ascii_case("application/json"));
    let is_utf8 = parts.all(|parameter| match parameter.to_ascii_lowercase().strip_prefix("charset=") {
        Some(charset) => charset.trim_matches('"') == "utf-8",
        None => true,
    });
    if is_json && is_utf8 {
        Ok(())
    } else {
        Err(ApiError::unsupported_media_type(
            "unsupported media type; send UTF-8 JSON with `Content-Type: application/json`",
        ))
    }
}
