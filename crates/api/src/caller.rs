//! Reads and checks `Authorization: Bearer KEY`.

use crate::ApiState;
use crate::error::ApiError;
use crate::rate_limit::CallerSlot;
use axum::extract::{ConnectInfo, FromRequestParts};
use axum::http::header;
use axum::http::request::Parts;
use chancery_metering::{Caller, HashedKey, PresentedKey};
use std::convert::Infallible;
use std::net::SocketAddr;

/// Extractor for handlers that only read. Requires a valid key with a billing account, and counts the request as one of the
/// reads of the account and the key.
pub(crate) struct AuthenticatedRead(pub Caller);

impl FromRequestParts<ApiState> for AuthenticatedRead {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, ApiError> {
        let caller = authenticate(parts, &hashed_key(parts)?, state).await?;
        state.meter.admit_read(&caller).await?;
        Ok(Self(caller))
    }
}

pub(crate) fn hashed_key(parts: &Parts) -> Result<HashedKey, ApiError> {
    Ok(presented_key(parts).hash()?)
}

pub(crate) async fn authenticate(
    parts: &Parts,
    key: &HashedKey,
    state: &ApiState,
) -> Result<Caller, ApiError> {
    let caller = state.meter.authenticate_hashed(key).await?;
    set_caller(parts, caller.clone());
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
        if let Some(caller) = state.meter.try_authenticate(presented_key(parts)).await {
            set_caller(parts, caller);
        }
        Ok(Self)
    }
}

fn presented_key(parts: &Parts) -> PresentedKey<'_> {
    let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| peer.ip());
    PresentedKey { text: bearer_token(parts), peer }
}

/// Returns `None` if the header is missing, repeated or uses another scheme.
fn bearer_token(parts: &Parts) -> Option<&str> {
    let mut headers = parts.headers.get_all(header::AUTHORIZATION).iter();
    let (only, None) = (headers.next()?, headers.next()) else { return None };
    let (scheme, token) = only.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_start_matches(' '))
}
