//! Where a request comes from, when a proxy stands in front: the proxy says so, and only the proxy is believed.

use crate::trusted_proxies::TrustedProxies;
use axum::extract::{ConnectInfo, Request};
use axum::http::{HeaderMap, HeaderValue};
use std::net::{IpAddr, SocketAddr};

/// Puts the browser's address in the place of a trusted proxy's.
pub(crate) fn correct(request: &mut Request, trusted: &TrustedProxies) {
    let Some(ConnectInfo(peer)) = request.extensions().get::<ConnectInfo<SocketAddr>>().copied() else {
        return;
    };
    if let Some(address) = forwarded_for(peer.ip(), request.headers(), trusted) {
        request.extensions_mut().insert(ConnectInfo(SocketAddr::new(address, 0)));
    }
}

/// Each proxy adds whom it spoke to at the end, so the last that is no proxy of ours is the one; what stands before it
/// anybody may have written.
fn forwarded_for(peer: IpAddr, headers: &HeaderMap, trusted: &TrustedProxies) -> Option<IpAddr> {
    let is_trusted = |address: IpAddr| trusted.contains(address);
    if !is_trusted(peer) {
        return None;
    }
    let lines = headers.get_all("x-forwarded-for").iter().map(HeaderValue::as_bytes);
    let parts = lines.flat_map(|line| line.split(|byte| *byte == b','));
    let addresses: Vec<Option<IpAddr>> =
        parts.map(|part| std::str::from_utf8(part).ok()?.trim().parse().ok()).collect();
    // One that cannot be read ends the search: what stands before it is no better.
    addresses.into_iter().rev().find(|address| address.is_none_or(|address| !is_trusted(address))).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_trusted_proxy_is_believed_and_only_what_it_added_itself() {
        let trusted: TrustedProxies =
            ["127.0.0.1", "10.0.0.0/30"].map(|text| text.parse().unwrap()).into_iter().collect();
        let asked = |peer: &str, lines: &[&str]| {
            let line =
                |line: &&str| ("x-forwarded-for".parse().unwrap(), HeaderValue::from_str(line).unwrap());
            let headers: HeaderMap = lines.iter().map(line).collect();
            forwarded_for(peer.parse().unwrap(), &headers, &trusted).map(|address| address.to_string())
        };
        let found = |address: &str| Some(address.to_owned());
        assert_eq!(asked("127.0.0.1", &["198.51.100.7"]), found("198.51.100.7"));
        assert_eq!(asked("::ffff:127.0.0.1", &["198.51.100.7"]), found("198.51.100.7"));
        assert_eq!(
            asked("127.0.0.1", &["203.0.113.9, 198.51.100.7"]),
            found("198.51.100.7"),
            "the first is a lie"
        );
        assert_eq!(asked("127.0.0.1", &["203.0.113.9", "198.51.100.7, 10.0.0.2"]), found("198.51.100.7"));
        assert_eq!(asked("198.51.100.7", &["203.0.113.9"]), None, "a stranger says what it likes");
        assert_eq!(asked("127.0.0.1", &["203.0.113.9, junk"]), None);
        assert_eq!(asked("127.0.0.1", &[]), None);
        let mixed = HeaderValue::from_bytes(b"\xff, 198.51.100.7").unwrap();
        let mixed = HeaderMap::from_iter([("x-forwarded-for".parse().unwrap(), mixed)]);
        let proxy = "127.0.0.1".parse().unwrap();
        assert_eq!(forwarded_for(proxy, &mixed, &trusted), "198.51.100.7".parse().ok(), "junk hides nothing");
    }
}
