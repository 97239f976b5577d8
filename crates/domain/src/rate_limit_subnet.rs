//! Which addresses count as one peer, wherever requests, attempts or connections are counted by address.

use std::net::{IpAddr, Ipv6Addr};

/// An IPv4 address by itself, also when it is written as IPv6; of an IPv6 address its /64, because one household or one
/// office has all of it.
pub fn rate_limit_subnet(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
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
    fn an_ipv6_address_counts_with_its_64_bit_network() {
        assert_eq!(subnet("2001:db8:1:2::1"), "2001:db8:1:2::");
        assert_eq!(subnet("2001:db8:1:2:ffff:ffff:ffff:ffff"), "2001:db8:1:2::");
        assert_ne!(subnet("2001:db8:1:2::1"), subnet("2001:db8:1:3::1"));
        assert_ne!(subnet("::1"), subnet("2001:db8::1"));
    }

    #[test]
    fn an_ipv4_address_counts_by_itself_also_when_it_is_mapped_into_ipv6() {
        assert_eq!(subnet("192.0.2.1"), "192.0.2.1");
        assert_eq!(subnet("::ffff:192.0.2.1"), "192.0.2.1");
        assert_ne!(subnet("::ffff:192.0.2.1"), subnet("::ffff:192.0.2.2"));
        assert_ne!(subnet("192.0.2.1"), subnet("192.0.2.2"));
    }
}
