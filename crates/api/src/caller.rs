//! Reads and checks `Authorization: Bearer KEY`.

use crate::ApiState;
use crate::error::ApiError;
use crate::rate_limit::CallerSlot;
use axum::extract::FromRequestParts;
use axum::http::header;
use axum::http::request::Parts;
use chancery_metering::Caller;
use std::convert::Infallible;

/// Extractor for handlers that require a valid key with a billing account.
pub(crate) struct Authenticated(pub Caller);

impl FromRequestParts<ApiState> for Authenticated {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, ApiError> {
        authenticate(parts, state).await.map(Self)
    }
}

pub(crate) async fn authenticate(parts: &Parts, state: &ApiState) -> Result<Caller, ApiError> {
    let caller = state.meter.authenticate(bearer_token(parts)).await?;
    set_caller(parts, caller);
    Ok(caller)
}

fn set_caller(parts: &Parts, caller: Caller) {
    if let Some(slot) = parts.extensions.get::<CallerSlot>() {
        slot.set(caller);
    }
}

/// Extractor for errors that anyone can get: with a valid key, the reply includes rate-limit headers.
pub(crate) struct OptionalAuthenticated;

impl FromRequestParts<ApiState> for OptionalAuthenticated {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Infallible> {
        // Never rejects: the reply already says what is wrong with the request.
        if let Some(caller) = state.meter.try_authenticate(bearer_token(parts)).await {
            set_caller(parts, caller);
        }
        Ok(Self)
    }
}

/// Returns `None` if the header is missing, repeated or uses another scheme.
fn bearer_token(parts: &Parts) -> Option<&str> {
    let mut headers = parts.headers.get_all(header::AUTHORIZATION).iter();
    let (only, None) = (headers.next()?, headers.next()) else { return None };
    let (scheme, token) = only.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_start_matches(' '))
}
