//! How email is delivered: `mail.smtp` is a URL; without one, email goes to the outbox.

use std::fmt;
use std::path::PathBuf;

#[derive(Clone, PartialEq, Eq)]
pub enum MailRoute {
    Outbox(PathBuf),
    /// A URL in lettre's format, with TLS stated explicitly.
    Smtp(String),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MailRouteError {
    #[error("use `smtps://USER:PASSWORD@HOST` (implicit TLS) or `smtp://USER:PASSWORD@HOST:587` (STARTTLS)")]
    NotSmtp,
    #[error(
        "unknown parameter after `smtp://HOST`; use `?tls=required`, `?tls=opportunistic`, or `?tls=none` for a local server"
    )]
    Parameter,
    #[error("invalid mail server URL: {0}")]
    Invalid(String),
}

impl MailRoute {
    /// Requires TLS by default, so that an incomplete URL never sends a password in the clear: `smtp://` means STARTTLS, unless
    /// the server is on this machine or the URL says `?tls=opportunistic`.
    pub fn smtp(text: &str) -> Result<Self, MailRouteError> {
        let (address, tls) = match text.split_once('?') {
            None => (text, None),
            Some((address, query)) => {
                (address, Some(query.strip_prefix("tls=").ok_or(MailRouteError::Parameter)?))
            }
        };
        let (is_plain, rest) = match (address.strip_prefix("smtp://"), address.strip_prefix("smtps://")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            (None, None) => return Err(MailRouteError::NotSmtp),
        };
        if rest.is_empty() {
            return Err(MailRouteError::NotSmtp);
        }
        let url = match (is_plain, tls) {
            (false, None) => address.to_owned(),
            (true, Some("required" | "opportunistic")) => text.to_owned(),
            // A local mail server seldom has a certificate that could be verified.
            (true, None | Some("none")) if is_on_this_machine(rest) => address.to_owned(),
            (true, None) => format!("{address}?tls=required"),
            _ => return Err(MailRouteError::Parameter),
        };
        Ok(Self::Smtp(url))
    }
}

fn is_on_this_machine(rest: &str) -> bool {
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    ["localhost", "127.0.0.1", "[::1]"]
        .iter()
        .any(|local| host.strip_prefix(local).is_some_and(|port| port.is_empty() || port.starts_with(':')))
}

/// Omits the password.
impl fmt::Display for MailRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Outbox(folder) => write!(f, "{}", folder.display()),
            Self::Smtp(url) => {
                let (scheme, rest) = url.split_once("://").unwrap_or(("smtp", url));
                let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
                write!(f, "{scheme}://{host}")
            }
        }
    }
}

impl fmt::Debug for MailRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MailRoute({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_mail_servers_require_tls() {
        for (text, url) in [
            ("smtp://mail.example.com:587", "smtp://mail.example.com:587?tls=required"),
            ("smtp://u:p@mail.example.com", "smtp://u:p@mail.example.com?tls=required"),
            ("smtps://mail.example.com", "smtps://mail.example.com"),
            ("smtp://127.0.0.1:2525", "smtp://127.0.0.1:2525"),
            ("smtp://localhost?tls=none", "smtp://localhost"),
            ("smtp://localhost?tls=required", "smtp://localhost?tls=required"),
            ("smtp://localhost.evil.example", "smtp://localhost.evil.example?tls=required"),
            ("smtp://mail.example.com?tls=opportunistic", "smtp://mail.example.com?tls=opportunistic"),
        ] {
            assert_eq!(MailRoute::smtp(text), Ok(MailRoute::Smtp(url.to_owned())));
        }
        for text in [
            "smtp://u:p@mail.example.com?starttls=required",
            "smtp://mail.example.com?tls=none",
            "smtp://mail.example.com?tls=required&x=y",
            "smtps://mail.example.com?tls=none",
        ] {
            assert_eq!(MailRoute::smtp(text), Err(MailRouteError::Parameter), "{text}");
        }
        for text in ["", "mail.example.com", "http://mail.example.com", "smtp://"] {
            assert_eq!(MailRoute::smtp(text), Err(MailRouteError::NotSmtp), "{text}");
        }
    }

    #[test]
    fn mail_route_display_hides_the_password() {
        let route = MailRoute::smtp("smtps://firm:hunter2@mail.example.com").unwrap();
        assert_eq!(route.to_string(), "smtps://mail.example.com");
        assert!(!format!("{route:?}").contains("hunter2"));
    }
}
