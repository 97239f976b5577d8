//! What a test's firm stands on. Most tests do not care, and run on SQLite and memory; with `CHANCERY_TEST_ON` set to
//! `postgres-and-redis` every firm that names nothing else has a PostgreSQL database and a Redis of its own, so that the
//! same tests show the same of both.

use chancery_test_support::{PostgresDatabase, RedisServer};

const VARIABLE: &str = "CHANCERY_TEST_ON";

/// A database and a Redis that last as long as their firm.
pub struct PostgresAndRedis {
    pub database: PostgresDatabase,
    pub redis: RedisServer,
}

impl PostgresAndRedis {
    pub fn start(purpose: &str) -> Self {
        Self { database: PostgresDatabase::create(purpose), redis: RedisServer::start() }
    }

    /// None where firms stand on SQLite and memory.
    pub fn where_wanted() -> Option<Self> {
        match std::env::var(VARIABLE).as_deref() {
            Err(_) | Ok("" | "sqlite-and-memory") => None,
            Ok("postgres-and-redis") => Some(Self::start("firm")),
            Ok(other) => panic!("{VARIABLE} is sqlite-and-memory or postgres-and-redis, and not {other:?}"),
        }
    }

    /// The settings of a node that uses them.
    pub fn settings(&self) -> [(&'static str, String); 2] {
        [("CHANCERY_DATABASE__URL", self.database.url()), ("CHANCERY_LIMITS__STORE", self.redis.url())]
    }
}
