//! A third-party mail server, PyPI's `aiosmtpd`, that stores messages for the test to read.

use crate::identity_providers::peers;
use crate::server::{Running, clean_command, eventually};
use serde::Deserialize;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

const START_TIMEOUT: Duration = Duration::from_secs(60);
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug)]
pub enum Security {
    Plain,
    /// Starts in plain text, and accepts no message before STARTTLS.
    StartTls,
    /// TLS from the first byte.
    Tls,
}

/// User name and password.
pub type Credentials = (&'static str, &'static str);

pub struct SmtpServer {
    security: Security,
    credentials: Option<Credentials>,
    port: u16,
    folder: tempfile::TempDir,
    _process: Running,
}

#[derive(Debug, Deserialize)]
pub struct Message {
    pub from: String,
    pub to: Vec<String>,
    /// Headers and body, as sent.
    pub content: String,
    pub over_tls: bool,
    pub signed_in: bool,
}

impl SmtpServer {
    /// Starts a server; with credentials, it accepts messages only from authenticated clients.
    pub async fn start(security: Security, credentials: Option<Credentials>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let output = File::create(&log).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/smtp/aiosmtpd_server.py");
        let mut command = clean_command(peers().join("venv/bin/python").to_str().unwrap());
        command.arg("-I").arg(script).arg(match security {
            Security::Plain => "plain",
            Security::StartTls => "starttls",
            Security::Tls => "tls",
        });
        command.args(credentials.iter().flat_map(|(name, password)| [name, password]));
        command.current_dir(folder.path()).stdin(Stdio::null());
        command.stdout(output.try_clone().unwrap()).stderr(output);
        let mut process = Running(command.spawn().unwrap());
        let mut port = None;
        eventually("the mail server listens", START_TIMEOUT, async || {
            let log = std::fs::read_to_string(&log).unwrap();
            assert!(process.0.try_wait().unwrap().is_none(), "the mail server ended: {log}");
            port = log.lines().find_map(|line| line.strip_prefix("port ")?.parse().ok());
            port.is_some()
        })
        .await;
        Self { security, credentials, port: port.unwrap(), folder, _process: process }
    }

    /// Its URL for mail clients: `smtp://NAME:PASSWORD@127.0.0.1:PORT?tls=required`, `smtps://…`.
    pub fn url(&self) -> String {
        let scheme = if matches!(self.security, Security::Tls) { "smtps" } else { "smtp" };
        let credentials = self.credentials.map(|(name, password)| format!("{name}:{password}@"));
        let query = if matches!(self.security, Security::StartTls) { "?tls=required" } else { "" };
        format!("{scheme}://{}127.0.0.1:{}{query}", credentials.unwrap_or_default(), self.port)
    }

    /// The certificate that a client has to trust, for `SSL_CERT_FILE`.
    pub fn authority(&self) -> PathBuf {
        self.folder.path().join("authority.pem")
    }

    /// Waits until this many messages have arrived; returns all messages in order of arrival.
    pub async fn messages(&self, at_least: usize) -> Vec<Message> {
        let mut messages = Vec::new();
        eventually(&format!("{at_least} messages arrive"), DELIVERY_TIMEOUT, async || {
            messages = self.received();
            messages.len() >= at_least
        })
        .await;
        messages
    }

    fn received(&self) -> Vec<Message> {
        let files = std::fs::read_dir(self.folder.path().join("messages")).unwrap();
        let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
        paths.sort();
        paths.iter().map(|path| serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()).collect()
    }
}

/// Sends a message with curl; returns whether it was accepted.
fn send(server: &SmtpServer, options: &[&str]) -> bool {
    let message = server.folder.path().join("message");
    std::fs::write(&message, "Subject: Good morning\r\n\r\nAll is well.\r\n").unwrap();
    let mut command = clean_command("curl");
    command.args(["--silent", "--show-error", "--max-time", "20", "--mail-from", "firm@example.com"]);
    command.args(["--mail-rcpt", "ada@example.com", "--upload-file"]).arg(message);
    command.arg(server.url().split('?').next().unwrap()).args(options);
    let output = command.output().unwrap();
    eprint!("{}", String::from_utf8_lossy(&output.stderr)); // shown if a test fails
    output.status.success()
}

#[tokio::test]
async fn test_mail_server_stores_accepted_messages() {
    let server = SmtpServer::start(Security::Plain, None).await;
    assert!(send(&server, &[]));
    let messages = server.messages(1).await;
    assert_eq!(
        (messages[0].from.as_str(), messages[0].to.as_slice()),
        ("firm@example.com", &["ada@example.com".into()][..])
    );
    assert!(messages[0].content.ends_with("All is well.\r\n"), "{messages:?}");
    assert!(!messages[0].over_tls && !messages[0].signed_in, "{messages:?}");
}

#[tokio::test]
async fn test_mail_server_can_require_tls() {
    for security in [Security::StartTls, Security::Tls] {
        let server = SmtpServer::start(security, None).await;
        let authority = server.authority();
        let authority = authority.to_str().unwrap();
        assert!(!send(&server, &[]), "{security:?} without TLS, or trusting nobody");
        assert!(!send(&server, &["--ssl-reqd"]), "{security:?} trusting nobody");
        assert!(send(&server, &["--ssl-reqd", "--cacert", authority]), "{security:?}");
        assert!(server.messages(1).await[0].over_tls);
    }
}

#[tokio::test]
async fn test_mail_server_can_require_authentication() {
    let server = SmtpServer::start(Security::StartTls, Some(("portal", "s3cret"))).await;
    let authority = server.authority();
    let trusting = ["--ssl-reqd", "--cacert", authority.to_str().unwrap()];
    assert!(!send(&server, &[&trusting[..], &["--user", "portal:wrong"]].concat()));
    assert!(send(&server, &trusting));
    assert!(server.messages(1).await[0].signed_in);
}
