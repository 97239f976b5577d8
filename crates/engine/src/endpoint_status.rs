//! What operators are told of a pool's servers.

/// One server of a model's pool.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct EndpointStatus {
    pub url: String,
    pub state: EndpointState,
    /// The last thing that went wrong, where it matters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Jobs that it has now, and the most tokens they may have.
    pub running: usize,
    pub outstanding_tokens: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EndpointState {
    Up,
    /// It has said that it has too much to do, and is left alone for a moment.
    Busy,
    /// It does not answer when it is asked how it is; it gets jobs only where there is no other.
    Down,
    /// Jobs failed there in a row; one at a time is tried after a pause.
    Open,
    /// It was taken out of the configuration, and finishes what it has.
    Draining,
}
