//! PyPI's `canaille`, configured by `canaille.py`. It never marks an email address as verified.

use super::{Provider, beside, peers};
use crate::browser::Browser;
use crate::server::clean_command;
use std::process::Command;

pub fn command() -> Command {
    let mut command = clean_command(peers().join("canaille/bin/python").to_str().unwrap());
    command.arg("-I").arg(beside("canaille.py")); // -I: do not import the script as the package of the same name
    command
}

pub async fn sign_in(browser: &Browser, provider: &Provider) {
    browser.fill("input[name=login]", provider.login).await;
    browser.press("button[name=answer][type=submit]").await;
    browser.fill("input[name=password]", provider.password).await;
    browser.press("button.primary[type=submit]").await;
    browser.press("button#accept").await;
}
