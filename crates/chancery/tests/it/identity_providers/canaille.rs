//! PyPI's `canaille`, configured by `canaille.py`. It never marks an email address as verified.

use super::{User, beside, peers};
use crate::browser::Browser;
use crate::server::clean_command;
use std::process::Command;

pub fn command() -> Command {
    let mut command = clean_command(peers().join("canaille/bin/python").to_str().unwrap());
    command.arg("-I").arg(beside("canaille.py")); // -I: do not import the script as the package of the same name
    command
}

pub async fn sign_in(browser: &Browser, user: User) {
    browser.fill("input[name=login]", user.login).await;
    browser.press("button[name=answer][type=submit]").await;
    browser.fill("input[name=password]", user.password).await;
    browser.press("button.primary[type=submit]").await;
    // Its consent page was seen to be left out for the second user of a client.
    browser.until("document.querySelector('button#accept, input#code')").await;
    if browser.script("return document.querySelector('button#accept') !== null").await == true {
        browser.press("button#accept").await;
    }
}
