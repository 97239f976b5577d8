//! Client records on the real server with the demonstration firm: who may open which, over HTTP and in a browser, and how the pages
//! serve people with a keyboard, without scripts, on a phone, and with texts that mean harm.

mod hostile_texts;
mod keyboard;
mod object_authorization;
mod scripts;
mod tour;
mod url_swap;
mod without_scripts;

use crate::browser::Browser;
use crate::office::{Office, Somebody};
use serde_json::Value;

/// The number of a client in JSON.
fn number(client: &Value) -> i64 {
    client["id"].as_i64().unwrap()
}

/// Waits until scripts have bound themselves to the page.
async fn ready(browser: &Browser) {
    browser.until("document.readyState === 'complete'").await;
}

/// The browser, at this address of the portal, for this person.
async fn open_as(office: &Office, browser: &Browser, who: &Somebody, path: &str) {
    who.sit_down_at(browser).await;
    browser.open(&office.portal(path)).await;
    ready(browser).await;
}
