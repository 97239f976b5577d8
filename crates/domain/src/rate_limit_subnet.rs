//! Defines which addresses count as one peer wherever requests, attempts or connections are limited by address.

use std::net::{IpAddr, Ipv6Addr};

/// Of an IPv6 address, behind the /56.
const HOST_BITS: u32 = 128 - 56;

/// An IPv4 address counts by itself, also when it is IPv4-mapped. An IPv6 address counts as its /56: that is what a household
/// or office gets, so one attacker has 256 networks of /64.
pub fn rate_limit_subnet(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> HOST_BITS << HOST_BITS)),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subnet(text: &str) -> String {
        rate_limit_subnet(text.parse().unwrap()).to_string()
    }

    #[test]
    fn ipv6_counts_by_its_56_prefix() {
        assert_eq!(subnet("2001:db8:1:200::1"), "2001:db8:1:200::");
        assert_eq!(subnet("2001:db8:1:2ff:ffff:ffff:ffff:ffff"), "2001:db8:1:200::");
        assert_ne!(subnet("2001:db8:1:200::1"), subnet("2001:db8:1:300::1"));
        assert_ne!(subnet("::1"), subnet("2001:db8::1"));
    }

    #[test]
    fn ipv4_counts_alone_even_when_ipv6_mapped() {
        assert_eq!(subnet("192.0.2.1"), "192.0.2.1");
        assert_eq!(subnet("::ffff:192.0.2.1"), "192.0.2.1");
        assert_ne!(subnet("::ffff:192.0.2.1"), subnet("::ffff:192.0.2.2"));
        assert_ne!(subnet("192.0.2.1"), subnet("192.0.2.2"));
    }
}
