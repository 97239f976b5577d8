//! Third-party identity providers, each started on loopback with one client and one user, and driven through its own pages.
//! `scripts/sign-in-peers` installs them.

mod canaille;
mod glewlwyd;
mod oidc_provider;

use crate::browser::Browser;
use crate::server::{Running, client, eventually};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// Python with all its libraries takes seconds to start; the rest is headroom for a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Canaille,
    Glewlwyd,
    OidcProvider,
}

const CLIENT_ID: &str = "chancery-portal";
const CLIENT_SECRET: &str = "the-portal-proves-itself-with-this";
const LOGIN: &str = "ada";
const EMAIL: &str = "ada@example.com";
const PASSWORD: &str = "correct horse battery staple 7";

/// A provider that runs until it is dropped, with its only client and its only user.
pub struct Provider {
    pub issuer: String,
    pub client_id: &'static str,
    pub client_secret: &'static str,
    pub login: &'static str,
    pub email: &'static str,
    pub password: &'static str,
    kind: Kind,
    _process: Running,
    _folder: tempfile::TempDir,
}

impl Provider {
    /// Starts it with `redirect_uri` as the only allowed redirect.
    pub async fn start(kind: Kind, redirect_uri: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = match kind {
            Kind::Canaille => canaille::command(),
            Kind::Glewlwyd => glewlwyd::command(),
            Kind::OidcProvider => oidc_provider::command(),
        };
        let log = folder.path().join("log");
        let output = File::create(&log).unwrap();
        command
            .current_dir(folder.path())
            .envs([
                ("CLIENT_ID", CLIENT_ID),
                ("CLIENT_SECRET", CLIENT_SECRET),
                ("REDIRECT_URI", redirect_uri),
            ])
            .envs([("LOGIN", LOGIN), ("EMAIL", EMAIL), ("PASSWORD", PASSWORD)])
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output);
        let mut process = Running(command.spawn().unwrap());
        let http = client();
        let mut issuer = String::new();
        eventually(&format!("{kind:?} serves"), START_TIMEOUT, async || {
            let log = std::fs::read_to_string(&log).unwrap();
            assert!(process.0.try_wait().unwrap().is_none(), "{kind:?} ended: {log}");
            let Some(line) = log.lines().find_map(|line| line.strip_prefix("issuer ")) else { return false };
            issuer = line.to_owned();
            http.get(discovery_url(&issuer)).send().await.is_ok_and(|response| response.status().is_success())
        })
        .await;
        Self {
            issuer,
            client_id: CLIENT_ID,
            client_secret: CLIENT_SECRET,
            login: LOGIN,
            email: EMAIL,
            password: PASSWORD,
            kind,
            _process: process,
            _folder: folder,
        }
    }

    /// Signs the user in and consents, on the provider's own pages. The browser must already be there.
    pub async fn sign_in(&self, browser: &Browser) {
        match self.kind {
            Kind::Canaille => canaille::sign_in(browser, self).await,
            Kind::Glewlwyd => glewlwyd::sign_in(browser, self).await,
            Kind::OidcProvider => oidc_provider::sign_in(browser, self).await,
        }
    }

    /// Signs the user in without consenting to share the email address.
    pub async fn sign_in_without_address(&self, browser: &Browser) {
        assert!(matches!(self.kind, Kind::Glewlwyd), "only glewlwyd lets people choose");
        glewlwyd::sign_in_without_address(browser, self).await;
    }

    /// Whether it marks the email address as verified.
    pub fn verifies_email(&self) -> bool {
        match self.kind {
            Kind::Canaille => false,
            Kind::Glewlwyd | Kind::OidcProvider => true,
        }
    }
}

fn discovery_url(issuer: &str) -> String {
    format!("{issuer}/.well-known/openid-configuration")
}

/// Where `scripts/sign-in-peers` installs them.
pub fn peers() -> PathBuf {
    let folder = std::env::var_os("CHANCERY_TEST_SIGN_IN_PEERS");
    let folder = folder.expect(
        "run `make test`, which fetches what sign-in is tested with, or set CHANCERY_TEST_SIGN_IN_PEERS to what \
         `scripts/sign-in-peers` prints",
    );
    folder.into()
}

fn beside(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/identity_providers").join(name)
}
