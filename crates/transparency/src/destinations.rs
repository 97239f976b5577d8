//! Sends new checkpoints out of this machine, to syslog and to a webhook. A failure is logged and not retried: the next
//! checkpoint covers the same rows and more.

use crate::syslog::SyslogAddress;
use chancery_domain::{LogName, UnixMillis};
use reqwest::Url;
use reqwest::header::CONTENT_TYPE;
use std::time::Duration;

/// How long a destination may take.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, Default)]
pub struct Destinations {
    pub syslog: Option<SyslogAddress>,
    pub webhook: Option<Url>,
}

impl Destinations {
    pub(crate) async fn send(&self, log: LogName, note: &str, now: UnixMillis) {
        // One line: the note's line ends are `\n` in a JSON string.
        let line = format!("checkpoint {}", serde_json::Value::from(note));
        if let Some(syslog) = &self.syslog {
            let sent = tokio::time::timeout(SEND_TIMEOUT, syslog.send(&line, now)).await;
            let sent = sent.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
            if let Err(error) = sent {
                tracing::warn!(%log, %error, "sending a checkpoint to syslog failed");
            }
        }
        if let Some(webhook) = &self.webhook
            && let Err(error) = post(webhook, log, note, now).await
        {
            tracing::warn!(%log, %error, "sending a checkpoint to the webhook failed");
        }
    }
}

/// The note is signed itself, so the request is not.
async fn post(webhook: &Url, log: LogName, note: &str, now: UnixMillis) -> Result<(), String> {
    let client = chancery_http_client::client_builder().no_proxy().timeout(SEND_TIMEOUT).build();
    let client = client.map_err(chancery_http_client::describe)?;
    let body = serde_json::json!({
        "type": "checkpoint",
        "timestamp": now.to_iso(),
        "data": { "log": log.as_str(), "checkpoint": note },
    });
    let request =
        client.post(webhook.clone()).header(CONTENT_TYPE, "application/json").body(body.to_string());
    let status = request.send().await.map_err(chancery_http_client::describe)?.status();
    if status.is_success() { Ok(()) } else { Err(format!("HTTP {}", status.as_u16())) }
}
