//! Proxies whose `X-Forwarded-For` is trusted: single addresses, and networks for proxies with changing addresses, such as those in
//! a cluster.

use ipnet::IpNet;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

#[derive(Clone, Debug, Default)]
pub struct TrustedProxies(Arc<[IpNet]>);

impl TrustedProxies {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Matches IPv4-mapped IPv6 addresses too.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }
}

impl FromIterator<ProxyNetwork> for TrustedProxies {
    fn from_iter<I: IntoIterator<Item = ProxyNetwork>>(networks: I) -> Self {
        Self(networks.into_iter().map(|ProxyNetwork(network)| network).collect())
    }
}

/// An address or network, such as `127.0.0.1` or `10.42.0.0/16`. Parse errors read as the end of a sentence that begins with the
/// input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyNetwork(IpNet);

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ProxyNetworkError {
    #[error("is not an IP address or network; use \"127.0.0.1\" or \"10.42.0.0/16\"")]
    Invalid,
    #[error("has host bits set; use \"{0}\"")]
    HostBitsSet(IpNet),
    #[error("matches every address, so any client could forge its address; use the proxies' network")]
    AllAddresses,
}

impl FromStr for ProxyNetwork {
    type Err = ProxyNetworkError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self(address.to_canonical().into()));
        }
        let network: IpNet = text.parse().map_err(|_| ProxyNetworkError::Invalid)?;
        match network {
            _ if network.prefix_len() == 0 => Err(ProxyNetworkError::AllAddresses),
            _ if network != network.trunc() => Err(ProxyNetworkError::HostBitsSet(network.trunc())),
            _ => Ok(Self(network)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trusted_networks_contain_their_addresses() {
        let proxies: TrustedProxies = ["::ffff:192.0.2.1", "10.42.0.0/16", "2001:db8::/48"]
            .map(|text| text.parse().unwrap())
            .into_iter()
            .collect();
        let contains = |text: &str| proxies.contains(text.parse().unwrap());
        for inside in ["192.0.2.1", "10.42.0.0", "10.42.255.255", "::ffff:10.42.1.2", "2001:db8:0:ffff::1"] {
            assert!(contains(inside), "{inside}");
        }
        for outside in ["192.0.2.2", "10.43.0.0", "10.41.255.255", "2001:db8:1::1", "::1"] {
            assert!(!contains(outside), "{outside}");
        }
        assert!(
            !TrustedProxies::default().contains("127.0.0.1".parse().unwrap()),
            "nobody is believed by default"
        );
    }

    #[test]
    fn invalid_proxy_networks_are_rejected() {
        let rejected = |text: &str| text.parse::<ProxyNetwork>().unwrap_err();
        assert_eq!(rejected("10.42.1.0/16"), ProxyNetworkError::HostBitsSet("10.42.0.0/16".parse().unwrap()));
        assert_eq!(rejected("0.0.0.0/0"), ProxyNetworkError::AllAddresses);
        assert_eq!(rejected("::/0"), ProxyNetworkError::AllAddresses);
        for text in ["proxy", "10.42.0.0/33", "10.42.0.0/", ""] {
            assert_eq!(rejected(text), ProxyNetworkError::Invalid, "{text}");
        }
    }
}
