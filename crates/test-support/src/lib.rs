//! Test support shared by several crates: servers and databases per test, faulty upstream servers, a cookie jar, the email
//! outbox and fuzzing. It depends on no other crate of the workspace. Fixtures of one crate stay with its tests.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking, in what it shares with others too"
)]

pub mod closing_chat_server;
mod cookie_jar;
pub mod faulty_chat_server;
mod fuzz;
mod outbox;
mod postgres;
mod raw_sql;
mod redis_server;

pub use cookie_jar::CookieJar;
pub use fuzz::Fuzz;
pub use outbox::emails_in;
pub use postgres::{PostgresDatabase, psql, query};
pub use raw_sql::{RawConnection, raw_sql};
pub use redis_server::RedisServer;
