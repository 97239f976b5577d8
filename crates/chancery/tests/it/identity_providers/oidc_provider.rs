//! npm's `oidc-provider`, configured by `oidc_provider.mjs`. Its own pages accept any password.

use super::{Provider, beside, peers};
use crate::browser::Browser;
use crate::server::clean_command;
use std::process::Command;

pub fn command() -> Command {
    let mut command = clean_command(peers().join("node").to_str().unwrap());
    command.arg(beside("oidc_provider.mjs")).env("NODE_MODULES", peers().join("node_modules"));
    command
}

pub async fn sign_in(browser: &Browser, provider: &Provider) {
    browser.fill("input[name=login]", provider.login).await;
    browser.fill("input[name=password]", provider.password).await;
    browser.press("button[type=submit]").await;
    browser.press("input[name=prompt][value=consent] ~ button").await;
}
