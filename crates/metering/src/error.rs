//! Why a request was not served. The `Display` texts are for the log; the HTTP crates write their own for callers.

use crate::CapReached;
use chancery_domain::MoneyError;
use chancery_engine::EngineError;
use chancery_store::StoreError;

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
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Money(#[from] MoneyError),
    #[error("shutting down")]
    ShuttingDown,
    /// A defect of ours, such as a task that panicked.
    #[error("internal: {0}")]
    Internal(String),
}
