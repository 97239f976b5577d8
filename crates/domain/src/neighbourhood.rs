//! Which addresses count as one place: where tries are counted, and places at a listener.

use std::net::{IpAddr, Ipv6Addr};

/// An IPv4 address by itself, however it is written; of an IPv6 address the network of 64 bits, for one household or one
/// office has all of it.
pub fn neighbourhood(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_network_of_ipv6_is_one_place_and_ipv4_is_the_same_however_it_is_written() {
        let place = |text: &str| neighbourhood(text.parse().unwrap());
        assert_eq!(place("2001:db8:1:2::1"), place("2001:db8:1:2:ffff:ffff:ffff:ffff"));
        assert_ne!(place("2001:db8:1:2::1"), place("2001:db8:1:3::1"));
        assert_eq!(place("192.0.2.1"), place("::ffff:192.0.2.1"));
        assert_ne!(place("192.0.2.1"), place("192.0.2.2"));
    }
}
