//! Invoices, usage and accounts in a real browser, over a believable past of the demonstration firm: how the pages serve people on a
//! phone, in the dark and without scripts, and that consultants find none of it.

mod consultants;
pub mod past;
mod tour;
mod without_scripts;

use crate::browser::Browser;
use crate::office::{Office, Somebody};

/// The browser, at this address of the portal, for this person.
async fn open_as(office: &Office, browser: &Browser, who: &Somebody, path: &str) {
    who.sit_down_at(browser).await;
    browser.open(&office.portal(path)).await;
}
