//! Reads `Authorization: Bearer KEY` and has it checked. It runs before the body is read, so that a stranger cannot make
//! the server take one in.

use crate::ApiState;
use crate::error::ApiError;
use crate::rate_limit::KnownCaller;
use axum::extract::FromRequestParts;
use axum::http::header;
use axum::http::request::Parts;
use chancery_metering::Caller;

/// A handler that takes this runs only for a valid key with an account that pays.
pub(crate) struct Authenticated(pub Caller);

impl FromRequestParts<ApiState> for Authenticated {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, ApiError> {
        let caller = state.meter.authenticate(bearer_token(parts)).await?;
        if let Some(known) = parts.extensions.get::<KnownCaller>() {
            known.is(caller);
        }
        Ok(Self(caller))
    }
}

/// None where there is no such header, more than one, or another scheme.
fn bearer_token(parts: &Parts) -> Option<&str> {
    let mut headers = parts.headers.get_all(header::AUTHORIZATION).iter();
    let (only, None) = (headers.next()?, headers.next()) else { return None };
    let (scheme, token) = only.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_start_matches(' '))
}
