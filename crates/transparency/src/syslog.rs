//! Checkpoints as syslog messages: to the local socket, as syslog daemons read it there, or by UDP (RFC 5424).

use chancery_domain::UnixMillis;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use tokio::net::{UdpSocket, UnixDatagram};

/// Security messages (10), at the level "notice" (5).
const PRIORITY: u8 = 10 * 8 + 5;

/// Where messages go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyslogAddress {
    /// The socket of the local daemon.
    Local(PathBuf),
    /// `HOST:PORT`.
    Udp(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("use the path of a socket, such as /dev/log, or udp://HOST:PORT")]
pub struct SyslogAddressError;

impl FromStr for SyslogAddress {
    type Err = SyslogAddressError;

    fn from_str(text: &str) -> Result<Self, SyslogAddressError> {
        if text.starts_with('/') {
            return Ok(Self::Local(text.into()));
        }
        let target = text.strip_prefix("udp://").ok_or(SyslogAddressError)?;
        let (host, port) = target.rsplit_once(':').ok_or(SyslogAddressError)?;
        let is_valid =
            !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok_and(|port| port > 0);
        if is_valid { Ok(Self::Udp(target.to_owned())) } else { Err(SyslogAddressError) }
    }
}

impl fmt::Display for SyslogAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(path) => path.display().fmt(f),
            Self::Udp(target) => write!(f, "udp://{target}"),
        }
    }
}

impl SyslogAddress {
    pub(crate) async fn send(&self, text: &str, now: UnixMillis) -> std::io::Result<()> {
        let process = std::process::id();
        match self {
            Self::Local(path) => {
                let message = format!("<{PRIORITY}>chancery[{process}]: {text}");
                UnixDatagram::unbound()?.send_to(message.as_bytes(), path).await?;
            }
            Self::Udp(target) => {
                let time = now.to_iso();
                let message = format!("<{PRIORITY}>1 {time} - chancery {process} checkpoint - {text}");
                let found = tokio::net::lookup_host(target).await?.next();
                let target = found.ok_or_else(|| std::io::Error::other("the name has no address"))?;
                let local: SocketAddr = match target {
                    SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
                    SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
                };
                UdpSocket::bind(local).await?.send_to(message.as_bytes(), target).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: UnixMillis = UnixMillis(1_794_744_000_000);

    #[test]
    fn address_is_a_socket_or_a_udp_target() {
        assert_eq!("/dev/log".parse(), Ok(SyslogAddress::Local("/dev/log".into())));
        assert_eq!("udp://[::1]:514".parse(), Ok(SyslogAddress::Udp("[::1]:514".to_owned())));
        for text in ["", "dev/log", "udp://", "udp://host", "udp://host:0", "udp://:514", "tcp://host:514"] {
            assert_eq!(text.parse::<SyslogAddress>(), Err(SyslogAddressError), "{text}");
        }
        assert_eq!(
            "udp://log.example.com:514".parse::<SyslogAddress>().unwrap().to_string(),
            "udp://log.example.com:514"
        );
    }

    #[tokio::test]
    async fn local_socket_gets_one_datagram() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let daemon = UnixDatagram::bind(&path).unwrap();
        SyslogAddress::Local(path).send("checkpoint", NOON).await.unwrap();
        let mut buffer = [0; 200];
        let length = daemon.recv(&mut buffer).await.unwrap();
        let expected = format!("<85>chancery[{}]: checkpoint", std::process::id());
        assert_eq!(std::str::from_utf8(&buffer[..length]).unwrap(), expected);
    }

    #[tokio::test]
    async fn udp_target_gets_a_message_of_rfc_5424() {
        let daemon = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = SyslogAddress::Udp(daemon.local_addr().unwrap().to_string());
        address.send("checkpoint", NOON).await.unwrap();
        let mut buffer = [0; 200];
        let length = daemon.recv(&mut buffer).await.unwrap();
        let text = std::str::from_utf8(&buffer[..length]).unwrap();
        assert!(text.starts_with("<85>1 2026-11-15T12:00:00.000Z - chancery "), "{text}");
        assert!(text.ends_with(" checkpoint - checkpoint"), "{text}");
    }
}
