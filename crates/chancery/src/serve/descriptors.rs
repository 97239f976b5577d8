//! How many connections may be open at once, by what the operating system allows this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Connections to the API, if the system allows as many.
const MAX_API_CONNECTIONS: usize = 4_096;
/// Connections to the portal, and as many to the identity provider: people's browsers, which are fewer than programs.
const MAX_PAGE_CONNECTIONS: usize = 1_024;
/// Where there is little to share, each of the two gets this part of it.
const PAGE_SHARE: usize = 8;
/// Connections for operators. They are few and their own, so that they get through when callers take all of theirs.
pub const MAX_OPS_CONNECTIONS: usize = 64;
/// Kept for the database, the model, the log, mail, the identity provider that is asked, and the listeners.
const RESERVED: usize = 128;
/// A connection is held once to speak on and once to notice that the peer is gone.
const PER_CONNECTION: usize = 2;

/// How many connections to other servers a request of the API may need at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServersPerRequest {
    /// Every model runs here.
    None,
    One,
    /// The second is asked where the first is slow.
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

/// What each listener may have open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    pub api: usize,
    /// Of the portal, and as many of the identity provider.
    pub pages: usize,
}

impl Shares {
    /// Asks the system for as many descriptors as it gives, and shares them out.
    pub fn take(servers: ServersPerRequest) -> Self {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok();
        let allowed = if raised { maximum } else { current };
        Self::of(allowed.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX)), servers)
    }

    fn of(allowed: usize, servers: ServersPerRequest) -> Self {
        let left = allowed.saturating_sub(RESERVED + PER_CONNECTION * MAX_OPS_CONNECTIONS);
        let pages = (left / PER_CONNECTION / PAGE_SHARE).clamp(1, MAX_PAGE_CONNECTIONS);
        let left = left.saturating_sub(2 * PER_CONNECTION * pages);
        let api = left / (PER_CONNECTION + servers.connections());
        Self { api: api.clamp(1, MAX_API_CONNECTIONS), pages }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_allows_is_shared_and_never_exceeded() {
        use ServersPerRequest::{None, One, Two};
        for servers in [None, One, Two] {
            for allowed in [0, 260, 400, 1_024, 4_096, 65_536, usize::MAX] {
                let Shares { api, pages } = Shares::of(allowed, servers);
                assert!(api >= 1 && pages >= 1, "{allowed}");
                let least = RESERVED + PER_CONNECTION * (MAX_OPS_CONNECTIONS + 4) + servers.connections();
                let others = PER_CONNECTION * (api + 2 * pages + MAX_OPS_CONNECTIONS);
                let used = RESERVED + others + servers.connections() * api;
                assert!(used <= allowed.max(least), "{allowed}: {used}");
            }
        }
        assert_eq!(Shares::of(1_024, None), Shares { api: 288, pages: 48 });
        assert_eq!(Shares::of(1_024, One), Shares { api: 192, pages: 48 });
        assert_eq!(Shares::of(65_536, Two), Shares { api: MAX_API_CONNECTIONS, pages: MAX_PAGE_CONNECTIONS });
    }
}
