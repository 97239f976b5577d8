//! The proxies in front of us that are believed when they say whom they speak for: single addresses, and networks for those
//! whose addresses change, as those of a cluster do.

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

    /// An IPv4 address counts however it is written.
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

/// `127.0.0.1`, `10.42.0.0/16` or the like. What is wrong with another text is said as the end of a sentence that begins with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyNetwork(IpNet);

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ProxyNetworkError {
    #[error("is not an IP address or a network; write it as \"127.0.0.1\" or \"10.42.0.0/16\"")]
    Unreadable,
    #[error("has bits behind the network's own; write it as \"{0}\"")]
    BitsBehind(IpNet),
    #[error("is everybody, and then anybody may say where they come from; name the proxies' own network")]
    Everybody,
}

impl FromStr for ProxyNetwork {
    type Err = ProxyNetworkError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self(address.to_canonical().into()));
        }
        let network: IpNet = text.parse().map_err(|_| ProxyNetworkError::Unreadable)?;
        match network {
            _ if network.prefix_len() == 0 => Err(ProxyNetworkError::Everybody),
            _ if network != network.trunc() => Err(ProxyNetworkError::BitsBehind(network.trunc())),
            _ => Ok(Self(network)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_itself_and_a_network_is_all_that_is_in_it() {
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
    fn what_cannot_be_meant_is_refused() {
        let refused = |text: &str| text.parse::<ProxyNetwork>().unwrap_err();
        assert_eq!(refused("10.42.1.0/16"), ProxyNetworkError::BitsBehind("10.42.0.0/16".parse().unwrap()));
        assert_eq!(refused("0.0.0.0/0"), ProxyNetworkError::Everybody);
        assert_eq!(refused("::/0"), ProxyNetworkError::Everybody);
        for text in ["proxy", "10.42.0.0/33", "10.42.0.0/", ""] {
            assert_eq!(refused(text), ProxyNetworkError::Unreadable, "{text}");
        }
    }
}
