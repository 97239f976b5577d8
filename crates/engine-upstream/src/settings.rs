//! Configuration of an upstream model.

use super::limits::MAX_TOTAL_TIMEOUT;
use super::token_counter::TokenCounter;
use chancery_domain::SecretToken;
use hyper::header::HeaderValue;
use std::time::Duration;

/// Everything except prices.
pub struct UpstreamSettings {
    /// The name for callers, also used as a metrics label.
    pub model: String,
    /// The name for the servers.
    pub upstream_model: String,
    pub servers: Servers,
    /// `None`: queried from the servers at startup.
    pub context_tokens: Option<u32>,
    /// `None`: the servers' own counts are used: their usage reports, or their `/tokenize`.
    pub tokenizer: Option<TokenCounter>,
    pub timeouts: Timeouts,
    /// How long to wait for the first text before also asking a second server. `None`: never.
    pub hedge_after: Option<Duration>,
    /// Each account's `cache_salt` is derived from this. All nodes must have the same.
    pub cache_salt_secret: SecretToken,
}

/// Settings that can change while jobs run.
#[derive(Clone, PartialEq, Eq)]
pub struct Servers {
    /// URLs including `/v1`.
    pub endpoints: Vec<String>,
    pub api_key: Option<String>,
}

/// Omits the key.
impl std::fmt::Debug for Servers {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Servers").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}

/// Validated servers: replacing others with them cannot fail.
#[derive(Debug)]
pub struct ValidatedServers {
    pub(super) endpoints: Vec<String>,
    /// Marked as sensitive, so `Debug` does not print it.
    pub(super) authorization: Option<HeaderValue>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// To establish a connection.
    pub connect: Duration,
    /// From sending the job to the first text, including the server's own queue.
    pub first_token: Duration,
    /// Between two signs of activity after that.
    pub idle: Duration,
    /// For the whole job, including all attempts.
    pub total: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(3),
            first_token: Duration::from_secs(120),
            idle: Duration::from_secs(30),
            total: MAX_TOTAL_TIMEOUT,
        }
    }
}
