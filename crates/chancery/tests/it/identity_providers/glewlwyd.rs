//! Debian's `glewlwyd`, configured by `glewlwyd.py`. Its pages are a JavaScript application.

use super::{User, beside, peers};
use crate::browser::Browser;
use crate::server::{clean_command, eventually};
use serde_json::json;
use std::process::Command;
use std::time::Duration;

pub fn command() -> Command {
    let mut command = clean_command(peers().join("venv/bin/python").to_str().unwrap());
    command.arg("-I").arg(beside("glewlwyd.py")).arg(peers().join("glewlwyd"));
    command
}

pub async fn sign_in(browser: &Browser, user: User) {
    give_password(browser, user).await;
    browser.press("#grant-email").await; // a checkbox; `openid` alone needs no consent
    go_on(browser).await;
}

/// Waits for its sign-in page.
pub async fn asks_for_password(browser: &Browser) {
    wait_until_loaded(browser).await;
}

async fn give_password(browser: &Browser, user: User) {
    wait_until_loaded(browser).await;
    browser.fill("#username", user.login).await;
    browser.fill("#password", user.password).await;
    browser.press("#loginbut").await;
}

async fn go_on(browser: &Browser) {
    browser.press("button.btn-primary:not(#loginbut)").await;
    browser.press("button.btn-success").await;
}

/// Its page keeps loading data after it appears, and each reply clears the fields. So the test waits until the page has sent
/// no request for several checks in a row, at least 20 ms apart.
async fn wait_until_loaded(browser: &Browser) {
    const CHECKS: u32 = 5;
    let mut quiet_checks = 0;
    eventually("glewlwyd's page has loaded", Duration::from_secs(30), async || {
        let is_quiet = "return document.querySelector('#loginbut') !== null && jQuery.active === 0";
        quiet_checks = if browser.script(is_quiet).await == json!(true) { quiet_checks + 1 } else { 0 };
        quiet_checks >= CHECKS
    })
    .await;
}
