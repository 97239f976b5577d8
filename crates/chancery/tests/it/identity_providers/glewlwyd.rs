//! Debian's `glewlwyd`, configured by `glewlwyd.py`. Its pages are a program in JavaScript.

use super::{Provider, beside, peers};
use crate::browser::Browser;
use crate::server::clean_command;
use std::process::Command;

pub fn command() -> Command {
    let mut command = clean_command(peers().join("venv/bin/python").to_str().unwrap());
    command.arg("-I").arg(beside("glewlwyd.py")).arg(peers().join("glewlwyd"));
    command
}

pub async fn sign_in(browser: &Browser, provider: &Provider) {
    browser.fill("#username", provider.login).await;
    browser.fill("#password", provider.password).await;
    browser.press("#loginbut").await;
    browser.press("#grant-email").await; // a box to tick; `openid` alone needs no consent
    browser.press("button.btn-primary:not(#loginbut)").await;
    browser.press("button.btn-success").await;
}
