//! The URL of the limit store. Neither `Debug` nor any error of this type shows a password.

use chancery_domain::is_loopback_host;
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
    #[error("must be \"memory\" (one node) or \"redis://HOST:PORT/DB\" (rediss:// for TLS; several nodes)")]
    UnknownStore,
    /// The parser's own message could quote the URL, and with it the password.
    #[error(
        "invalid Redis URL; use redis://USER:PASSWORD@HOST:PORT/DB, with special characters in the password percent-encoded (%XX)"
    )]
    Malformed,
    #[error("`#insecure` is not allowed; remove it")]
    Insecure,
}

impl LimitStoreUrl {
    /// The host, if it is another machine and the URL has no TLS.
    pub fn cleartext_host(&self) -> Option<&str> {
        let Self::Redis(info) = self else { return None };
        match info.addr() {
            ConnectionAddr::Tcp(host, _) if !is_loopback_host(host) => Some(host),
            _ => None,
        }
    }
}

impl FromStr for LimitStoreUrl {
    type Err = LimitStoreUrlError;

    fn from_str(text: &str) -> Result<Self, LimitStoreUrlError> {
        if text == "memory" {
            return Ok(Self::Memory);
        }
        if !text.starts_with("redis://") && !text.starts_with("rediss://") {
            return Err(LimitStoreUrlError::UnknownStore);
        }
        if text.ends_with("#insecure") {
            return Err(LimitStoreUrlError::Insecure);
        }
        let info = text.into_connection_info().map_err(|_| LimitStoreUrlError::Malformed)?;
        Ok(Self::Redis(Box::new(info)))
    }
}

impl fmt::Display for LimitStoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Redis(info) = self else { return f.write_str("memory") };
        let number = info.redis_settings().db();
        match info.addr() {
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
    fn limit_store_url_display_hides_the_password() {
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
    fn invalid_limit_store_url_error_does_not_repeat_the_url() {
        for (text, expected) in [
            ("Memory", LimitStoreUrlError::UnknownStore),
            ("", LimitStoreUrlError::UnknownStore),
            ("postgres://secret@h", LimitStoreUrlError::UnknownStore),
            ("redis://:secret@", LimitStoreUrlError::Malformed),
            ("redis://:secret@h:port", LimitStoreUrlError::Malformed),
            ("redis://:secret@h/first", LimitStoreUrlError::Malformed),
            ("rediss://:secret@h/#insecure", LimitStoreUrlError::Insecure),
        ] {
            let error = text.parse::<LimitStoreUrl>().unwrap_err();
            assert_eq!(error, expected, "{text}");
            assert!(!error.to_string().contains("secret"));
        }
    }
}
