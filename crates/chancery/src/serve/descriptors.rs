//! Derives connection limits from the number of file descriptors that the operating system allows this process.

use chancery_listener::{DESCRIPTORS_PER_THREAD, MAX_THREADS};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Upper bound on API connections.
const MAX_API_CONNECTIONS: usize = 4_096;
/// Upper bound on portal connections, and separately on identity provider connections. Browsers are fewer than
/// programs.
const MAX_PAGE_CONNECTIONS: usize = 1_024;
/// If descriptors are scarce, the portal and the identity provider each get one part in this many.
const PAGE_SHARE: usize = 8;
/// Operators' connections have their own limit, so that they get through when callers have used up theirs.
pub const MAX_OPS_CONNECTIONS: usize = 64;
/// Descriptors for the database, the model, the log, mail, the identity provider, the listeners, and the threads of connections.
const RESERVED: usize = 128 + DESCRIPTORS_PER_THREAD * MAX_THREADS;
/// One descriptor to serve the connection, and one to detect that the peer has closed it.
const PER_CONNECTION: usize = 2;
/// Requests per API connection, on average: on HTTP/2, a listener runs as many beyond the first of each connection.
const REQUESTS_PER_CONNECTION: usize = 2;

/// How many upstream connections one API request may need at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServersPerRequest {
    /// Every model is embedded.
    None,
    One,
    /// A hedge may open a second connection if the first server is slow.
    Two,
}

impl ServersPerRequest {
    fn connections(self) -> usize {
        match self {
            Self::None => 0,
            Self::One => 1,
            Self::Two => 2,
        }
    }
}

/// Connection limit of each listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    pub api: usize,
    /// For the portal, and the same again for the identity provider.
    pub pages: usize,
}

impl ConnectionLimits {
    /// Raises the descriptor limit as far as the system allows, and divides it up.
    pub fn from_rlimit(servers: ServersPerRequest) -> Self {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok();
        let allowed = if raised { maximum } else { current };
        Self::of(allowed.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX)), servers)
    }

    fn of(allowed: usize, servers: ServersPerRequest) -> Self {
        let left = allowed.saturating_sub(RESERVED + PER_CONNECTION * MAX_OPS_CONNECTIONS);
        let pages = (left / PER_CONNECTION / PAGE_SHARE).clamp(1, MAX_PAGE_CONNECTIONS);
        let left = left.saturating_sub(2 * PER_CONNECTION * pages);
        let api = left / (PER_CONNECTION + REQUESTS_PER_CONNECTION * servers.connections());
        Self { api: api.clamp(1, MAX_API_CONNECTIONS), pages }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_limits_never_exceed_the_descriptor_limit() {
        use ServersPerRequest::{None, One, Two};
        for servers in [None, One, Two] {
            for allowed in [0, 260, 400, 1_024, 4_096, 65_536, usize::MAX] {
                let ConnectionLimits { api, pages } = ConnectionLimits::of(allowed, servers);
                assert!(api >= 1 && pages >= 1, "{allowed}");
                let minimum = RESERVED
                    + PER_CONNECTION * (MAX_OPS_CONNECTIONS + 4)
                    + REQUESTS_PER_CONNECTION * servers.connections();
                let others = PER_CONNECTION * (api + 2 * pages + MAX_OPS_CONNECTIONS);
                let used = RESERVED + others + REQUESTS_PER_CONNECTION * servers.connections() * api;
                assert!(used <= allowed.max(minimum), "{allowed}: {used}");
            }
        }
        assert_eq!(ConnectionLimits::of(1_024, None), ConnectionLimits { api: 264, pages: 44 });
        assert_eq!(ConnectionLimits::of(1_024, One), ConnectionLimits { api: 132, pages: 44 });
        assert_eq!(
            ConnectionLimits::of(65_536, Two),
            ConnectionLimits { api: MAX_API_CONNECTIONS, pages: MAX_PAGE_CONNECTIONS }
        );
    }
}
