//! Where the limits are kept. Neither `Debug` nor any error of this type shows a password.

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use std::fmt;
use std::str::FromStr;

/// `memory`, `redis://…` or `rediss://…` (TLS).
#[derive(Clone)]
pub enum LimitStoreUrl {
    Memory,
    Redis(Box<ConnectionInfo>),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitStoreUrlError {
    #[error(
        "limits are kept in \"memory\", for one node, or at \"redis://HOST:PORT/NUMBER\" (rediss:// for TLS), for many"
    )]
    UnknownPlace,
    /// The parser's own words could quote the URL, and with it the password.
    #[error(
        "the Redis URL has a part that cannot be read; it is redis://USER:PASSWORD@HOST:PORT/NUMBER, and a special character in the password is written as %XX"
    )]
    Unreadable,
    #[error("a connection without certificate checks is not made; remove `#insecure`")]
    Insecure,
}

impl FromStr for LimitStoreUrl {
    type Err = LimitStoreUrlError;

    fn from_str(text: &str) -> Result<Self, LimitStoreUrlError> {
        if text == "memory" {
            return Ok(Self::Memory);
        }
        if !text.starts_with("redis://") && !text.starts_with("rediss://") {
            return Err(LimitStoreUrlError::UnknownPlace);
        }
        if text.ends_with("#insecure") {
            return Err(LimitStoreUrlError::Insecure);
        }
        let place = text.into_connection_info().map_err(|_| LimitStoreUrlError::Unreadable)?;
        Ok(Self::Redis(Box::new(place)))
    }
}

impl fmt::Display for LimitStoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Redis(place) = self else { return f.write_str("memory") };
        let number = place.redis_settings().db();
        match place.addr() {
            ConnectionAddr::Tcp(host, port) => write!(f, "redis://{host}:{port}/{number}"),
            ConnectionAddr::TcpTls { host, port, .. } => write!(f, "rediss://{host}:{port}/{number}"),
            other => write!(f, "{other}"),
        }
    }
}

impl fmt::Debug for LimitStoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_shown_without_its_password() {
        for (text, shown) in [
            ("memory", "memory"),
            ("redis://127.0.0.1", "redis://127.0.0.1:6379/0"),
            ("redis://:p%40ss@cache.example.com:6380/3", "redis://cache.example.com:6380/3"),
            ("rediss://u:secret@h/1", "rediss://h:6379/1"),
        ] {
            let url: LimitStoreUrl = text.parse().unwrap();
            assert_eq!((url.to_string(), format!("{url:?}")), (shown.to_owned(), shown.to_owned()));
        }
    }

    #[test]
    fn a_url_that_cannot_be_used_is_refused_without_being_repeated() {
        for (text, expected) in [
            ("Memory", LimitStoreUrlError::UnknownPlace),
            ("", LimitStoreUrlError::UnknownPlace),
            ("postgres://secret@h", LimitStoreUrlError::UnknownPlace),
            ("redis://:secret@", LimitStoreUrlError::Unreadable),
            ("redis://:secret@h:port", LimitStoreUrlError::Unreadable),
            ("redis://:secret@h/first", LimitStoreUrlError::Unreadable),
            ("rediss://:secret@h/#insecure", LimitStoreUrlError::Insecure),
        ] {
            let error = text.parse::<LimitStoreUrl>().unwrap_err();
            assert_eq!(error, expected, "{text}");
            assert!(!error.to_string().contains("secret"));
        }
    }
}
