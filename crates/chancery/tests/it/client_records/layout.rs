//! How pages look on paper and on a phone, with long words and right-to-left text, and how much of them is sent.

use super::{open_as, ready};
use crate::browser::{Browser, Scheme, Screen};
use crate::office::{Office, SignedInUser};
use serde_json::json;

/// At most this much is sent for a page with all its assets.
const MAX_PAGE_BYTES: u64 = 40_000;

const LONG_WORD_CHARS: usize = 190;

#[tokio::test]
async fn pages_print_wrap_and_are_compressed() {
    let office = Office::open();
    let (maya, ruth) = (office.sign_in("maya").await, office.sign_in("ruth").await);
    let browser = Browser::start().await;

    open_as(&office, &browser, &ruth, "/clients/1037").await;
    paper_has_the_client_and_no_controls(&office, &browser).await;
    question_mark_opens_shortcuts_on_an_account_page(&office, &browser).await;
    long_words_wrap_in_the_list_and_the_draft_panel(&office, &browser, &maya).await;
    right_to_left_text_is_isolated(&office, &browser, &maya).await;
    long_words_wrap_in_the_audit_log(&office, &browser, &ruth).await;
    pages_are_compressed_within_their_budget(&office, &browser, &maya).await;
    profile_offers_the_browsers_time_zone(&office, &browser).await;
    assert_eq!(browser.console_errors().await, Vec::<String>::new());
}

/// Which of these selectors match something that is visible.
async fn visible(browser: &Browser, selectors: &[&str]) -> Vec<String> {
    let script = format!(
        "return {}.filter(css => [...document.querySelectorAll(css)].some(found => found.checkVisibility()))",
        json!(selectors)
    );
    serde_json::from_value(browser.script(&script).await).unwrap()
}

async fn paper_has_the_client_and_no_controls(office: &Office, browser: &Browser) {
    const CONTROLS: [&str; 6] = [".bar", ".tabs", ".actions", ".entry-foot", ".split-last", "button"];
    browser.show_in_print().await;
    assert_eq!(
        visible(browser, &["h1", ".facts dd", ".entry-text"]).await,
        ["h1", ".facts dd", ".entry-text"]
    );
    assert_eq!(visible(browser, &CONTROLS).await, Vec::<String>::new());
    browser.open(&office.portal("/usage")).await;
    ready(browser).await;
    assert_eq!(visible(browser, &["h1"]).await, ["h1"]);
    assert_eq!(visible(browser, &[".bar", ".filters", "summary", "button"]).await, Vec::<String>::new());
    browser.open(&office.portal("/team")).await;
    ready(browser).await;
    assert_eq!(visible(browser, &["h1", ".list", "form", "label"]).await, ["h1", ".list"]);
    browser.show_on(Screen::Desktop, Scheme::Light).await;
}

async fn question_mark_opens_shortcuts_on_an_account_page(office: &Office, browser: &Browser) {
    browser.open(&office.portal("/accounts")).await;
    browser.follow("tbody a[data-row]").await;
    let duplicates = "const ids = [...document.querySelectorAll('[id]')].map(found => found.id); \
        return ids.filter((id, place) => ids.indexOf(id) !== place)";
    assert_eq!(browser.script(duplicates).await, json!([]));
    browser.type_keys("?").await;
    browser.until("document.querySelector('details#keys').open").await;
}

async fn long_words_wrap_in_the_list_and_the_draft_panel(
    office: &Office,
    browser: &Browser,
    maya: &SignedInUser,
) {
    let word = "W".repeat(LONG_WORD_CHARS);
    let created = maya.post("/clients", &[("name", &*word), ("contact", &*word)]).await;
    let record = created.location().split('?').next().unwrap().to_owned();
    let note = [("kind", "meeting_note"), ("title", &*word), ("text", &*word)];
    assert_eq!(maya.post(&format!("{record}/entries"), &note).await.status.as_u16(), 303);
    open_as(office, browser, maya, "/clients").await;
    let fits = "document.querySelector('.list').scrollWidth <= document.querySelector('.list').clientWidth";
    browser.until(fits).await;
    browser.show_on(Screen::Phone, Scheme::Light).await;
    browser.until(fits).await;
    browser.open(&office.portal(&format!("{record}?open=letter"))).await;
    ready(browser).await;
    let panel = "document.querySelector('.model-panel')";
    browser.until(&format!("{panel}.innerText.includes('WWW')")).await;
    browser.until(&format!("{panel}.scrollWidth <= {panel}.clientWidth")).await;
    browser.until("document.documentElement.scrollWidth <= innerWidth").await;
    browser.show_on(Screen::Desktop, Scheme::Light).await;
}

/// The result is in the last column, which a long name must not push out of the page.
async fn long_words_wrap_in_the_audit_log(office: &Office, browser: &Browser, ruth: &SignedInUser) {
    open_as(office, browser, ruth, "/audit?action=createClient").await;
    browser.until("document.querySelector('.list').innerText.includes('WWW')").await;
    let fits = "document.querySelector('.list').scrollWidth <= document.querySelector('.list').clientWidth";
    browser.until(fits).await;
}

async fn right_to_left_text_is_isolated(office: &Office, browser: &Browser, maya: &SignedInUser) {
    let created = maya.post("/clients", &[("name", "מאפיית הנמל")]).await;
    browser.open(&office.portal(created.location())).await;
    let direction =
        "return ['h1 span', 'h1'].map(css => getComputedStyle(document.querySelector(css)).direction)";
    assert_eq!(browser.script(direction).await, json!(["rtl", "ltr"]), "the name, but not its badges");
}

/// The button selects the browser's zone, and says which one it is.
async fn profile_offers_the_browsers_time_zone(office: &Office, browser: &Browser) {
    const CHOSEN: &str = "return document.querySelector('#time_zone').value";
    browser.set_time_zone("Asia/Tokyo").await;
    browser.open(&office.portal("/profile")).await;
    ready(browser).await;
    browser.press("#browser-zone").await;
    assert_eq!(browser.script(CHOSEN).await, "Asia/Tokyo");
    browser.follow("main form button.button-primary").await;
    browser.shows("Profile saved.").await;
    browser.shows("JST").await;
    assert_eq!(browser.script(CHOSEN).await, "Asia/Tokyo");
}

async fn pages_are_compressed_within_their_budget(office: &Office, browser: &Browser, maya: &SignedInUser) {
    // The letter's editor has the most scripts. The list comes last, for the checks after this one.
    for path in ["/clients/1037?open=letter", "/clients"] {
        open_as(office, browser, maya, path).await;
        page_is_compressed_within_its_budget(browser, path).await;
    }
    let initials = "return document.querySelector('.bar-person').dataset.initials.length > 0";
    assert_eq!(browser.script(initials).await, true);
}

async fn page_is_compressed_within_its_budget(browser: &Browser, path: &str) {
    let sent = "return performance.getEntries().filter(entry => 'encodedBodySize' in entry) \
        .reduce((sum, entry) => sum + entry.encodedBodySize, 0)";
    let sent = browser.script(sent).await.as_u64().unwrap();
    assert!((1..=MAX_PAGE_BYTES).contains(&sent), "{path}: {sent} bytes");
    let page = "const [page] = performance.getEntriesByType('navigation'); \
        return page.encodedBodySize < page.decodedBodySize / 2";
    assert_eq!(browser.script(page).await, true, "{path}: the page itself is compressed");
}
