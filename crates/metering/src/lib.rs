//! From an API key to a billed reply. Here a request is authenticated, admitted, generated and settled, in that order;
//! the HTTP crates only translate. Nothing in this crate knows about HTTP.

mod authentication;
mod error;
pub mod limits;
mod meter;
mod models;
mod spending;
mod upkeep;
mod verification;

pub use authentication::{Authenticator, Caller};
pub use error::MeterError;
pub use meter::{Count, GenerateRequest, Meter, Reply};
pub use models::{Model, Models};
pub use spending::CapReached;
pub use verification::{Verification, verify_ledger};
