//! Why a request was not served. The `Display` texts are for the log; the HTTP crates write their own for callers.

use crate::rate_limits::LimiterUnavailable;
use chancery_domain::{MoneyError, Nanos, RateLimits, Refusal, UnixMillis};
use chancery_engine::EngineError;
use chancery_store::{AccountError, DbError, LedgerError};

#[derive(Debug, thiserror::Error)]
pub enum MeterError {
    /// No, malformed, unknown or revoked key: one answer for all, so that nothing can be guessed from it.
    #[error("the API key is not valid")]
    InvalidKey,
    #[error("the key bills no account")]
    NoBillingAccount,
    #[error("there is no model named {0:?}")]
    UnknownModel(String),
    #[error("max_output_tokens is {asked}, and the model's context holds {context_tokens}")]
    CapAboveContext { asked: u64, context_tokens: u32 },
    #[error("the spending cap is reached: {0:?}")]
    SpendingCapReached(CapReached),
    /// Past a limit per minute, for now. `tokens` is all that the request may use.
    #[error("{tokens} tokens and one request do not fit the account's limits now: {refusal:?}")]
    RateLimited { refusal: Refusal, tokens: u64 },
    /// More tokens than the account may use in a minute, so no waiting helps.
    #[error("{input_tokens} tokens in and up to {max_output_tokens} out never fit the account's {limits:?}")]
    NeverFits { input_tokens: u32, max_output_tokens: u32, limits: RateLimits },
    /// A request with the same idempotency key is still under way.
    #[error("a request with this idempotency key is under way")]
    IdempotencyInFlight,
    #[error("this idempotency key was given to another request")]
    IdempotencyMismatch,
    #[error(transparent)]
    Limiter(#[from] LimiterUnavailable),
    /// What was generated may or may not have been billed. With an idempotency key it is safe to send it again.
    #[error("the usage could not be recorded: {error}")]
    Unrecorded { error: Box<MeterError>, has_key: bool },
    /// The caller left before its work had begun; nobody is there to read this.
    #[error("the caller hung up")]
    HungUp,
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The ledger rejected it.
    #[error(transparent)]
    Ledger(LedgerError),
    /// The account is not there any more.
    #[error(transparent)]
    Account(AccountError),
    #[error(transparent)]
    Database(#[from] DbError),
    #[error(transparent)]
    Money(#[from] MoneyError),
    #[error("shutting down")]
    ShuttingDown,
    /// A defect of ours, such as a task that panicked.
    #[error("internal: {0}")]
    Internal(String),
}

impl MeterError {
    /// Whether it comes from the store, so that nobody knows what was written.
    pub(crate) fn is_of_store(&self) -> bool {
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

/// Why a request was refused by its account's cap, and until when the same may happen again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapReached {
    pub cap: Nanos,
    pub spent: Nanos,
    /// For requests that are under way.
    pub set_aside: Nanos,
    /// The most that this request may cost.
    pub asked: Nanos,
    /// When the next month begins.
    pub resets_at: UnixMillis,
}
