//! Which addresses a webhook may have. A URL is typed by a person, and its name resolves to whatever its owner says, so
//! only public addresses are allowed: a webhook must not reach this machine, its network or a cloud's metadata.
//! `webhooks.allow_private` lists the exceptions.

use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

/// IPv4 networks that are not public, by address and prefix length (the IANA special-purpose registry).
const SPECIAL_V4: &[(Ipv4Addr, u32)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 0, 2, 0), 24),
    (Ipv4Addr::new(192, 88, 99, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(198, 51, 100, 0), 24),
    (Ipv4Addr::new(203, 0, 113, 0), 24),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

/// IPv6 has public addresses in this network only. Mapped, translated, local and multicast addresses are outside.
const GLOBAL_V6: (Ipv6Addr, u32) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);
/// Networks inside it that are not public: protocol assignments with Teredo, documentation, and 6to4.
const SPECIAL_V6: &[(Ipv6Addr, u32)] = &[
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20),
];

fn is_in_v4(address: Ipv4Addr, (network, prefix): (Ipv4Addr, u32)) -> bool {
    (address.to_bits() ^ network.to_bits()) >> (32 - prefix) == 0
}

fn is_in_v6(address: Ipv6Addr, (network, prefix): (Ipv6Addr, u32)) -> bool {
    (address.to_bits() ^ network.to_bits()) >> (128 - prefix) == 0
}

/// An IPv4 address that is mapped into IPv6 is not public: nothing public needs it.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !SPECIAL_V4.iter().any(|network| is_in_v4(address, *network)),
        IpAddr::V6(address) => {
            is_in_v6(address, GLOBAL_V6) && !SPECIAL_V6.iter().any(|network| is_in_v6(address, *network))
        }
    }
}

/// `webhooks.allow_private`: networks that webhooks may reach although they are not public.
#[derive(Clone, Debug, Default)]
pub struct AllowedNetworks(Arc<[IpNet]>);

impl AllowedNetworks {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the address is listed. A mapped address is listed by its IPv4 address.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }

    pub(crate) fn allows(&self, address: IpAddr) -> bool {
        is_public(address) || self.contains(address)
    }
}

impl FromIterator<AllowedNetwork> for AllowedNetworks {
    fn from_iter<I: IntoIterator<Item = AllowedNetwork>>(networks: I) -> Self {
        Self(networks.into_iter().map(|AllowedNetwork(network)| network).collect())
    }
}

/// An address or network, such as `10.0.0.5` or `10.42.0.0/16`. Parse errors read as the end of a sentence that begins
/// with the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowedNetwork(IpNet);

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum AllowedNetworkError {
    #[error("is not an IP address or network; use \"10.0.0.5\" or \"10.42.0.0/16\"")]
    Invalid,
    #[error("has host bits set; use \"{0}\"")]
    HostBitsSet(IpNet),
}

impl FromStr for AllowedNetwork {
    type Err = AllowedNetworkError;

    fn from_str(text: &str) -> Result<Self, AllowedNetworkError> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self(address.to_canonical().into()));
        }
        let network: IpNet = text.parse().map_err(|_| AllowedNetworkError::Invalid)?;
        match network == network.trunc() {
            true => Ok(Self(network)),
            false => Err(AllowedNetworkError::HostBitsSet(network.trunc())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_public_addresses_are_allowed_by_default() {
        let allowed = AllowedNetworks::default();
        for public in
            ["1.1.1.1", "8.8.8.8", "100.63.255.255", "172.32.0.1", "223.255.255.255", "2606:4700::1111"]
        {
            assert!(allowed.allows(public.parse().unwrap()), "{public}");
        }
        for rejected in [
            "0.0.0.0",
            "10.0.0.1",
            "100.64.0.1",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.1",
            "192.0.2.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "203.0.113.9",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::ffff:127.0.0.1",
            "::ffff:8.8.8.8",
            "64:ff9b::7f00:1",
            "64:ff9b::808:808",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "3fff::1",
            "fc00::1",
            "fd12:3456::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!allowed.allows(rejected.parse().unwrap()), "{rejected}");
        }
    }

    #[test]
    fn listed_networks_are_allowed_and_no_others() {
        let allowed: AllowedNetworks =
            ["127.0.0.1", "10.42.0.0/16", "fd00::/8"].map(|text| text.parse().unwrap()).into_iter().collect();
        for inside in ["127.0.0.1", "::ffff:127.0.0.1", "10.42.255.1", "fd12::1", "1.1.1.1"] {
            assert!(allowed.allows(inside.parse().unwrap()), "{inside}");
        }
        for outside in ["127.0.0.2", "10.43.0.1", "fc00::1", "::1", "169.254.169.254"] {
            assert!(!allowed.allows(outside.parse().unwrap()), "{outside}");
        }
        assert!(!allowed.contains("1.1.1.1".parse().unwrap()), "public, and not listed");
    }

    #[test]
    fn invalid_networks_are_rejected_with_the_fix() {
        let rejected = |text: &str| text.parse::<AllowedNetwork>().unwrap_err();
        for text in ["", "localhost", "10.0.0.0/33", "10.0.0.0/"] {
            assert_eq!(rejected(text), AllowedNetworkError::Invalid, "{text}");
        }
        let fixed = AllowedNetworkError::HostBitsSet("10.42.0.0/16".parse().unwrap());
        assert_eq!(rejected("10.42.1.0/16"), fixed);
    }
}
