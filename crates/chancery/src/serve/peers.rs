//! How many connections each peer has, so that one of them cannot hold every place of a listener.

use chancery_domain::neighbourhood;
use chancery_web::TrustedProxies;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// The connections of all peers of one listener.
#[derive(Clone)]
pub struct Peers {
    max_each: usize,
    /// Proxies, which speak for everybody.
    trusted: TrustedProxies,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// One connection; its place is free again when this is dropped.
pub struct PeerPlace {
    peer: IpAddr,
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Peers {
    pub fn new(max_each: usize, trusted: TrustedProxies) -> Self {
        Self { max_each, trusted, open: Arc::default() }
    }

    /// None where the peer has all that it may have.
    pub fn enter(&self, address: IpAddr) -> Option<PeerPlace> {
        let peer = neighbourhood(address);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(peer).or_insert(0);
        if *count >= self.max_each && !self.trusted.contains(address) {
            return None;
        }
        *count += 1;
        Some(PeerPlace { peer, open: Arc::clone(&self.open) })
    }
}

impl Drop for PeerPlace {
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
    fn one_peer_cannot_hold_every_place_and_a_proxy_is_not_one_peer() {
        let proxy: IpAddr = "10.0.0.2".parse().unwrap();
        let peers = Peers::new(2, ["10.0.0.2".parse().unwrap()].into_iter().collect());
        let enter = |address: &str| peers.enter(address.parse().unwrap());
        let (first, second) = (enter("2001:db8::1"), enter("2001:db8::2"));
        assert!(first.is_some() && second.is_some());
        assert!(enter("2001:db8::3").is_none(), "the same network");
        assert!(enter("2001:db8:0:1::3").is_some(), "another");
        drop(first);
        assert!(enter("2001:db8::3").is_some(), "a place is free again");
        let of_proxy: Vec<_> = (0..5).map(|_| peers.enter(proxy)).collect();
        assert!(of_proxy.iter().all(Option::is_some));
        drop((second, of_proxy));
        assert!(peers.open.lock().unwrap().is_empty(), "nothing is kept of who is gone");
    }
}
