//! The open connections of one listener. Neither one peer nor idle connections can use them up: a peer has a share, and a
//! newcomer without a free slot closes the connection that has been idle for longest. That is one of its own peer if the peer
//! is at its share, else one of the peer with the most connections. The IPv6 peers of one site (/48) share `SITE_SHARES`.
//! A connection is idle while no request runs on it, also before its first request, and while a request's body is on its way:
//! handlers read it before they act. One with a running request is never closed for a newcomer.
//!
//! Every step takes logarithmic time, so that a flood of connections costs little.

use chancery_domain::rate_limit_subnet;
use chancery_web::TrustedProxies;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, Semaphore};

/// A site can have 256 peers. It may use as many connections as this many of them.
const SITE_SHARES: usize = 4;

pub struct Connections {
    max_open: usize,
    max_per_peer: usize,
    /// Proxies have no share, because they carry everyone's connections.
    proxies: TrustedProxies,
    registry: Mutex<Registry>,
    /// Notified when a connection closes or becomes idle. Only the accept loop waits for it.
    changed: Notify,
}

#[derive(Default)]
struct Registry {
    /// Numbers connections, and orders them by when they became idle.
    next_number: u64,
    connections: HashMap<u64, Connection>,
    closing: usize,
    peers: HashMap<IpAddr, Peer>,
    /// The connections of each site, without those that are about to close.
    sites: HashMap<Ipv6Addr, usize>,
    /// The peers with idle connections, of all sites (`None`) and of each; last, the one with the most connections.
    ranking: BTreeMap<(Option<Ipv6Addr>, Rank), IpAddr>,
}

struct Connection {
    peer: IpAddr,
    activity: Activity,
    close: Arc<Notify>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Activity {
    Idle {
        since: u64,
    },
    Busy,
    /// It was idle and is to be closed. If its next request comes first, it stays.
    Closing,
}

#[derive(Default)]
struct Peer {
    /// `None` for IPv4, and for proxies, which have no share.
    site: Option<Ipv6Addr>,
    open: usize,
    closing: usize,
    /// Idle connections by when they became idle.
    idle: BTreeMap<u64, u64>,
    /// Set while it has connections.
    extra_streams: Option<Arc<Semaphore>>,
}

/// More connections rank higher; of equals, the longer idle one.
type Rank = (usize, Reverse<u64>);

/// The /48 of an IPv6 peer, which one customer of a provider may get, or one tunnel.
fn site_of(peer: IpAddr) -> Option<Ipv6Addr> {
    match peer {
        IpAddr::V4(_) => None,
        IpAddr::V6(peer) => Some(Ipv6Addr::from_bits(peer.to_bits() >> 80 << 80)),
    }
}

impl Peer {
    /// Connections without those that are about to close.
    fn remaining(&self) -> usize {
        self.open - self.closing
    }

    fn rank(&self) -> Option<Rank> {
        self.idle.first_key_value().map(|(since, _)| (self.remaining(), Reverse(*since)))
    }
}

/// One open connection; dropping it frees the slot.
pub struct ConnectionSlot {
    connections: Arc<Connections>,
    number: u64,
    close: Arc<Notify>,
    extra_streams: Option<Arc<Semaphore>>,
}

enum Admission {
    Admitted(ConnectionSlot),
    /// The peer or its site is at its share, and all the connections of that are busy.
    AtShare,
    /// No slot is free yet.
    Full,
}

impl Connections {
    pub fn new(max_open: usize, max_per_peer: usize, proxies: TrustedProxies) -> Arc<Self> {
        Arc::new(Self { max_open, max_per_peer, proxies, registry: Mutex::default(), changed: Notify::new() })
    }

    /// Waits for a slot; `None` if the peer or its site is at its share and all its connections are busy. Only one task may wait.
    pub async fn admit(self: &Arc<Self>, address: IpAddr) -> Option<ConnectionSlot> {
        loop {
            match self.try_admit(address) {
                Admission::Admitted(slot) => return Some(slot),
                Admission::AtShare => return None,
                Admission::Full => self.changed.notified().await,
            }
        }
    }

    fn try_admit(self: &Arc<Self>, address: IpAddr) -> Admission {
        let peer = rate_limit_subnet(address);
        let has_share = !self.proxies.contains(address);
        let mut registry = self.lock();
        let of_peer = registry.peers.get(&peer).map_or(0, Peer::remaining);
        if has_share && of_peer >= self.max_per_peer && !registry.close_oldest_idle(peer) {
            return Admission::AtShare;
        }
        let site = site_of(peer).filter(|_| has_share);
        if let Some(site) = site
            && registry.sites.get(&site).is_some_and(|open| *open >= SITE_SHARES * self.max_per_peer)
        {
            let Some(largest) = registry.largest(Some(site)) else { return Admission::AtShare };
            registry.close_oldest_idle(largest);
        }
        if registry.remaining() >= self.max_open
            && let Some(largest) = registry.largest(None)
        {
            registry.close_oldest_idle(largest);
        }
        // The slot of a closing connection is taken until its descriptors are free.
        if registry.connections.len() >= self.max_open {
            return Admission::Full;
        }
        let (number, close, extra_streams) = registry.open(peer, site, self.max_per_peer);
        let extra_streams = has_share.then_some(extra_streams);
        Admission::Admitted(ConnectionSlot { connections: Arc::clone(self), number, close, extra_streams })
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionSlot {
    /// A request's body is on its way. The connection stays idle, and counts as idle from now on.
    pub fn request_arriving(&self) {
        self.change(|number, activity| {
            matches!(activity, Activity::Idle { .. }).then_some(Activity::Idle { since: number })
        });
    }

    pub fn request_started(&self) {
        self.change(|_, activity| (activity != Activity::Busy).then_some(Activity::Busy));
    }

    /// The reply is sent.
    pub fn request_ended(&self) {
        self.change(|number, activity| {
            (activity == Activity::Busy).then_some(Activity::Idle { since: number })
        });
    }

    /// The peer's permits for requests of its HTTP/2 connections beyond the first of each, as many as it may have connections;
    /// `None` if it has no share. Without them, one peer could use up those of the listener.
    pub fn extra_streams(&self) -> Option<Arc<Semaphore>> {
        self.extra_streams.clone()
    }

    /// Completes when the connection is idle and must be closed.
    pub async fn must_close(&self) {
        loop {
            self.close.notified().await;
            let registry = self.connections.lock();
            // A request may have started meanwhile.
            if registry.connections.get(&self.number).is_some_and(|own| own.activity == Activity::Closing) {
                return;
            }
        }
    }

    fn change(&self, next: impl FnOnce(u64, Activity) -> Option<Activity>) {
        let mut registry = self.connections.lock();
        let since = registry.take_number();
        let Some(activity) = registry.connections.get(&self.number).map(|own| own.activity) else { return };
        let Some(activity) = next(since, activity) else { return };
        registry.set_activity(self.number, activity);
        drop(registry);
        self.connections.changed.notify_one();
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.connections.lock().remove(self.number);
        self.connections.changed.notify_one();
    }
}

impl Registry {
    fn take_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Connections without those that are about to close.
    fn remaining(&self) -> usize {
        self.connections.len() - self.closing
    }

    /// The peer, of this site or of all, that has idle connections and the most connections.
    fn largest(&self, site: Option<Ipv6Addr>) -> Option<IpAddr> {
        let (least, most) = ((site, (0, Reverse(u64::MAX))), (site, (usize::MAX, Reverse(0))));
        self.ranking.range(least..=most).next_back().map(|(_, peer)| *peer)
    }

    fn open(
        &mut self,
        peer: IpAddr,
        site: Option<Ipv6Addr>,
        max_extra_streams: usize,
    ) -> (u64, Arc<Notify>, Arc<Semaphore>) {
        let number = self.take_number();
        let close = Arc::new(Notify::new());
        let known = self.peers.entry(peer).or_insert_with(|| Peer { site, ..Peer::default() });
        let known = known.extra_streams.clone();
        let extra_streams = known.unwrap_or_else(|| Arc::new(Semaphore::new(max_extra_streams)));
        let activity = Activity::Idle { since: number };
        self.connections.insert(number, Connection { peer, activity, close: Arc::clone(&close) });
        self.update_peer(peer, |peer| {
            peer.open += 1;
            peer.idle.insert(number, number);
            peer.extra_streams = Some(Arc::clone(&extra_streams));
        });
        (number, close, extra_streams)
    }

    /// Returns whether the peer has an idle connection.
    fn close_oldest_idle(&mut self, peer: IpAddr) -> bool {
        let oldest = self.peers.get(&peer).and_then(|peer| peer.idle.first_key_value());
        let Some(number) = oldest.map(|(_, number)| *number) else { return false };
        self.set_activity(number, Activity::Closing);
        if let Some(connection) = self.connections.get(&number) {
            connection.close.notify_one();
        }
        true
    }

    fn set_activity(&mut self, number: u64, activity: Activity) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let previous = std::mem::replace(&mut connection.activity, activity);
        let peer = connection.peer;
        self.closing += usize::from(activity == Activity::Closing);
        self.closing -= usize::from(previous == Activity::Closing);
        self.update_peer(peer, |peer| {
            match activity {
                Activity::Idle { since } => {
                    peer.idle.insert(since, number);
                }
                Activity::Busy => {}
                Activity::Closing => peer.closing += 1,
            }
            peer.leave(previous);
        });
    }

    fn remove(&mut self, number: u64) {
        let Some(Connection { peer, activity, .. }) = self.connections.remove(&number) else { return };
        self.closing -= usize::from(activity == Activity::Closing);
        self.update_peer(peer, |peer| {
            peer.leave(activity);
            peer.open -= 1;
        });
    }

    /// Keeps the ranking in step with the peer.
    fn update_peer(&mut self, address: IpAddr, change: impl FnOnce(&mut Peer)) {
        let peer = self.peers.entry(address).or_default();
        let (site, before, remaining_before) = (peer.site, peer.rank(), peer.remaining());
        change(peer);
        let (after, remaining) = (peer.rank(), peer.remaining());
        if peer.open == 0 {
            self.peers.remove(&address);
        }
        if let Some(site) = site {
            let open = self.sites.entry(site).or_default();
            *open = *open + remaining - remaining_before;
            if *open == 0 {
                self.sites.remove(&site);
            }
        }
        if before != after {
            for group in std::iter::once(None).chain(site.map(Some)) {
                if let Some(rank) = before {
                    self.ranking.remove(&(group, rank));
                }
                if let Some(rank) = after {
                    self.ranking.insert((group, rank), address);
                }
            }
        }
    }
}

impl Peer {
    fn leave(&mut self, activity: Activity) {
        match activity {
            Activity::Idle { since } => {
                self.idle.remove(&since);
            }
            Activity::Busy => {}
            Activity::Closing => self.closing -= 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn connections(max_open: usize, max_per_peer: usize) -> Arc<Connections> {
        Connections::new(max_open, max_per_peer, ["10.0.0.2".parse().unwrap()].into_iter().collect())
    }

    /// `None` if it waits for a slot.
    fn admit(connections: &Arc<Connections>, address: &str) -> Option<Option<ConnectionSlot>> {
        connections.admit(ip(address)).now_or_never()
    }

    fn admitted(connections: &Arc<Connections>, address: &str) -> ConnectionSlot {
        admit(connections, address).expect("a free slot").expect("within the share")
    }

    fn must_close(slot: &ConnectionSlot) -> bool {
        slot.must_close().now_or_never().is_some()
    }

    #[test]
    fn peer_at_its_share_loses_its_oldest_idle_connection() {
        let connections = connections(100, 2);
        let first = admitted(&connections, "2001:db8::1");
        let second = admitted(&connections, "2001:db8::2");
        first.request_started();
        first.request_ended();
        let other = admitted(&connections, "2001:db8:0:100::3");
        let third = admitted(&connections, "2001:db8::3");
        assert!(must_close(&second), "the same /56, and idle for longer than the first");
        assert!(!must_close(&first) && !must_close(&other) && !must_close(&third));
    }

    #[test]
    fn busy_connections_are_never_closed_for_a_newcomer() {
        let connections = connections(100, 2);
        let slots = [admitted(&connections, "192.0.2.1"), admitted(&connections, "192.0.2.1")];
        slots.iter().for_each(ConnectionSlot::request_started);
        assert!(admit(&connections, "192.0.2.1").is_some_and(|refused| refused.is_none()));
        assert!(slots.iter().all(|slot| !must_close(slot)));
        slots[1].request_ended();
        let _newcomer = admitted(&connections, "192.0.2.1");
        assert!(must_close(&slots[1]));
    }

    #[test]
    fn full_listener_closes_the_oldest_idle_of_the_largest_peer() {
        let connections = connections(4, 3);
        let small = admitted(&connections, "192.0.2.1");
        let mut large: Vec<_> = (0..3).map(|_| admitted(&connections, "192.0.2.2")).collect();
        large[0].request_started();
        assert!(admit(&connections, "192.0.2.3").is_none(), "its descriptors are not free yet");
        assert!(must_close(&large[1]) && !must_close(&small));
        assert!(admit(&connections, "192.0.2.3").is_none());
        assert!(!must_close(&large[2]), "one newcomer closes one connection");
        large.remove(1);
        let _newcomer = admitted(&connections, "192.0.2.3");
    }

    #[test]
    fn of_equal_peers_the_longest_idle_connection_is_closed() {
        let connections = connections(3, 3);
        let slots = ["192.0.2.9", "192.0.2.1", "192.0.2.5"].map(|peer| admitted(&connections, peer));
        assert!(admit(&connections, "192.0.2.7").is_none());
        assert_eq!([0, 1, 2].map(|index| must_close(&slots[index])), [true, false, false]);
    }

    #[tokio::test]
    async fn full_listener_waits_while_every_connection_is_busy() {
        let connections = connections(1, 1);
        let busy = admitted(&connections, "192.0.2.1");
        busy.request_started();
        let waiting = tokio::spawn({
            let connections = Arc::clone(&connections);
            async move { connections.admit(ip("192.0.2.2")).await.is_some() }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished() && !must_close(&busy));
        busy.request_ended();
        busy.must_close().await;
        drop(busy);
        assert!(waiting.await.unwrap());
    }

    #[test]
    fn request_that_comes_before_the_close_keeps_its_connection() {
        let connections = connections(2, 2);
        let slots = [admitted(&connections, "192.0.2.1"), admitted(&connections, "192.0.2.1")];
        assert!(admit(&connections, "192.0.2.2").is_none());
        slots[0].request_started();
        assert!(!must_close(&slots[0]));
        assert!(admit(&connections, "192.0.2.2").is_none());
        assert!(must_close(&slots[1]), "the next one is closed instead");
    }

    #[test]
    fn ipv6_site_has_four_shares_and_its_largest_peer_makes_way() {
        let connections = connections(100, 2);
        let large = [(); 2].map(|()| admitted(&connections, "2001:db8:0:100::1"));
        let peer = |number: usize| format!("2001:db8:0:{number}00::1");
        let mut small: Vec<_> = (2..8).map(|number| admitted(&connections, &peer(number))).collect();
        let elsewhere = admitted(&connections, "2001:db8:1:100::1");
        assert!(large.iter().chain(&small).all(|slot| !must_close(slot)), "within four shares");
        small.push(admitted(&connections, &peer(8)));
        assert!(must_close(&large[0]), "the oldest of the peer with the most connections");
        small.iter().chain(&large[1..]).for_each(ConnectionSlot::request_started);
        assert!(admit(&connections, &peer(9)).is_some_and(|rejected| rejected.is_none()));
        assert!(admit(&connections, "2001:db8:1:200::1").is_some_and(|slot| slot.is_some()));
        assert!(!must_close(&elsewhere));
    }

    #[test]
    fn request_whose_body_is_on_its_way_makes_way_after_idle_connections() {
        let connections = connections(100, 2);
        let slots = [admitted(&connections, "192.0.2.1"), admitted(&connections, "192.0.2.1")];
        slots[0].request_arriving();
        let _third = admitted(&connections, "192.0.2.1");
        assert!(must_close(&slots[1]) && !must_close(&slots[0]));
        let _fourth = admitted(&connections, "192.0.2.1");
        assert!(must_close(&slots[0]));
    }

    #[test]
    fn connections_of_a_peer_share_its_permits_for_extra_streams() {
        let connections = connections(100, 2);
        let slots = ["192.0.2.1", "192.0.2.1", "192.0.2.2", "10.0.0.2"]
            .map(|address| admitted(&connections, address));
        let permits = slots[0].extra_streams().unwrap();
        let _all = permits.try_acquire_many(2).unwrap();
        let left = slots.each_ref().map(|slot| slot.extra_streams().map(|left| left.available_permits()));
        assert_eq!(left, [Some(0), Some(0), Some(2), None]);
    }

    #[test]
    fn proxies_have_no_share_and_closed_connections_leave_nothing_behind() {
        let connections = connections(100, 2);
        let mut slots: Vec<_> = (0..5).map(|_| admitted(&connections, "10.0.0.2")).collect();
        assert!(slots.iter().all(|slot| !must_close(slot)));
        slots.extend((0..12).map(|number| admitted(&connections, &format!("2001:db8:0:{number}00::1"))));
        slots[0].request_started();
        slots[1].request_started();
        slots[1].request_ended();
        drop(slots);
        let registry = connections.lock();
        assert!(registry.connections.is_empty() && registry.peers.is_empty() && registry.ranking.is_empty());
        assert_eq!((registry.closing, registry.sites.len()), (0, 0));
    }
}
