//! Counts connections per peer, so that one peer cannot use up a listener's connections.

use chancery_domain::rate_limit_subnet;
use chancery_web::TrustedProxies;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Connection counts of all peers of one listener.
#[derive(Clone)]
pub struct Peers {
    max_each: usize,
    /// Proxies are exempt, because they carry everyone's connections.
    trusted: TrustedProxies,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// One counted connection; dropping it lowers the count.
pub struct PeerSlot {
    peer: IpAddr,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Peers {
    pub fn new(max_each: usize, trusted: TrustedProxies) -> Self {
        Self { max_each, trusted, open: Arc::default() }
    }

    /// Returns `None` if the peer is at its limit.
    pub fn try_acquire(&self, address: IpAddr) -> Option<PeerSlot> {
        let peer = rate_limit_subnet(address);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(peer).or_insert(0);
        if *count >= self.max_each && !self.trusted.contains(address) {
            return None;
        }
        *count += 1;
        Some(PeerSlot { peer, open: Arc::clone(&self.open) })
    }
}

impl Drop for PeerSlot {
    fn drop(&mut self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_limited_per_peer_except_for_proxies() {
        let proxy: IpAddr = "10.0.0.2".parse().unwrap();
        let peers = Peers::new(2, ["10.0.0.2".parse().unwrap()].into_iter().collect());
        let enter = |address: &str| peers.try_acquire(address.parse().unwrap());
        let (first, second) = (enter("2001:db8::1"), enter("2001:db8::2"));
        assert!(first.is_some() && second.is_some());
        assert!(enter("2001:db8::3").is_none(), "the same network");
        assert!(enter("2001:db8:0:1::3").is_some(), "another");
        drop(first);
        assert!(enter("2001:db8::3").is_some(), "a place is free again");
        let of_proxy: Vec<_> = (0..5).map(|_| peers.try_acquire(proxy)).collect();
        assert!(of_proxy.iter().all(Option::is_some));
        drop((second, of_proxy));
        assert!(peers.open.lock().unwrap().is_empty(), "nothing is kept of who is gone");
    }
}
