//! Takes in a JSON body from a caller who pays, within its bounds of size and time.

use crate::ApiState;
use crate::caller::authenticate;
use crate::error::ApiError;
use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use chancery_metering::Caller;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use std::time::Duration;

/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// The bytes of a body that says it is JSON, and who sent it.
///
/// The key is checked twice: before the body, so that a stranger cannot make the server take one in, and after it, because
/// a body may take its time, and what was changed meanwhile (a key revoked, a limit or a cap set) holds for the request.
pub(crate) struct JsonRequest {
    pub caller: Caller,
    pub body: Vec<u8>,
}

impl FromRequest<ApiState> for JsonRequest {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        authenticate(&parts, state).await?;
        let body = read(&parts.headers, body, state.max_body_bytes).await?;
        let caller = authenticate(&parts, state).await?;
        Ok(Self { caller, body })
    }
}

async fn read(headers: &HeaderMap, body: Body, max_body_bytes: usize) -> Result<Vec<u8>, ApiError> {
    check_media_type(headers)?;
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    if announced
        .and_then(|length| length.parse::<u64>().ok())
        .is_some_and(|length| length > max_body_bytes as u64)
    {
        return Err(ApiError::too_large(max_body_bytes));
    }
    let reading = Limited::new(body, max_body_bytes).collect();
    match tokio::time::timeout(BODY_TIMEOUT, reading).await {
        Ok(Ok(body)) => Ok(body.to_bytes().into()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(ApiError::too_large(max_body_bytes)),
        Ok(Err(_)) => Err(ApiError::malformed("the body broke off before its end; send it again")),
        Err(_) => Err(ApiError::too_slow(BODY_TIMEOUT.as_secs())),
    }
}

fn check_media_type(headers: &HeaderMap) -> Result<(), ApiError> {
    if headers.get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        return Err(ApiError::unsupported_media_type(
            "a compressed body is not taken; send it without `Content-Encoding`",
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
            "send the body as UTF-8 JSON, with `Content-Type: application/json`",
        ))
    }
}
