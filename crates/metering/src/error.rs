//! Why a request was not served. The `Display` texts are for the log; the HTTP crates write their own for callers.

use crate::rate_limits::{LimiterUnavailable, Rejection};
use chancery_domain::{LimitScope, MoneyError, Nanos, UnixMillis};
use chancery_engine::EngineError;
use chancery_store::{AccountError, DbError, LedgerError};

#[derive(Debug, thiserror::Error)]
pub enum MeterError {
    /// Missing, malformed, unknown, expired or revoked key: one error for all, so that it reveals nothing.
    #[error("invalid API key")]
    InvalidKey,
    #[error("key has no open billing account")]
    NoBillingAccount,
    #[error("unknown model {0:?}")]
    UnknownModel(String),
    #[error("key may not use the model {0:?}")]
    ModelNotAllowed(String),
    #[error("max_output_tokens {requested} exceeds the model's context length of {context_tokens}")]
    MaxTokensAboveContext { requested: u64, context_tokens: u32 },
    #[error("max_output_tokens {requested} with log probabilities exceeds {max_logprob_tokens}")]
    TooManyLogprobs { requested: u32, max_logprob_tokens: u32 },
    #[error("spending cap reached: {0:?}")]
    SpendingCapReached(SpendingCapDetails),
    /// Over a per-minute limit for now. `tokens` is the maximum that the request may use.
    #[error("rate limit exceeded for {tokens} tokens and one request: {rejection:?}")]
    RateLimited { rejection: Box<Rejection>, tokens: u64 },
    /// Too many requests that generate nothing (`reads`) within a minute.
    #[error("read limit exceeded: {0:?}")]
    ReadsRateLimited(Box<Rejection>),
    /// Too many long prompts wait to be tokenized. Nothing was tokenized.
    #[error("tokenization queue full")]
    TokenizeQueueFull,
    /// More tokens than the account or the key may use in a minute, so waiting does not help.
    #[error(
        "{input_tokens} input tokens and up to {max_output_tokens} output tokens exceed {limit} per minute of the {}",
        .scope.as_str()
    )]
    ExceedsTokenLimit { input_tokens: u32, max_output_tokens: u32, scope: LimitScope, limit: u32 },
    /// A request with the same idempotency key is still running.
    #[error("a request with this idempotency key is in flight")]
    IdempotencyInFlight,
    #[error("idempotency key already used for another request")]
    IdempotencyMismatch,
    #[error(transparent)]
    Limiter(#[from] LimiterUnavailable),
    /// The usage may or may not have been billed. With an idempotency key, retrying is safe.
    #[error("cannot record usage: {error}")]
    UsageNotRecorded { error: Box<MeterError>, has_key: bool },
    /// The caller disconnected before the work began, so nobody reads this error.
    #[error("client disconnected")]
    ClientDisconnected,
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Ledger(LedgerError),
    /// The account no longer exists.
    #[error(transparent)]
    Account(AccountError),
    #[error(transparent)]
    Database(#[from] DbError),
    #[error(transparent)]
    Money(#[from] MoneyError),
    #[error("shutting down")]
    ShuttingDown,
    /// A bug, such as a task that panicked.
    #[error("internal: {0}")]
    Internal(String),
}

impl MeterError {
    /// Whether it comes from the store, so that it is unknown what was written.
    pub(crate) fn is_store_error(&self) -> bool {
        matches!(self, Self::Ledger(_) | Self::Account(_) | Self::Database(_))
    }
}

impl From<LedgerError> for MeterError {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::Database(error) => Self::Database(error),
            error => Self::Ledger(error),
        }
    }
}

impl From<AccountError> for MeterError {
    fn from(error: AccountError) -> Self {
        match error {
            AccountError::Database(error) => Self::Database(error),
            error => Self::Account(error),
        }
    }
}

/// Why a spending cap rejected a request, and when the cap resets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpendingCapDetails {
    pub scope: LimitScope,
    pub cap: Nanos,
    pub spent: Nanos,
    /// For running requests.
    pub reserved: Nanos,
    /// The maximum cost of this request.
    pub asked: Nanos,
    /// When the next month begins.
    pub resets_at: UnixMillis,
}
