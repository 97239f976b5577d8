//! Checks pages on a desktop in light mode and on a phone in dark mode: `axe-core` finds no accessibility problems, and no page
//! scrolls sideways. With CHANCERY_TEST_SCREENSHOTS, takes screenshots for the documentation, in a subdirectory of the directory
//! that it names (`make screenshots`).

use crate::browser::{Browser, Scheme, Screen};
use crate::identity_providers::peers;
use serde_json::Value;
use std::path::{Path, PathBuf};

pub struct Tour<'a> {
    browser: &'a Browser,
    axe: String,
    /// The desktop screen of this tour.
    desktop: Screen,
    /// The subdirectory for its screenshots.
    name: &'static str,
    /// Where screenshots go; `None` takes none.
    folder: Option<PathBuf>,
    findings: Vec<String>,
}

/// In the build directory: these are for developers, not for the documentation.
fn dark_folder() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("screenshots")
}

impl<'a> Tour<'a> {
    pub fn of(browser: &'a Browser, desktop: Screen, name: &'static str) -> Self {
        let axe = std::fs::read_to_string(peers().join("node_modules/axe-core/axe.min.js")).unwrap();
        let folder = std::env::var_os("CHANCERY_TEST_SCREENSHOTS").map(PathBuf::from);
        Self { browser, axe, desktop, name, folder, findings: Vec::new() }
    }

    /// Checks the page once it shows this text. Its colors depend only on the mode, and its width only on the screen, so two of the
    /// four combinations show both.
    pub async fn look(&mut self, page: &str, text: &str) {
        self.browser.shows(text).await;
        for (screen, scheme) in [(Screen::Phone, Scheme::Dark), (self.desktop, Scheme::Light)] {
            self.look_on(page, screen, scheme).await;
        }
    }

    async fn look_on(&mut self, page: &str, screen: Screen, scheme: Scheme) {
        self.browser.show_on(screen, scheme).await;
        let is_too_wide =
            "return document.documentElement.scrollWidth > document.documentElement.clientWidth";
        if self.browser.script(is_too_wide).await == true {
            self.findings.push(format!("{page} {screen:?}: it scrolls sideways"));
        }
        let violations = self.violations().await;
        self.findings.extend(violations.iter().map(|what| format!("{page} {screen:?} {scheme:?}: {what}")));
    }

    /// Takes screenshots in light mode for the documentation and in dark mode for developers.
    pub async fn picture(&self, page: &str) {
        self.picture_from(page, "body").await;
    }

    /// The same, scrolled to this element.
    pub async fn picture_from(&self, page: &str, css: &str) {
        let Some(folder) = &self.folder else { return };
        for (screen, ending) in [(Screen::Phone, "-phone"), (self.desktop, "")] {
            let file = format!("{}/{page}{ending}.png", self.name);
            self.keep(screen, Scheme::Light, css, &folder.join(&file)).await;
            self.keep(screen, Scheme::Dark, css, &dark_folder().join(&file)).await;
        }
        self.browser.show_on(self.desktop, Scheme::Light).await;
    }

    async fn keep(&self, screen: Screen, scheme: Scheme, css: &str, path: &Path) {
        self.browser.show_on(screen, scheme).await;
        self.browser.script(&format!("document.querySelector(\"{css}\").scrollIntoView()")).await;
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, self.browser.screenshot().await).unwrap();
    }

    async fn violations(&self) -> Vec<String> {
        if self.browser.script("return typeof axe").await == "undefined" {
            self.browser.script(&self.axe).await;
        }
        // Details of what is in order would only cost time.
        let run = "const done = arguments[arguments.length - 1]; \
            axe.run(document, {resultTypes: ['violations']}) \
                .then(found => done(found.violations), error => done(String(error)))";
        let found = self.browser.script_with_reply(run).await;
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

    pub fn end(self) {
        assert!(self.findings.is_empty(), "{}", self.findings.join("\n"));
    }
}

#[tokio::test]
async fn accessibility_violations_are_detected() {
    let browser = Browser::start().await;
    browser.open("data:text/html,<p style='color:silver;width:2000px'>Pale and wide</p><input>").await;
    let mut tour = Tour::of(&browser, Screen::Desktop, "none");
    tour.look("bad", "Pale and wide").await;
    for what in ["it scrolls sideways", "color-contrast", "label", "document-title"] {
        assert!(tour.findings.iter().any(|finding| finding.contains(what)), "{what}: {:?}", tour.findings);
    }
}
