//! From an API key to a billed reply: a request is authenticated, admitted, generated and settled, in that order. Nothing in
//! this crate knows about HTTP; the HTTP crates only translate.

mod activity;
mod admitted_request;
mod authentication;
mod catch_panic;
mod error;
mod lease;
pub mod limits;
mod maintenance;
mod meter;
mod models;
mod prepared_request;
mod rate_limits;
mod replays;
mod request;
mod request_task;
mod running;
mod spending;
mod unrecorded;

pub use authentication::{Authenticator, Caller};
pub use error::{MeterError, SpendingCapDetails};
pub use meter::Meter;
pub use models::{Model, Models};
pub use rate_limits::{
    Decision, GuardedLimiter, LimitStoreUrl, LimitStoreUrlError, Limiter, LimiterUnavailable, MemoryLimiter,
    RedisLimiter, Reservation, open_limiter,
};
pub use request::{Call, CostEstimate, GenerateRequest, Idempotency, Reply};
pub use running::{GenerationStream, StreamEvent, StreamStart};
