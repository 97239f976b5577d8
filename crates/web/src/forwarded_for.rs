//! The address of the browser or caller behind a proxy. Only trusted proxies are believed.

use crate::trusted_proxies::TrustedProxies;
use axum::extract::{ConnectInfo, Request};
use axum::http::{HeaderMap, HeaderValue};
use std::net::{IpAddr, SocketAddr};

/// Replaces a trusted proxy's address with that of the browser or caller.
pub fn apply_forwarded_for(request: &mut Request, trusted: &TrustedProxies) {
    let Some(ConnectInfo(peer)) = request.extensions().get::<ConnectInfo<SocketAddr>>().copied() else {
        return;
    };
    if let Some(address) = forwarded_for(peer.ip(), request.headers(), trusted) {
        request.extensions_mut().insert(ConnectInfo(SocketAddr::new(address, 0)));
    }
}

/// Each proxy appends its peer's address, so the last address that is not a trusted proxy is the browser. Anyone can forge
/// those before it.
fn forwarded_for(peer: IpAddr, headers: &HeaderMap, trusted: &TrustedProxies) -> Option<IpAddr> {
    let is_trusted = |address: IpAddr| trusted.contains(address);
    if !is_trusted(peer) {
        return None;
    }
    let lines = headers.get_all("x-forwarded-for").iter().map(HeaderValue::as_bytes);
    let parts = lines.flat_map(|line| line.split(|byte| *byte == b','));
    let addresses: Vec<Option<IpAddr>> =
        parts.map(|part| std::str::from_utf8(part).ok()?.trim().parse().ok()).collect();
    // An unreadable address ends the search: those before it are no more trustworthy.
    addresses.into_iter().rev().find(|address| address.is_none_or(|address| !is_trusted(address))).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwarded_for_counts_only_from_trusted_proxies() {
        let trusted: TrustedProxies =
            ["127.0.0.1", "10.0.0.0/30"].map(|text| text.parse().unwrap()).into_iter().collect();
        let resolved = |peer: &str, lines: &[&str]| {
            let line =
                |line: &&str| ("x-forwarded-for".parse().unwrap(), HeaderValue::from_str(line).unwrap());
            let headers: HeaderMap = lines.iter().map(line).collect();
            forwarded_for(peer.parse().unwrap(), &headers, &trusted).map(|address| address.to_string())
        };
        let found = |address: &str| Some(address.to_owned());
        assert_eq!(resolved("127.0.0.1", &["198.51.100.7"]), found("198.51.100.7"));
        assert_eq!(resolved("::ffff:127.0.0.1", &["198.51.100.7"]), found("198.51.100.7"));
        assert_eq!(
            resolved("127.0.0.1", &["203.0.113.9, 198.51.100.7"]),
            found("198.51.100.7"),
            "the first is a lie"
        );
        assert_eq!(resolved("127.0.0.1", &["203.0.113.9", "198.51.100.7, 10.0.0.2"]), found("198.51.100.7"));
        assert_eq!(resolved("198.51.100.7", &["203.0.113.9"]), None, "a stranger says what it likes");
        assert_eq!(resolved("127.0.0.1", &["203.0.113.9, junk"]), None);
        assert_eq!(resolved("127.0.0.1", &[]), None);
        let mixed = HeaderValue::from_bytes(b"\xff, 198.51.100.7").unwrap();
        let mixed = HeaderMap::from_iter([("x-forwarded-for".parse().unwrap(), mixed)]);
        let proxy = "127.0.0.1".parse().unwrap();
        assert_eq!(forwarded_for(proxy, &mixed, &trusted), "198.51.100.7".parse().ok(), "junk hides nothing");
    }
}
