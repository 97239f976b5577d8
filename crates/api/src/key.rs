//! `GET /v1/key`: what the key that was sent may use, and what is left of it.

use crate::ApiState;
use crate::caller::AuthenticatedRead;
use crate::error::ApiError;
use crate::openapi::errors::ReadErrors;
use axum::Json;
use axum::extract::State;
use chancery_domain::UnixMillis;
use chancery_metering::{KeyStatus, LimitNumbers, ScopedLimits};

/// The key, its limits and its account's.
#[derive(serde::Serialize, utoipa::ToSchema)]
pub(crate) struct KeyReply {
    /// The key's public part.
    #[schema(examples("ck_7k2m9x4d"))]
    prefix: String,
    /// What the key is for; empty if none was given.
    #[schema(examples("backend"))]
    label: String,
    /// The account that it bills.
    #[schema(examples("Hale & Ward"))]
    account: String,
    /// When the key stops working (RFC 3339, UTC); null if it does not expire.
    #[schema(required, examples("2027-01-01T00:00:00.000Z"))]
    expires_at: Option<String>,
    /// When the key last generated (RFC 3339, UTC); null if it never has.
    #[schema(required, examples("2026-11-15T12:00:00.000Z"))]
    last_used_at: Option<String>,
    /// The models that it may use; null for all.
    #[schema(required)]
    models: Option<Vec<String>>,
    /// The limits that hold.
    limits: LimitsByScope,
    /// What is left of them now.
    remaining: LimitsByScope,
}

/// Both hold: the key's own and its account's.
#[derive(serde::Serialize, utoipa::ToSchema)]
struct LimitsByScope {
    /// Of this key alone.
    key: KeyLimitNumbers,
    /// Of the account, for all its keys together.
    account: KeyLimitNumbers,
}

/// Null where there is no limit.
#[derive(serde::Serialize, utoipa::ToSchema)]
struct KeyLimitNumbers {
    /// In any 60 seconds.
    #[schema(required, examples(60))]
    requests_per_minute: Option<u64>,
    /// Input and output together, in any 60 seconds.
    #[schema(required, examples(60_000))]
    tokens_per_minute: Option<u64>,
    /// For each calendar month (UTC), as an exact decimal in the server's currency.
    #[schema(required, examples("250.00"))]
    spend_per_month: Option<String>,
}

/// The key that was sent: what it may use, and what is left.
///
/// Counts against the reads per minute of the account, and of the key if it has requests per minute of its own.
#[utoipa::path(
    get,
    path = "/v1/key",
    operation_id = "key",
    tag = "Account",
    security(("key" = [])),
    responses((status = 200, description = "The key.", body = KeyReply), ReadErrors)
)]
pub(crate) async fn handle(
    State(state): State<ApiState>,
    AuthenticatedRead(caller): AuthenticatedRead,
) -> Result<Json<KeyReply>, ApiError> {
    Ok(Json(KeyReply::of(state.meter.key_status(&caller).await?)))
}

impl KeyReply {
    fn of(status: KeyStatus) -> Self {
        Self {
            prefix: status.prefix.to_string(),
            label: status.label,
            account: status.account.to_string(),
            expires_at: status.expires_at.map(UnixMillis::to_iso),
            last_used_at: status.last_used_at.map(UnixMillis::to_iso),
            models: status.models.map(|models| models.names().to_vec()),
            limits: LimitsByScope::of(status.limits),
            remaining: LimitsByScope::of(status.remaining),
        }
    }
}

impl LimitsByScope {
    fn of(ScopedLimits { key, account }: ScopedLimits) -> Self {
        Self { key: KeyLimitNumbers::of(key), account: KeyLimitNumbers::of(account) }
    }
}

impl KeyLimitNumbers {
    fn of(numbers: LimitNumbers) -> Self {
        Self {
            requests_per_minute: numbers.requests_per_min,
            tokens_per_minute: numbers.tokens_per_min,
            spend_per_month: numbers.spend_per_month.map(|amount| amount.to_string()),
        }
    }
}
