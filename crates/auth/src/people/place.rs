//! Where a request comes from, as far as tries are counted by it.

use axum::extract::{ConnectInfo, FromRequestParts};
use axum::http::request::Parts;
use chancery_pages::Refusal;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// An IPv4 address, or the 64 bits of an IPv6 address that one household or office has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(pub IpAddr);

impl Place {
    pub(crate) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(v6) => {
                let network = u128::from(v6) & !u128::from(u64::MAX);
                Self(IpAddr::V6(Ipv6Addr::from(network)))
            }
            v4 => Self(v4),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Place {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>();
        // Without it tries could not be counted, and so there must be none.
        let ConnectInfo(peer) =
            peer.ok_or_else(|| Refusal::internal("the listener did not say who is connected"))?;
        Ok(Self::of(peer.ip()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_network_of_ipv6_is_one_place_and_ipv4_is_the_same_however_it_is_written() {
        let place = |text: &str| Place::of(text.parse().unwrap());
        assert_eq!(place("2001:db8:1:2::1"), place("2001:db8:1:2:ffff:ffff:ffff:ffff"));
        assert_ne!(place("2001:db8:1:2::1"), place("2001:db8:1:3::1"));
        assert_eq!(place("192.0.2.1"), place("::ffff:192.0.2.1"));
        assert_ne!(place("192.0.2.1"), place("192.0.2.2"));
    }
}
