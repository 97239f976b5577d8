//! Client records on the real server with the demo firm: who can open which, over HTTP and in a browser, and how the pages work
//! with a keyboard, without scripts, on a phone, and with malicious text.

mod html_escaping;
mod keyboard;
mod layout;
mod letters;
mod object_authorization;
mod scripts;
mod tour;
mod unsaved_text;
mod url_swap;
mod without_scripts;

use crate::browser::Browser;
use crate::office::{Office, SignedInUser};
use serde_json::Value;

fn number(client: &Value) -> i64 {
    client["id"].as_i64().unwrap()
}

/// Waits until scripts have attached to the page.
async fn ready(browser: &Browser) {
    browser.until("document.readyState === 'complete'").await;
}

/// Opens this portal path in the browser as this person.
async fn open_as(office: &Office, browser: &Browser, user: &SignedInUser, path: &str) {
    user.use_in_browser(browser).await;
    browser.open(&office.portal(path)).await;
    ready(browser).await;
}
