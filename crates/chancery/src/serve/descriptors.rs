//! How many connections may be open at once, by what the operating system allows this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Connections to the API, if the system allows as many.
const MAX_API_CONNECTIONS: usize = 4_096;
/// Connections for operators. They are few and their own, so that they get through when callers take all of theirs.
pub const MAX_OPS_CONNECTIONS: usize = 64;
/// Connections to the portal, and as many to the identity provider: people's browsers, which are fewer than programs.
pub const MAX_PAGE_CONNECTIONS: usize = 512;
/// Kept for the database, the model, the log and the listeners.
const RESERVED: usize = 128;
/// A connection is held once to speak on and once to notice that the peer is gone.
const PER_CONNECTION: usize = 2;

/// Asks the system for as many descriptors as it gives, and shares them out.
pub fn api_connections() -> usize {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok();
    let allowed = if raised { maximum } else { current };
    let allowed = allowed.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX));
    let left =
        allowed.saturating_sub(RESERVED + PER_CONNECTION * (MAX_OPS_CONNECTIONS + 2 * MAX_PAGE_CONNECTIONS));
    (left / PER_CONNECTION).clamp(1, MAX_API_CONNECTIONS)
}
