//! Takes in a JSON body within its bounds of size and time.

use crate::ApiState;
use crate::error::ApiError;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use std::time::Duration;

/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// The bytes of a body that says it is JSON.
pub(crate) struct JsonBytes(pub Vec<u8>);

impl FromRequest<ApiState> for JsonBytes {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, ApiError> {
        check_media_type(request.headers())?;
        let max_body_bytes = state.max_body_bytes;
        let announced = request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
        if announced
            .and_then(|length| length.parse::<u64>().ok())
            .is_some_and(|length| length > max_body_bytes as u64)
        {
            return Err(ApiError::too_large(max_body_bytes));
        }
        let reading = Limited::new(request.into_body(), max_body_bytes).collect();
        match tokio::time::timeout(BODY_TIMEOUT, reading).await {
            Ok(Ok(body)) => Ok(Self(body.to_bytes().into())),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(ApiError::too_large(max_body_bytes)),
            Ok(Err(_)) => Err(ApiError::malformed("the body broke off before its end; send it again")),
            Err(_) => Err(ApiError::too_slow(BODY_TIMEOUT.as_secs())),
        }
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
