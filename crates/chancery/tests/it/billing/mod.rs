//! Invoices, usage and accounts in a real browser, with a realistic history of the demo firm: on a phone, in dark mode and
//! without scripts. Consultants have no access.

pub mod billing_history;
mod consultants;
mod final_actions;
mod tour;
mod without_scripts;

use crate::browser::Browser;
use crate::office::{Office, SignedInUser};

/// Opens this portal path in the browser as this person.
async fn open_as(office: &Office, browser: &Browser, user: &SignedInUser, path: &str) {
    user.use_in_browser(browser).await;
    browser.open(&office.portal(path)).await;
}
