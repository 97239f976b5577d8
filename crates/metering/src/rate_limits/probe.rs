//! Whether the limit store answers, for a server that starts: one that cannot be reached may come up later, one that rejects us
//! will do so again.

use super::{LimitStoreUrl, RedisLimiter};
use ::redis::RedisError;
use chancery_domain::Clock;
use std::error::Error;
use std::io;
use std::sync::Arc;

/// The texts contain no password.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LimitStoreProbeError {
    #[error("Redis at {location} is not reachable: {why}")]
    Unreachable { location: String, why: String },
    #[error(
        "Redis at {location} rejects the connection: {why}; check the user and password in `limits.store`"
    )]
    Rejected { location: String, why: String },
}

/// Connects once and runs a script. Memory is always there.
pub async fn probe_limit_store(
    url: &LimitStoreUrl,
    clock: Arc<dyn Clock>,
) -> Result<(), LimitStoreProbeError> {
    let LimitStoreUrl::Redis(info) = url else { return Ok(()) };
    RedisLimiter::new(info, clock).probe().await.map_err(|error| {
        let (location, why) = (url.to_string(), error.to_string());
        match is_unreachable(&error) {
            true => LimitStoreProbeError::Unreachable { location, why },
            false => LimitStoreProbeError::Rejected { location, why },
        }
    })
}

/// Whether the failure may pass by itself: the server is not up, not found, or still loads its data.
fn is_unreachable(error: &RedisError) -> bool {
    if error.is_io_error() {
        // A certificate that is rejected is invalid data.
        return io_error_kind(error) != Some(io::ErrorKind::InvalidData);
    }
    matches!(error.code(), Some("LOADING" | "TRYAGAIN" | "CLUSTERDOWN" | "MASTERDOWN"))
}

/// The client library shares its causes.
fn io_error_kind(error: &RedisError) -> Option<io::ErrorKind> {
    let cause = error.source()?.downcast_ref::<Arc<dyn Error + Send + Sync>>()?;
    Some(cause.downcast_ref::<io::Error>()?.kind())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::redis::ErrorKind;

    #[test]
    fn only_failures_that_may_pass_are_unreachable() {
        for kind in [io::ErrorKind::ConnectionRefused, io::ErrorKind::TimedOut, io::ErrorKind::UnexpectedEof]
        {
            assert!(is_unreachable(&io::Error::from(kind).into()), "{kind:?}");
        }
        assert!(!is_unreachable(&io::Error::from(io::ErrorKind::InvalidData).into()), "a wrong certificate");
        for kind in [ErrorKind::AuthenticationFailed, ErrorKind::InvalidClientConfig] {
            assert!(!is_unreachable(&RedisError::from((kind, "refused"))), "{kind:?}");
        }
    }
}
