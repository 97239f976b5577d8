//! Every page of signing in, looked at: `axe-core` finds nothing on it that keeps people out, and it never scrolls sideways,
//! on a desktop and on a phone, in light and in dark. With CHANCERY_TEST_SCREENSHOTS the pages that docs/sign-in.md shows are
//! pictured into the folder that it names (`make screenshots`).

use super::code::EMAIL_CODE;
use super::{Scene, code_in, wrong_code};
use crate::browser::{Browser, Scheme, Screen};
use crate::identity_providers::{Kind, peers};
use crate::smtp::{Security, SmtpServer};
use serde_json::Value;
use std::path::{Path, PathBuf};

struct Tour<'a> {
    browser: &'a Browser,
    axe: String,
    /// Where pictures go.
    folder: Option<PathBuf>,
    findings: Vec<String>,
}

/// Beside what cargo builds: these are for whoever works on pages, not for readers.
fn dark_folder() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("screenshots")
}

impl<'a> Tour<'a> {
    fn of(browser: &'a Browser) -> Self {
        let axe = std::fs::read_to_string(peers().join("node_modules/axe-core/axe.min.js")).unwrap();
        let folder = std::env::var_os("CHANCERY_TEST_SCREENSHOTS").map(PathBuf::from);
        Self { browser, axe, folder, findings: Vec::new() }
    }

    /// Looks over the page, which shows this text.
    async fn look(&mut self, name: &str, text: &str) {
        self.browser.shows(text).await;
        for (screen, scheme) in [(Screen::Phone, Scheme::Dark), (Screen::Desktop, Scheme::Light)] {
            self.browser.show_on(screen, scheme).await;
            let is_too_wide = "return document.documentElement.scrollWidth > window.innerWidth";
            if self.browser.script(is_too_wide).await == true {
                self.findings.push(format!("{name} {screen:?}: it scrolls sideways"));
            }
            let violations = self.violations().await;
            self.findings
                .extend(violations.iter().map(|what| format!("{name} {screen:?} {scheme:?}: {what}")));
        }
    }

    /// Looks over the page and pictures it, in light for the documentation and in dark for whoever works on pages.
    async fn picture(&mut self, name: &str, text: &str) {
        self.look(name, text).await;
        let Some(folder) = &self.folder else { return };
        for (screen, ending) in [(Screen::Phone, "-phone"), (Screen::Desktop, "")] {
            self.keep(screen, Scheme::Light, &folder.join(format!("{name}{ending}.png"))).await;
            self.keep(screen, Scheme::Dark, &dark_folder().join(format!("{name}{ending}.png"))).await;
        }
        self.browser.show_on(Screen::Desktop, Scheme::Light).await;
    }

    async fn keep(&self, screen: Screen, scheme: Scheme, path: &Path) {
        self.browser.show_on(screen, scheme).await;
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, self.browser.screenshot().await).unwrap();
    }

    async fn violations(&self) -> Vec<String> {
        let run = "const done = arguments[arguments.length - 1]; \
            axe.run(document).then(found => done(found.violations), error => done(String(error)))";
        let found = self.browser.script_with_reply(&format!("{}\n{run}", self.axe)).await;
        let found = found.as_array().unwrap_or_else(|| panic!("axe-core: {found}"));
        let targets = |violation: &Value| {
            let nodes = violation["nodes"].as_array().unwrap().iter();
            nodes
                .map(|node| format!("{} {}", node["target"], node["failureSummary"]))
                .collect::<Vec<_>>()
                .join(" ")
        };
        found.iter().map(|violation| format!("{}: {}", violation["id"], targets(violation))).collect()
    }

    fn end(self) {
        assert!(self.findings.is_empty(), "{}", self.findings.join("\n"));
    }
}

#[tokio::test]
async fn what_keeps_people_out_is_found() {
    let browser = Browser::start().await;
    browser.open("data:text/html,<p style='color:silver;width:2000px'>Pale and wide</p><input>").await;
    let mut tour = Tour::of(&browser);
    tour.look("bad", "Pale and wide").await;
    for what in ["it scrolls sideways", "color-contrast", "label", "document-title"] {
        assert!(tour.findings.iter().any(|finding| finding.contains(what)), "{what}: {:?}", tour.findings);
    }
}

#[tokio::test]
async fn the_pages_of_signing_in_and_out_keep_nobody_out() {
    let scene = Scene::start_with(&[("CHANCERY_PORTAL__FIRM_NAME", "Hale & Ward")]).await;
    let (browser, maya) = (&scene.browser, scene.person("maya"));
    let mut tour = Tour::of(browser);
    browser.open(&scene.portal("/")).await;
    tour.picture("01-start", "Continue to sign in").await;
    scene.go_to_provider().await;
    tour.picture("02-provider", "Sign in").await;
    scene.give_password(&maya.email, "not her password").await;
    tour.picture("03-wrong-password", "do not belong together").await;
    scene.give_password(&maya.email, &maya.password).await;
    tour.picture("04-consent", "will learn:").await;
    scene.consent().await;
    tour.picture("05-signed-in", "No clients yet").await;
    browser.forget_cookies().await;
    browser.open(&scene.portal("/sessions")).await;
    scene.give_password(&maya.email, &maya.password).await;
    tour.picture("06-sessions", "Your sessions").await;
    browser.press("form[action='/auth/sign-out'] button").await;
    tour.picture("07-signed-out", "You are signed out").await;
    browser.open(&scene.auth("/")).await;
    tour.look("provider-home", "You are signed in as").await;
    browser.open(&scene.portal("/signed-out")).await;
    browser.press(&format!("a[href^='{}/logout']", scene.server.auth)).await;
    tour.look("provider-logout", "Sign out?").await;
    browser.open(&scene.auth("/")).await;
    browser.press("form[action='/sign-out'] button").await;
    tour.look("provider-signed-out", "You are signed out").await;
    browser.open(&scene.auth("/")).await;
    tour.look("provider-home-signed-out", "Firm accounts").await;
    browser.open(&scene.portal("/sessions")).await;
    scene.give_password(&maya.email, &maya.password).await;
    browser.press("button[value=others]").await;
    tour.look("sessions-ended", "Done.").await;
    tour.end();
}

#[tokio::test]
async fn the_pages_of_signing_up_and_of_a_forgotten_password_keep_nobody_out() {
    let scene = Scene::start_with(&[("CHANCERY_PORTAL__FIRM_NAME", "Hale & Ward")]).await;
    let browser = &scene.browser;
    let mut tour = Tour::of(browser);
    browser.open(&scene.auth("/sign-up")).await;
    tour.look("sign-up", "Choose a password").await;
    scene.give_password("nora@elsewhere.example", "walnut ledger candle").await;
    tour.picture("11-sign-up-refused", "Only people with an address at example.com").await;
    scene.give_password("nora@example.com", "walnut ledger candle").await;
    tour.look("sign-up-code", "Enter the six digits").await;
    browser.fill("#code", "12").await;
    browser.press("form button.button-primary").await;
    tour.look("sign-up-code-unreadable", "Enter the six digits from the message").await;
    browser.open(&scene.auth("/forgotten-password")).await;
    tour.look("forgotten-password", "We send a code").await;
    browser.fill("#email", "maya@example.com").await;
    browser.press("form button.button-primary").await;
    tour.look("forgotten-password-code", "is on its way").await;
    browser.press("form button.button-primary").await;
    tour.look("forgotten-password-code-unreadable", "to put right").await;
    tour.end();
}

#[tokio::test]
async fn the_pages_of_codes_keep_nobody_out() {
    let scene = Scene::start_with(&[EMAIL_CODE, ("CHANCERY_PORTAL__FIRM_NAME", "Hale & Ward")]).await;
    let (browser, maya) = (&scene.browser, scene.person("maya"));
    let mut tour = Tour::of(browser);
    scene.sign_in_at_provider(&maya).await;
    tour.picture("08-code-by-mail", "We sent six digits").await;
    browser.press("form[action='/auth/code/resend'] button").await;
    tour.look("code-not-sent-again", "A new one can be sent in").await;
    let letters = scene.letters(1).await;
    let code = code_in(&letters[0]);
    for which in 1..=4 {
        browser.fill("#code", &wrong_code(code, which)).await;
        browser.press("form button.button-primary").await;
        browser.shows(if which == 4 { "1 try left" } else { "tries left" }).await;
        if which == 1 {
            tour.picture("09-wrong-code", "4 tries left").await;
        }
    }
    browser.fill("#code", &wrong_code(code, 5)).await;
    browser.press("form button.button-primary").await;
    tour.picture("10-five-wrong-codes", "Too many wrong codes").await;
    browser.open(&scene.portal("/clients")).await;
    tour.look("locked-out", "no code is sent").await;
    tour.end();
}

#[tokio::test]
async fn the_pages_that_refuse_keep_nobody_out_by_their_form() {
    let mail = SmtpServer::start(Security::Plain, None).await;
    let url = mail.url();
    let settings = [EMAIL_CODE, ("CHANCERY_MAIL__SMTP", &url), ("CHANCERY_PORTAL__FIRM_NAME", "Hale & Ward")];
    let scene = Scene::start_with(&settings).await;
    drop(mail);
    let (browser, maya) = (&scene.browser, scene.person("maya"));
    let mut tour = Tour::of(browser);
    browser.open(&scene.portal("/nowhere")).await;
    tour.look("not-found", "404").await;
    browser.open(&scene.auth("/authorize?client_id=unknown")).await;
    tour.look("authorize-refused", "400").await;
    scene.go_to_provider().await;
    browser.open(&scene.portal("/auth/callback?state=foreign&code=x")).await;
    tour.picture("12-foreign-state", "This sign-in is over").await;
    scene.sign_in_at_provider(&maya).await;
    tour.look("code-not-sent", "Not sent.").await;
    tour.end();
}

#[tokio::test]
async fn the_page_for_somebody_of_another_firm_keeps_nobody_out_by_its_form() {
    let settings = [
        ("CHANCERY_PORTAL__COMPANY_DOMAIN", "hale-ward.example"),
        ("CHANCERY_PORTAL__FIRM_NAME", "Hale & Ward"),
    ];
    let (scene, provider) = super::providers::begin(Kind::OidcProvider, &settings).await;
    provider.sign_in(&scene.browser).await;
    let mut tour = Tour::of(&scene.browser);
    tour.picture("13-another-domain", "Only people with an @hale-ward.example address").await;
    assert_eq!(scene.browser.status().await, 403);
    assert!(!scene.has_session().await);
    tour.end();
}
