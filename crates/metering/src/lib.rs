//! From an API key to a billed reply. Here a request is authenticated, admitted, generated and settled, in that order;
//! the HTTP crates only translate. Nothing in this crate knows about HTTP.

mod activity;
mod admitted_request;
mod authentication;
mod error;
mod lease;
pub mod limits;
mod meter;
mod models;
mod panics;
mod prepared_request;
mod rate_limits;
mod replays;
mod request;
mod request_task;
mod running;
mod spending;
mod unrecorded;
mod upkeep;

pub use authentication::{Authenticator, Caller};
pub use error::{CapReached, MeterError};
pub use meter::Meter;
pub use models::{Model, Models};
pub use rate_limits::{
    Decision, GuardedLimiter, LimitStoreUrl, LimitStoreUrlError, Limiter, LimiterUnavailable, MemoryLimiter,
    RedisLimiter, Reservation, open_limiter,
};
pub use request::{Call, Count, GenerateRequest, Idempotency, Reply};
pub use running::{Beginning, Progress, Running};
