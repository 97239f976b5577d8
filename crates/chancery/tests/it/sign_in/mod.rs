//! People sign in to the portal in a real browser: at the built-in provider on its own origin, and at third-party providers.

mod authenticator_app;
mod built_in;
mod callback;
mod lock_out;
mod mail;
mod passkeys;
mod providers;
mod sign_out;
mod step_up;
mod tour;
mod two_processes;

use crate::browser::Browser;
use crate::server::{Firm, Server};
use serde_json::Value;
use std::time::Duration;

/// Of the email with the code that the first second factor of an account needs.
const FIRST_FACTOR_SUBJECT: &str = "Your code to add a second factor";

/// The portal asks for a code by email.
const EMAIL_CODE: (&str, &str) = ("CHANCERY_PORTAL__SECOND_FACTOR", "email-code");

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
        Self::start_firm(settings.iter().fold(Firm::new(), |firm, (name, value)| firm.with(name, value)))
            .await
    }

    async fn start_firm(firm: Firm) -> Self {
        let server = firm.start_with(&["--demo", "--minimal"]);
        Self { firm, server, browser: Browser::start().await }
    }

    /// The provider on `localhost`, because passkeys need a host name, and the portal on `127.0.0.1`.
    async fn start_with_passkeys(firm: Firm) -> Self {
        let [auth_port, portal_port] = free_ports();
        let (auth, portal) =
            (format!("http://localhost:{auth_port}"), format!("http://127.0.0.1:{portal_port}"));
        let firm = firm
            .with("CHANCERY_AUTH__ENABLED", "true")
            .with("CHANCERY_AUTH__LISTEN", &format!("127.0.0.1:{auth_port}"))
            .with("CHANCERY_IDENTITY__ISSUER", &auth)
            .with("CHANCERY_PORTAL__LISTEN", &format!("127.0.0.1:{portal_port}"))
            .with("CHANCERY_PORTAL__PUBLIC_URL", &portal);
        let mut scene = Self::start_firm(firm).await;
        (scene.server.auth, scene.server.portal) = (auth, portal);
        scene
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
        self.browser.follow("form button.button-primary").await;
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

    /// Opens the portal's clients, which asks for the password first.
    async fn open_clients_with_password(&self, person: &Person) {
        self.browser.open(&self.portal("/clients")).await;
        self.browser.wait_for_url(&self.auth("/sign-in")).await;
        self.give_password(&person.email, &person.password).await;
    }

    /// Signs out of the portal and of the provider.
    async fn sign_out(&self) {
        self.browser.press("form[action='/auth/sign-out'] button").await;
        self.browser.wait_for_url(&self.portal("/signed-out?state=")).await;
        self.browser.shows("You have signed out of the client portal and of").await;
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

    /// Enters the emailed code that the first second factor of an account needs. The browser shows the page that sends
    /// it, and then the page that adds the factor.
    async fn prove_mailbox(&self) {
        let code = self.request_first_factor_code().await;
        self.enter_first_factor_code(&code).await;
    }

    /// Has the code sent, and returns it. The browser shows the page that asks for it.
    async fn request_first_factor_code(&self) -> String {
        self.browser.shows("Confirm your email address").await;
        let before = self.first_factor_emails().len();
        self.browser.follow("form[action='/security/email-code/send'] button").await;
        self.browser.shows("Enter the six-digit code").await;
        let mut emails = Vec::new();
        crate::server::eventually("the code is in the outbox", Duration::from_secs(20), async || {
            emails = self.first_factor_emails();
            emails.len() > before
        })
        .await;
        code_in(&emails[before]).to_owned()
    }

    async fn enter_first_factor_code(&self, code: &str) {
        self.browser.fill("#code", code).await;
        self.browser.follow("form[action='/security/email-code'] button").await;
    }

    /// Emails with a code to add the first second factor, oldest first.
    fn first_factor_emails(&self) -> Vec<String> {
        let subject = format!("Subject: {FIRST_FACTOR_SUBJECT}");
        self.outbox().into_iter().filter(|email| email.contains(&subject)).collect()
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
pub fn free_port() -> u16 {
    let [port] = free_ports();
    port
}

/// Different ports.
fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}
