//! Reads `Authorization: Bearer KEY` and has it checked.

use crate::ApiState;
use crate::error::ApiError;
use crate::rate_limit::KnownCaller;
use axum::extract::FromRequestParts;
use axum::http::header;
use axum::http::request::Parts;
use chancery_metering::Caller;
use std::convert::Infallible;

/// A handler that takes this runs only for a valid key with an account that pays.
pub(crate) struct Authenticated(pub Caller);

impl FromRequestParts<ApiState> for Authenticated {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, ApiError> {
        authenticate(parts, state).await.map(Self)
    }
}

pub(crate) async fn authenticate(parts: &Parts, state: &ApiState) -> Result<Caller, ApiError> {
    let caller = state.meter.authenticate(bearer_token(parts)).await?;
    make_known(parts, caller);
    Ok(caller)
}

fn make_known(parts: &Parts, caller: Caller) {
    if let Some(known) = parts.extensions.get::<KnownCaller>() {
        known.is(caller);
    }
}

/// For replies that everybody gets: who has a valid key learns where its account stands.
pub(crate) struct PossiblyAuthenticated;

impl FromRequestParts<ApiState> for PossiblyAuthenticated {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Infallible> {
        // Nothing is refused here; the reply says what is wrong with the request.
        if let Some(caller) = state.meter.recognise(bearer_token(parts)).await {
            make_known(parts, caller);
        }
        Ok(Self)
    }
}

/// None where there is no such header, more than one, or another scheme.
fn bearer_token(parts: &Parts) -> Option<&str> {
    let mut headers = parts.headers.get_all(header::AUTHORIZATION).iter();
    let (only, None) = (headers.next()?, headers.next()) else { return None };
    let (scheme, token) = only.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_start_matches(' '))
}
