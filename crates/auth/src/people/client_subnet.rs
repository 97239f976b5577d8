//! The network that a request comes from, for throttling.

use axum::extract::{ConnectInfo, FromRequestParts};
use axum::http::request::Parts;
use chancery_domain::rate_limit_subnet;
use chancery_web::ErrorPage;
use std::net::{IpAddr, SocketAddr};

/// A subnet, see `rate_limit_subnet`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientSubnet(pub IpAddr);

impl ClientSubnet {
    pub(crate) fn of(address: IpAddr) -> Self {
        Self(rate_limit_subnet(address))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for ClientSubnet {
    type Rejection = ErrorPage;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ErrorPage> {
        let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>();
        // Without the peer address, attempts cannot be throttled, so reject the request.
        let ConnectInfo(peer) = peer.ok_or_else(|| ErrorPage::internal("missing peer address"))?;
        Ok(Self::of(peer.ip()))
    }
}
