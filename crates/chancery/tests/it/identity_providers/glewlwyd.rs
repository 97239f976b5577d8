//! Debian's `glewlwyd`, configured by `glewlwyd.py`. Its pages are a program in JavaScript.

use super::{Provider, beside, peers};
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

pub async fn sign_in(browser: &Browser, provider: &Provider) {
    give_password(browser, provider).await;
    browser.press("#grant-email").await; // a box to tick; `openid` alone needs no consent
    go_on(browser).await;
}

pub async fn sign_in_without_address(browser: &Browser, provider: &Provider) {
    give_password(browser, provider).await;
    browser.text("label[for=grant-email]").await;
    go_on(browser).await;
}

async fn give_password(browser: &Browser, provider: &Provider) {
    wait_until_loaded(browser).await;
    browser.fill("#username", provider.login).await;
    browser.fill("#password", provider.password).await;
    browser.press("#loginbut").await;
}

async fn go_on(browser: &Browser) {
    browser.press("button.btn-primary:not(#loginbut)").await;
    browser.press("button.btn-success").await;
}

/// Each reply to what its page asks for after it is shown empties the fields again: a person would see it and type anew. The
/// page is taken to have all it wants when it has asked for nothing during a number of looks, 20 ms and more apart.
async fn wait_until_loaded(browser: &Browser) {
    const LOOKS: u32 = 5;
    let mut quiet_looks = 0;
    eventually("glewlwyd's page has loaded", Duration::from_secs(30), async || {
        let is_quiet = "return document.querySelector('#loginbut') !== null && jQuery.active === 0";
        quiet_looks = if browser.script(is_quiet).await == json!(true) { quiet_looks + 1 } else { 0 };
        quiet_looks >= LOOKS
    })
    .await;
}
