//! From an API key to a billed reply: a request is authenticated, admitted, generated and settled, in that order. Nothing in
//! this crate knows about HTTP; the HTTP crates only translate.

mod activity;
mod admitted_request;
mod authentication;
mod catch_panic;
mod detach_on_drop;
mod error;
mod fair_semaphore;
mod journal;
mod journal_replay;
mod key_status;
mod lease;
pub mod limits;
mod logprobs;
mod maintenance;
mod meter;
mod models;
mod prepared_request;
mod rate_limits;
mod reads;
mod receipts;
mod replays;
mod request;
mod request_task;
mod running;
mod spending;
mod unknown_keys;
mod unrecorded;

pub use authentication::{Authenticator, Caller, HashedKey, PresentedKey};
pub use chancery_transparency::ReceiptOutcome;
pub use error::{MeterError, SpendingCapDetails};
pub use journal::{JOURNAL_FILE, Journal, JournalError, JournalStatus};
pub use journal_replay::ReplaySummary;
pub use key_status::{KeyStatus, LimitNumbers, ScopedLimits};
pub use meter::Meter;
pub use models::{Model, Models, OfferedModel};
pub use rate_limits::{
    Bucket, Decision, GuardedLimiter, KeyBucket, LimitStoreProbeError, LimitStoreUrl, LimitStoreUrlError,
    Limiter, LimiterUnavailable, MemoryLimiter, RedisLimiter, Rejection, Reservation, open_limiter,
    probe_limit_store,
};
pub use request::{Call, CostEstimate, GenerateRequest, Idempotency, Reply};
pub use running::{GenerationStream, StreamEvent, StreamStart};
