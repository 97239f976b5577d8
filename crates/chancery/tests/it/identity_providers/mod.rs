//! Third-party identity providers, each started on loopback with one client and two users, and driven through its own
//! pages. `scripts/sign-in-peers` installs them.

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
const PASSWORD: &str = "correct horse battery staple 7";

/// A user of every provider.
#[derive(Clone, Copy, Debug)]
pub struct User {
    pub login: &'static str,
    pub email: &'static str,
    pub password: &'static str,
}

pub const ADA: User = User { login: "ada", email: "ada@example.com", password: PASSWORD };
pub const GRACE: User = User { login: "grace", email: "grace@example.com", password: PASSWORD };

/// A provider that runs until it is dropped, with its only client and its users.
pub struct Provider {
    pub issuer: String,
    pub client_id: &'static str,
    pub client_secret: &'static str,
    kind: Kind,
    log: PathBuf,
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
            .env("POST_LOGOUT_REDIRECT_URI", redirect_uri.replace("/auth/callback", "/signed-out"))
            .env(
                "BACKCHANNEL_LOGOUT_URI",
                redirect_uri.replace("localhost", "127.0.0.1").replace("/callback", "/backchannel-logout"),
            )
            .envs([("LOGIN", ADA.login), ("EMAIL", ADA.email), ("PASSWORD", PASSWORD)])
            .envs([("OTHER_LOGIN", GRACE.login), ("OTHER_EMAIL", GRACE.email)])
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
            kind,
            log,
            _process: process,
            _folder: folder,
        }
    }

    /// Everything that it has printed.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Signs Ada in and consents, on the provider's own pages. The browser must already be there.
    pub async fn sign_in(&self, browser: &Browser) {
        self.sign_in_as(browser, ADA).await;
    }

    /// The same for any user.
    pub async fn sign_in_as(&self, browser: &Browser, user: User) {
        match self.kind {
            Kind::Canaille => canaille::sign_in(browser, user).await,
            Kind::Glewlwyd => glewlwyd::sign_in(browser, user).await,
            Kind::OidcProvider => oidc_provider::sign_in(browser, user).await,
        }
    }

    /// Waits for the provider's own page that asks for credentials or an account.
    pub async fn asks_for_credentials(&self, browser: &Browser) {
        match self.kind {
            Kind::Canaille => drop(browser.text("input[name=login], input[name=password]").await),
            Kind::Glewlwyd => glewlwyd::asks_for_password(browser).await,
            Kind::OidcProvider => drop(browser.text("input[name=password]").await),
        }
    }

    /// Confirms the sign-out on the provider's own page, where it asks.
    pub async fn confirm_sign_out(&self, browser: &Browser) {
        match self.kind {
            Kind::OidcProvider => browser.press("button[name=logout][value=yes]").await,
            Kind::Canaille | Kind::Glewlwyd => {}
        }
    }

    /// Whether it ends its own session when the portal asks, and returns.
    pub fn signs_out(&self) -> bool {
        match self.kind {
            Kind::OidcProvider | Kind::Canaille => true,
            Kind::Glewlwyd => false,
        }
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
