//! The sender of a request, as far as connection and headers tell: enough for people to recognise their own sessions.

use crate::sign_in::session_cookie::sent_session;
use crate::sign_in::sign_out_cookies::ASK_AGAIN_COOKIE;
use axum::extract::{ConnectInfo, FromRequestParts};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use chancery_domain::{EventOrigin, RequestId, TokenHash, UnixMillis};
use chancery_web::{CookieLookup, ErrorPage, find_cookie};
use std::net::{IpAddr, SocketAddr};

#[derive(Clone, Debug)]
pub(crate) struct Visitor {
    /// An IP address.
    pub(crate) ip_address: String,
    /// Such as `Firefox on Linux`.
    pub(crate) browser: String,
    /// The session token that the browser sent, unverified.
    pub(crate) session: Option<TokenHash>,
    /// Someone signed out of the portal in this browser, and perhaps not at the identity provider.
    pub(crate) must_ask_again: bool,
    pub(crate) ip: Option<IpAddr>,
    pub(crate) request_id: RequestId,
}

impl Visitor {
    /// Origin of the audit events of this request.
    pub(crate) fn origin(&self, at: UnixMillis) -> EventOrigin {
        EventOrigin { ip: self.ip, at, request_id: self.request_id.clone() }
    }
}

/// Rejects a browser that sends two session cookies, before anything is consumed or attempted for it.
impl<S: Send + Sync> FromRequestParts<S> for Visitor {
    type Rejection = ErrorPage;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ErrorPage> {
        let session = sent_session(&parts.headers)?;
        let request_id = parts.extensions.get::<RequestId>().cloned();
        Ok(Self {
            ip_address: ip_address(parts),
            browser: browser(&parts.headers),
            session,
            must_ask_again: find_cookie(&parts.headers, ASK_AGAIN_COOKIE.name) != CookieLookup::None,
            ip: ip(parts),
            request_id: request_id.ok_or_else(|| ErrorPage::internal("request has no ID"))?,
        })
    }
}

/// The sender of a request whose cookies do not matter.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    pub(crate) ip_address: String,
    ip: Option<IpAddr>,
    request_id: RequestId,
}

impl Sender {
    /// Origin of the audit events of this request.
    pub(crate) fn origin(&self, at: UnixMillis) -> EventOrigin {
        EventOrigin { ip: self.ip, at, request_id: self.request_id.clone() }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Sender {
    type Rejection = ErrorPage;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ErrorPage> {
        let request_id = parts.extensions.get::<RequestId>().cloned();
        let request_id = request_id.ok_or_else(|| ErrorPage::internal("request has no ID"))?;
        Ok(Self { ip_address: ip_address(parts), ip: ip(parts), request_id })
    }
}

pub(crate) fn ip_address(parts: &Parts) -> String {
    ip(parts).map_or_else(|| "an unknown address".to_owned(), |ip| ip.to_string())
}

/// Writes IPv4-mapped IPv6 addresses as IPv4.
fn ip(parts: &Parts) -> Option<IpAddr> {
    let ConnectInfo(peer) = parts.extensions.get::<ConnectInfo<SocketAddr>>()?;
    Some(peer.ip().to_canonical())
}

/// Whether the sender shows pages. Programs, and scripts on a page, do not.
pub(crate) fn accepts_html(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    accept.is_some_and(|accept| accept.contains("text/html")) && !headers.contains_key("hx-request")
}

fn browser(headers: &HeaderMap) -> String {
    let text = headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    label(text)
}

/// Browsers include each other's names: Edge claims to be Chrome, and Chrome to be Safari. So the first match in this order
/// counts.
const BROWSERS: [(&str, &str); 8] = [
    ("Edg", "Edge"),
    ("OPR/", "Opera"),
    ("SamsungBrowser/", "Samsung Internet"),
    ("Firefox/", "Firefox"),
    ("FxiOS/", "Firefox"),
    ("Chrome/", "Chrome"),
    ("CriOS/", "Chrome"),
    ("Safari/", "Safari"),
];
const SYSTEMS: [(&str, &str); 7] = [
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Android", "Android"),
    ("Windows", "Windows"),
    ("CrOS", "ChromeOS"),
    ("Mac OS X", "macOS"),
    ("Linux", "Linux"),
];
/// Maximum length shown of an unknown user agent.
const MAX_NAME_CHARS: usize = 40;

fn label(user_agent: &str) -> String {
    let find = |names: &[(&str, &'static str)]| {
        names.iter().find(|(mark, _)| user_agent.contains(mark)).map(|(_, name)| *name)
    };
    match (find(&BROWSERS), find(&SYSTEMS)) {
        (Some(browser), Some(system)) => format!("{browser} on {system}"),
        (Some(browser), None) => browser.to_owned(),
        (None, system) => {
            let plain = |c: &char| c.is_ascii_alphanumeric() || "-_. ".contains(*c);
            let name: String = user_agent.chars().take_while(plain).take(MAX_NAME_CHARS).collect();
            match (name.trim(), system) {
                ("" | "Mozilla", Some(system)) => format!("Browser on {system}"),
                ("" | "Mozilla", None) => "Unknown browser".to_owned(),
                (name, _) => name.to_owned(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_agents_get_readable_names() {
        for (user_agent, expected) in [
            ("Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0", "Firefox on Linux"),
            (
                "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/141.0.0.0 Safari/537.36 Edg/141.0.0.0",
                "Edge on Windows",
            ),
            (
                "Mozilla/5.0 (Linux; Android 10; K) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/141.0.0.0 Mobile Safari/537.36",
                "Chrome on Android",
            ),
            (
                "Mozilla/5.0 (iPhone; CPU iPhone OS 18_6 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.6 Mobile/15E148 Safari/604.1",
                "Safari on iPhone",
            ),
            ("curl/8.14.1", "curl"),
            ("Mozilla/5.0 (compatible)", "Unknown browser"),
            ("", "Unknown browser"),
            ("<script>alert(1)</script>", "Unknown browser"),
        ] {
            assert_eq!(label(user_agent), expected, "{user_agent}");
        }
        assert_eq!(label(&"x".repeat(4_000)).len(), MAX_NAME_CHARS);
    }
}
