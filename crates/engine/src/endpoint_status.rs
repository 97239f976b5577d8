//! Status of a pool's servers, as shown to operators.

/// One server in a model's pool.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct EndpointStatus {
    pub url: String,
    pub state: EndpointState,
    /// The last error, if it affects the state.
    #[serde(rename = "trouble", skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Jobs running now, and the maximum number of tokens they may use.
    pub running: usize,
    pub outstanding_tokens: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EndpointState {
    Up,
    /// The server reported that it is overloaded; it gets no jobs for a moment.
    Busy,
    /// The server fails its health checks; it gets jobs only if no other server is available.
    Down,
    /// The circuit breaker is open after consecutive failures; after a pause, one job at a time probes the server.
    Open,
    /// Removed from the configuration; it finishes its running jobs.
    Draining,
}
