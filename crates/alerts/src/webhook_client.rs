//! Sends one event to one webhook:
//!
//! 1. The host is resolved here, at every attempt. Each of its addresses must be public or listed in
//!    `webhooks.allow_private`; without TLS it must be listed.
//! 2. The connection goes to those addresses and no others: the client has no resolver of its own, no proxy, and
//!    follows no redirect.
//! 3. The body is signed. Any 2xx status is success, 410 means that the receiver is gone for good. The reply's body is
//!    not read.

use crate::limits::{LOOKUP_TIMEOUT, WEBHOOK_TIMEOUT};
use crate::networks::AllowedNetworks;
use crate::signature::sign;
use chancery_domain::UnixMillis;
use chancery_store::Webhook;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::CONTENT_TYPE;
use reqwest::{StatusCode, Url};
use std::error::Error;
use std::net::{IpAddr, SocketAddr};

#[derive(Clone, Debug)]
pub struct WebhookClient {
    allowed: AllowedNetworks,
}

/// A URL that no webhook may have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WebhookUrlError {
    #[error("invalid URL; use a URL such as https://example.com/hooks")]
    Invalid,
    #[error("a webhook's URL must not contain a user name or a password; check the signature instead")]
    HasCredentials,
    #[error("use https://; http:// is allowed only for addresses in webhooks.allow_private")]
    NotEncrypted,
    #[error("{0} is not a public address; add it to webhooks.allow_private if it is yours")]
    NotPublic(IpAddr),
}

/// Why an event was not delivered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WebhookSendError {
    #[error(transparent)]
    Url(#[from] WebhookUrlError),
    #[error("cannot resolve the host: {0}")]
    NotResolved(String),
    #[error("the webhook's secret in the database is invalid; remove the webhook and add it again")]
    InvalidSecret,
    #[error("no reply within {} seconds", WEBHOOK_TIMEOUT.as_secs())]
    TimedOut,
    #[error("request failed: {0}")]
    Failed(String),
    /// 410: the receiver is gone for good.
    #[error("HTTP 410: the receiver wants no more events")]
    Gone,
    #[error("HTTP {0}")]
    Status(u16),
}

impl WebhookClient {
    pub fn new(allowed: AllowedNetworks) -> Self {
        Self { allowed }
    }

    /// Rejects what no attempt could send to. Names are resolved only at an attempt.
    pub fn check_url(&self, text: &str) -> Result<(), WebhookUrlError> {
        let target = Target::parse(text)?;
        match target.literal_address() {
            Some(address) => self.check_address(&target, address),
            None if !target.is_encrypted() && self.allowed.is_empty() => Err(WebhookUrlError::NotEncrypted),
            None => Ok(()),
        }
    }

    /// Whether an attempt now would be rejected because of the host's addresses. `Ok` if the name cannot be resolved
    /// here: the server may be able to.
    pub async fn check_host(&self, text: &str) -> Result<(), WebhookUrlError> {
        let target = Target::parse(text)?;
        let Ok(Ok(addresses)) = tokio::time::timeout(LOOKUP_TIMEOUT, target.resolve()).await else {
            return Ok(());
        };
        addresses.iter().try_for_each(|address| self.check_address(&target, address.ip()))
    }

    /// Returns the status of a successful reply.
    pub async fn send(
        &self,
        webhook: &Webhook,
        event_id: &str,
        body: &str,
        now: UnixMillis,
    ) -> Result<u16, WebhookSendError> {
        match tokio::time::timeout(WEBHOOK_TIMEOUT, self.attempt(webhook, event_id, body, now)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(WebhookSendError::TimedOut),
        }
    }

    async fn attempt(
        &self,
        webhook: &Webhook,
        event_id: &str,
        body: &str,
        now: UnixMillis,
    ) -> Result<u16, WebhookSendError> {
        let target = Target::parse(&webhook.url)?;
        let addresses = target.resolve().await?;
        for address in &addresses {
            self.check_address(&target, address.ip())?;
        }
        let timestamp_s = now.0.div_euclid(1000);
        let signature =
            sign(&webhook.secret, event_id, timestamp_s, body).ok_or(WebhookSendError::InvalidSecret)?;
        let failed = |error: reqwest::Error| WebhookSendError::Failed(chancery_http_client::describe(error));
        // A client for each attempt, because the addresses are part of it.
        let client = chancery_http_client::client_builder()
            .no_proxy()
            .dns_resolver(NoResolver)
            .resolve_to_addrs(&target.host, &addresses)
            .pool_max_idle_per_host(0)
            .build()
            .map_err(failed)?;
        let request = client
            .post(target.url)
            .header(CONTENT_TYPE, "application/json")
            .header("webhook-id", event_id)
            .header("webhook-timestamp", timestamp_s.to_string())
            .header("webhook-signature", signature)
            .body(body.to_owned());
        match request.send().await.map_err(failed)?.status() {
            status if status.is_success() => Ok(status.as_u16()),
            StatusCode::GONE => Err(WebhookSendError::Gone),
            status => Err(WebhookSendError::Status(status.as_u16())),
        }
    }

    fn check_address(&self, target: &Target, address: IpAddr) -> Result<(), WebhookUrlError> {
        if !self.allowed.allows(address) {
            return Err(WebhookUrlError::NotPublic(address));
        }
        match target.is_encrypted() || self.allowed.contains(address) {
            true => Ok(()),
            false => Err(WebhookUrlError::NotEncrypted),
        }
    }
}

/// A parsed URL.
struct Target {
    url: Url,
    /// As in the URL; IPv6 addresses are in brackets.
    host: String,
    port: u16,
}

impl Target {
    fn parse(text: &str) -> Result<Self, WebhookUrlError> {
        let url = Url::parse(text).map_err(|_| WebhookUrlError::Invalid)?;
        let host = url.host_str().filter(|host| !host.is_empty()).ok_or(WebhookUrlError::Invalid)?.to_owned();
        let port = url.port_or_known_default().ok_or(WebhookUrlError::Invalid)?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(WebhookUrlError::Invalid);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(WebhookUrlError::HasCredentials);
        }
        Ok(Self { url, host, port })
    }

    fn is_encrypted(&self) -> bool {
        self.url.scheme() == "https"
    }

    /// The address, if the host is one. The URL parser has already turned forms such as `0x7f.1` into `127.0.0.1`.
    fn literal_address(&self) -> Option<IpAddr> {
        self.host.trim_start_matches('[').trim_end_matches(']').parse().ok()
    }

    async fn resolve(&self) -> Result<Vec<SocketAddr>, WebhookSendError> {
        if let Some(address) = self.literal_address() {
            return Ok(vec![SocketAddr::new(address, self.port)]);
        }
        let found = tokio::net::lookup_host((self.host.as_str(), self.port)).await;
        let found: Vec<SocketAddr> =
            found.map_err(|error| WebhookSendError::NotResolved(error.to_string()))?.collect();
        match found.is_empty() {
            true => Err(WebhookSendError::NotResolved("the name has no address".to_owned())),
            false => Ok(found),
        }
    }
}

/// Only the addresses that were checked may be used, so a name that needs resolving again is an error.
struct NoResolver;

impl Resolve for NoResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let error = format!("{} was not resolved beforehand", name.as_str());
        let rejected: Result<Addrs, Box<dyn Error + Send + Sync>> = Err(error.into());
        Box::pin(std::future::ready(rejected))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signature::generate_webhook_secret;
    use chancery_domain::{OsRandomness, UnixMillis};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    const NOW: UnixMillis = UnixMillis(1_800_000_000_000);

    fn client(allowed: &[&str]) -> WebhookClient {
        WebhookClient::new(allowed.iter().map(|text| text.parse().unwrap()).collect())
    }

    fn webhook(url: String) -> Webhook {
        let secret = generate_webhook_secret(&OsRandomness);
        Webhook { id: "wh_test".to_owned(), url, secret, created_at: NOW, disabled_at: None }
    }

    #[test]
    fn urls_without_a_public_address_or_tls_are_rejected() {
        let none = client(&[]);
        for url in ["https://example.com/hooks", "https://8.8.8.8/", "https://[2606:4700::1111]:8443/x"] {
            assert_eq!(none.check_url(url), Ok(()), "{url}");
        }
        let rejected = |url: &str| none.check_url(url).unwrap_err();
        for url in ["", "example.com", "ftp://example.com/", "file:///etc/passwd", "https://"] {
            assert_eq!(rejected(url), WebhookUrlError::Invalid, "{url}");
        }
        assert_eq!(rejected("https://u:p@example.com/"), WebhookUrlError::HasCredentials);
        assert_eq!(rejected("http://example.com/"), WebhookUrlError::NotEncrypted);
        assert_eq!(rejected("http://8.8.8.8/"), WebhookUrlError::NotEncrypted);
        for (url, address) in [
            ("https://127.0.0.1/", "127.0.0.1"),
            ("https://0x7f.1/", "127.0.0.1"),
            ("https://2130706433/", "127.0.0.1"),
            ("https://017700000001/", "127.0.0.1"),
            ("https://[::1]/", "::1"),
            ("https://[::ffff:10.0.0.1]/", "::ffff:10.0.0.1"),
            ("https://169.254.169.254/latest/meta-data", "169.254.169.254"),
        ] {
            assert_eq!(rejected(url), WebhookUrlError::NotPublic(address.parse().unwrap()), "{url}");
        }
        let loopback = client(&["127.0.0.1"]);
        assert_eq!(loopback.check_url("http://127.0.0.1:9000/hooks"), Ok(()));
        assert_eq!(loopback.check_url("http://8.8.8.8/"), Err(WebhookUrlError::NotEncrypted));
    }

    #[tokio::test]
    async fn name_that_resolves_to_loopback_is_rejected_at_every_attempt() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let outcome =
            client(&[]).send(&webhook(format!("https://localhost:{port}/")), "evt_1", "{}", NOW).await;
        assert!(matches!(outcome, Err(WebhookSendError::Url(WebhookUrlError::NotPublic(_)))), "{outcome:?}");
        let url = "https://localhost/";
        assert_eq!(client(&[]).check_url(url), Ok(()), "the name is not resolved");
        let checked = client(&[]).check_host(url).await;
        assert!(matches!(checked, Err(WebhookUrlError::NotPublic(_))), "{checked:?}");
        assert_eq!(client(&["127.0.0.1", "::1"]).check_host(url).await, Ok(()));
        assert_eq!(client(&[]).check_host("https://chancery.invalid/").await, Ok(()), "not resolved");
    }

    /// Answers one request and returns it.
    async fn exchange(reply: &'static str) -> (Result<u16, WebhookSendError>, String, Webhook) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let webhook = webhook(format!("http://{}/hooks", listener.local_addr().unwrap()));
        let receiving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut received = Vec::new();
            while !received.ends_with(b"{\"type\":\"x\"}") {
                let mut chunk = [0; 4096];
                let length = stream.read(&mut chunk).await.unwrap();
                assert!(length > 0, "{received:?}");
                received.extend_from_slice(&chunk[..length]);
            }
            stream.write_all(reply.as_bytes()).await.unwrap();
            String::from_utf8(received).unwrap()
        });
        let outcome = client(&["127.0.0.1"]).send(&webhook, "evt_1", "{\"type\":\"x\"}", NOW).await;
        (outcome, receiving.await.unwrap(), webhook)
    }

    #[tokio::test]
    async fn event_is_posted_with_a_valid_signature() {
        let (outcome, received, webhook) = exchange("HTTP/1.1 204 No Content\r\n\r\n").await;
        assert_eq!(outcome, Ok(204));
        let signature = sign(&webhook.secret, "evt_1", 1_800_000_000, "{\"type\":\"x\"}").unwrap();
        for line in [
            "POST /hooks HTTP/1.1".to_owned(),
            "content-type: application/json".to_owned(),
            "webhook-id: evt_1".to_owned(),
            "webhook-timestamp: 1800000000".to_owned(),
            format!("webhook-signature: {signature}"),
        ] {
            assert!(received.lines().any(|found| found == line), "{line}: {received}");
        }
    }

    #[tokio::test]
    async fn redirects_and_other_statuses_are_failures() {
        let redirect = "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n";
        assert_eq!(exchange(redirect).await.0, Err(WebhookSendError::Status(302)));
        let gone = "HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n";
        assert_eq!(exchange(gone).await.0, Err(WebhookSendError::Gone));
        let failed = "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n";
        assert_eq!(exchange(failed).await.0, Err(WebhookSendError::Status(500)));
    }
}
