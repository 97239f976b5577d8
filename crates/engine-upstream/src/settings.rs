//! What an upstream model is set up with.

use super::counting::TokenCounter;
use super::limits::MAX_TOTAL_TIMEOUT;
use reqwest::header::HeaderValue;
use std::time::Duration;

/// Everything but the model's prices.
pub struct UpstreamSettings {
    /// As callers name it; labels of metrics have it too.
    pub model: String,
    /// As the servers name it.
    pub upstream_model: String,
    pub servers: Servers,
    /// None: asked of the servers when the engine starts.
    pub context_tokens: Option<u32>,
    /// None: the servers' own counts are believed.
    pub tokenizer: Option<TokenCounter>,
    pub timeouts: Timeouts,
    /// How long is waited for the first text before a second server is asked beside the first; None: never.
    pub hedge_after: Option<Duration>,
}

/// What can change while jobs run.
#[derive(Clone, PartialEq, Eq)]
pub struct Servers {
    /// Addresses up to and with `/v1`.
    pub endpoints: Vec<String>,
    pub api_key: Option<String>,
}

/// Without the key.
impl std::fmt::Debug for Servers {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Servers").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}

/// Servers that were found to be usable, so that nothing can fail any more when they take the place of others.
#[derive(Debug)]
pub struct CheckedServers {
    pub(super) endpoints: Vec<String>,
    /// Marked as secret, so not shown.
    pub(super) authorization: Option<HeaderValue>,
}

/// How long is waited for a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For a connection.
    pub connect: Duration,
    /// From sending the job until the first text, the server's own queue included.
    pub first_token: Duration,
    /// Between two signs of life after that.
    pub idle: Duration,
    /// For the whole job, all tries together.
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
