//! The database and limit store behind a test's firm. Most tests do not care and use SQLite and memory. With
//! `CHANCERY_TEST_ON` set to `postgres-and-redis`, every firm that configures nothing else gets its own PostgreSQL
//! database and Redis, so that the same tests cover both.

use chancery_test_support::{PostgresDatabase, RedisServer};

const VARIABLE: &str = "CHANCERY_TEST_ON";

/// A database and a Redis server that live as long as their firm.
pub struct PostgresAndRedis {
    pub database: PostgresDatabase,
    pub redis: RedisServer,
}

impl PostgresAndRedis {
    pub fn start(purpose: &str) -> Self {
        Self { database: PostgresDatabase::create(purpose), redis: RedisServer::start() }
    }

    /// Returns `None` if firms use SQLite and memory.
    pub fn from_env() -> Option<Self> {
        match std::env::var(VARIABLE).as_deref() {
            Err(_) | Ok("" | "sqlite-and-memory") => None,
            Ok("postgres-and-redis") => Some(Self::start("firm")),
            Ok(other) => panic!("{VARIABLE} is sqlite-and-memory or postgres-and-redis, and not {other:?}"),
        }
    }

    /// The settings for a node that uses them.
    pub fn settings(&self) -> [(&'static str, String); 2] {
        [("CHANCERY_DATABASE__URL", self.database.url()), ("CHANCERY_LIMITS__STORE", self.redis.url())]
    }
}
