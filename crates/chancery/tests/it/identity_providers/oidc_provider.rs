//! npm's `oidc-provider`, configured by `oidc_provider.mjs`. Its own pages accept any password.

use super::{User, beside, peers};
use crate::browser::Browser;
use crate::server::clean_command;
use std::process::Command;

pub fn command() -> Command {
    let mut command = clean_command(peers().join("node").to_str().unwrap());
    command.arg(beside("oidc_provider.mjs")).env("NODE_MODULES", peers().join("node_modules"));
    command
}

pub async fn sign_in(browser: &Browser, user: User) {
    browser.fill("input[name=login]", user.login).await;
    browser.fill("input[name=password]", user.password).await;
    browser.press("button[type=submit]").await;
    browser.press("input[name=prompt][value=consent] ~ button").await;
}
