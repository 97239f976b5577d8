//! What tests of several crates share: servers and databases of a test's own, a server that misbehaves, a cookie jar, the
//! outbox. It knows none of our crates. A firm, a desk or a scene is its tests' own and stays with them.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking, in what it shares with others too"
)]

mod cookie_jar;
pub mod faulty_chat_server;
mod outbox;
mod postgres;
mod redis_server;

pub use cookie_jar::CookieJar;
pub use outbox::emails_in;
pub use postgres::{PostgresDatabase, psql, query};
pub use redis_server::RedisServer;
