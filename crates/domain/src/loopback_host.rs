//! Whether a host is this machine. Only names and addresses that can never be another machine count.

use std::net::IpAddr;

/// `host` is a name or an address as in a URL, IPv6 with or without brackets.
pub fn is_loopback_host(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    match address.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_localhost_and_loopback_addresses_are_this_machine() {
        for host in ["localhost", "LocalHost", "127.0.0.1", "127.9.8.7", "::1", "[::1]", "[::ffff:127.0.0.1]"]
        {
            assert!(is_loopback_host(host), "{host}");
        }
        for host in
            ["", "10.0.0.7", "0.0.0.0", "localhost.example.com", "127.0.0.1.example.com", "[::2]", "db"]
        {
            assert!(!is_loopback_host(host), "{host}");
        }
    }
}
