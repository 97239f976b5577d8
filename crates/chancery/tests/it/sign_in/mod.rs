//! People sign in to the portal in a real browser: at the built-in provider on its own origin, and at third-party providers.

mod built_in;
mod callback;
mod code;
mod mail;
mod providers;
mod sign_out;
mod sign_up;
mod tour;
mod two_processes;

use crate::browser::Browser;
use crate::server::{Firm, Server};
use serde_json::Value;
use std::time::Duration;

/// The demo firm with the portal and the built-in provider, and a browser with a fresh profile.
struct Scene {
    firm: Firm,
    server: Server,
    browser: Browser,
}

struct Person {
    email: String,
    password: String,
}

impl Scene {
    async fn start() -> Self {
        Self::start_with(&[]).await
    }

    async fn start_with(settings: &[(&str, &str)]) -> Self {
        let firm = settings.iter().fold(Firm::new(), |firm, (name, value)| firm.with(name, value));
        let server = firm.start_with(&["--demo"]);
        Self { firm, server, browser: Browser::start().await }
    }

    /// Returns one of the demo firm's people.
    fn person(&self, name: &str) -> Person {
        let demo = std::fs::read(self.firm.data().join("demo.json")).unwrap();
        let demo: Value = serde_json::from_slice(&demo).unwrap();
        let email = format!("{name}@example.com");
        let user = demo["users"].as_array().unwrap().iter().find(|user| user["email"] == email).unwrap();
        Person { password: user["password"].as_str().unwrap().to_owned(), email }
    }

    fn portal(&self, path: &str) -> String {
        format!("{}{path}", self.server.portal)
    }

    fn auth(&self, path: &str) -> String {
        format!("{}{path}", self.server.auth)
    }

    /// Goes from the portal's home page to the provider's sign-in page.
    async fn go_to_provider(&self) {
        self.browser.open(&self.portal("/")).await;
        self.browser.press("a.button-primary").await;
        self.browser.wait_for_url(&self.auth("/sign-in")).await;
    }

    async fn give_password(&self, email: &str, password: &str) {
        self.browser.fill("#email", email).await;
        self.browser.fill("#password", password).await;
        self.browser.press("form button.button-primary").await;
    }

    async fn consent(&self) {
        self.browser.press("button[value=allow]").await;
    }

    /// Completes sign-in up to the redirect back from the provider.
    async fn sign_in_at_provider(&self, person: &Person) {
        self.go_to_provider().await;
        self.give_password(&person.email, &person.password).await;
        self.consent().await;
    }

    async fn has_session(&self) -> bool {
        !self.browser.cookie(&self.server.portal, "session").await.is_null()
    }

    /// Waits until the outbox has this many emails; returns them, oldest first.
    async fn emails(&self, at_least: usize) -> Vec<String> {
        let mut emails = Vec::new();
        crate::server::eventually("letters are in the outbox", Duration::from_secs(20), async || {
            emails = self.outbox();
            emails.len() >= at_least
        })
        .await;
        emails
    }

    fn outbox(&self) -> Vec<String> {
        chancery_test_support::emails_in(&self.firm.data().join("outbox"))
    }
}

/// Returns the only run of six digits in an email's text.
fn code_in(email: &str) -> &str {
    let (_, text) = email.split_once("\r\n\r\n").unwrap();
    let mut runs = text.split(|sign: char| !sign.is_ascii_digit()).filter(|run| run.len() == 6);
    let code = runs.next().unwrap();
    assert_eq!(runs.next(), None, "{text}");
    code
}

/// Returns six digits that differ from that code.
fn wrong_code(code: &str, which: u32) -> String {
    format!("{:06}", (code.parse::<u32>().unwrap() + which) % 1_000_000)
}

/// For a server whose address must be known before it starts.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
