//! Where a request comes from, as far as tries are counted by it.

use axum::extract::{ConnectInfo, FromRequestParts};
use axum::http::request::Parts;
use chancery_domain::rate_limit_subnet;
use chancery_web::ErrorPage;
use std::net::{IpAddr, SocketAddr};

/// A subnet of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(pub IpAddr);

impl Place {
    pub(crate) fn of(address: IpAddr) -> Self {
        Self(rate_limit_subnet(address))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Place {
    type Rejection = ErrorPage;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ErrorPage> {
        let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>();
        // Without it tries could not be counted, and so there must be none.
        let ConnectInfo(peer) =
            peer.ok_or_else(|| ErrorPage::internal("the listener did not say who is connected"))?;
        Ok(Self::of(peer.ip()))
    }
}
