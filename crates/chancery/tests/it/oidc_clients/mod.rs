//! OpenID Connect clients that nobody here wrote, npm's `openid-client` and PyPI's `authlib`, for sign-in at a provider.
//! Each is a small program that speaks in lines:
//!
//! 1. it says where it wants browsers to be sent back to;
//! 2. it is told `issuer`, `client_id` and `client_secret`, as JSON;
//! 3. it says where the browser has to go to sign in;
//! 4. when the browser comes back, it redeems the code, checks everything, and says what it learned as JSON.

use crate::browser::Browser;
use crate::identity_providers::{Kind, Provider, peers};
use crate::server::{Running, clean_command};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// What one step may take, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
pub enum Library {
    OpenidClient,
    Authlib,
}

pub struct OidcClient {
    pub redirect_uri: String,
    library: Library,
    process: Running,
    lines: Receiver<String>,
}

impl OidcClient {
    pub fn start(library: Library) -> Self {
        let (program, script) = match library {
            Library::OpenidClient => ("node", "openid_client.mjs"),
            Library::Authlib => ("venv/bin/python", "authlib_client.py"),
        };
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/oidc_clients").join(script);
        let mut command = clean_command(peers().join(program).to_str().unwrap());
        command.arg(script).env("NODE_MODULES", peers().join("node_modules"));
        let mut process = Running(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
        let output = BufReader::new(process.0.stdout.take().unwrap()).lines().map_while(Result::ok);
        let (sender, lines) = channel();
        std::thread::spawn(move || output.for_each(|line| drop(sender.send(line))));
        let mut client = Self { redirect_uri: String::new(), library, process, lines };
        client.redirect_uri = client.line();
        client
    }

    /// Tells it the provider; gives where the browser has to go.
    pub fn begin(&mut self, issuer: &str, client_id: &str, client_secret: &str) -> String {
        let provider = json!({"issuer": issuer, "client_id": client_id, "client_secret": client_secret});
        let mut stdin = self.process.0.stdin.take().unwrap();
        writeln!(stdin, "{provider}").unwrap();
        self.line()
    }

    /// What it learned: the claims of the `id_token`, and `userinfo`.
    pub fn finish(self) -> Value {
        serde_json::from_str(&self.line()).unwrap()
    }

    fn line(&self) -> String {
        let line = self.lines.recv_timeout(PATIENCE);
        line.unwrap_or_else(|_| panic!("{:?} gave up; its own words are above", self.library))
    }
}

/// The programs themselves, held against a provider that is known to be right.
async fn signs_in_at(library: Library, kind: Kind) {
    let mut client = OidcClient::start(library);
    let provider = Provider::start(kind, &client.redirect_uri).await;
    let browser = Browser::start().await;
    browser.open(&client.begin(&provider.issuer, provider.client_id, provider.client_secret)).await;
    provider.sign_in(&browser).await;
    browser.arrive(&client.redirect_uri).await;
    let learned = client.finish();
    assert_eq!(learned["id_token"]["iss"], json!(provider.issuer));
    assert_eq!(learned["userinfo"]["email"], json!(provider.email));
}

#[tokio::test]
async fn openid_client_signs_in_at_oidc_provider() {
    signs_in_at(Library::OpenidClient, Kind::OidcProvider).await;
}

#[tokio::test]
async fn authlib_signs_in_at_canaille() {
    signs_in_at(Library::Authlib, Kind::Canaille).await;
}
