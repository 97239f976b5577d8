//! Client records with the keyboard only.

use super::open_as;
use crate::browser::{Browser, ENTER, ESCAPE, TAB};
use crate::office::Office;

/// A short label of the focused element.
const FOCUS: &str = "const at = document.activeElement; \
    return at.id && !at.matches('[data-row]') ? '#' + at.id : (at.getAttribute('aria-label') || at.innerText || at.tagName).trim()";
/// More tab stops than any page has.
const MAX_TABS: usize = 60;

async fn focus(browser: &Browser) -> String {
    browser.script(FOCUS).await.as_str().unwrap().to_owned()
}

async fn keys(browser: &Browser, keys: impl ToString) {
    browser.type_keys(&keys.to_string()).await;
}

/// Presses Tab until this element has the focus.
async fn tab_to(browser: &Browser, expected: &str) {
    for _ in 0..MAX_TABS {
        keys(browser, TAB).await;
        if focus(browser).await == expected {
            return;
        }
    }
    panic!("no way to {expected:?} by Tab, but to {:?}", focus(browser).await);
}

#[tokio::test]
async fn client_list_and_record_work_with_the_keyboard_only() {
    let office = Office::open();
    let maya = office.sign_in("maya").await;
    let browser = Browser::start().await;
    open_as(&office, &browser, &maya, "/clients").await;

    skip_link_comes_first_and_skips_the_navigation(&browser).await;
    slash_searches_and_j_k_enter_open_a_row(&office, &browser).await;
    question_mark_opens_shortcuts_and_escape_closes_them(&browser).await;
    tab_goes_through_the_page_in_its_order(&office, &browser).await;
    add_and_save_note(&office, &browser).await;
    n_e_and_control_s_create_edit_and_save(&office, &browser).await;

    let record = maya.json("/clients/1037").await.value();
    assert_eq!(record["meeting_notes"][0]["title"], "By shortcut");
    assert_eq!(record["meeting_notes"][1]["title"], "By keyboard");
    assert_eq!(record["meeting_notes"][1]["text"], "No mouse was near.");
    assert_eq!(browser.console_errors().await, Vec::<String>::new());
}

async fn skip_link_comes_first_and_skips_the_navigation(browser: &Browser) {
    keys(browser, TAB).await;
    assert_eq!(focus(browser).await, "Skip to content");
    let is_seen = "const box = document.activeElement.getBoundingClientRect(); return box.top >= 0 && box.left >= 0 && box.height > 10";
    assert_eq!(browser.script(is_seen).await, true, "it shows itself to whoever comes by it");
    keys(browser, ENTER).await;
    assert_eq!(focus(browser).await, "#main");
    keys(browser, TAB).await;
    assert_eq!(focus(browser).await, "New client", "the first thing after the bar");
}

async fn slash_searches_and_j_k_enter_open_a_row(office: &Office, browser: &Browser) {
    keys(browser, "/").await;
    assert_eq!(focus(browser).await, "#q");
    keys(browser, "lane j/k?").await;
    assert_eq!(
        browser.script("return document.querySelector('#q').value").await,
        "lane j/k?",
        "typing is typing"
    );
    browser.open(&office.portal("/clients?sort=name")).await;
    super::ready(browser).await;
    let rows =
        browser.script("return [...document.querySelectorAll('[data-row]')].map(row => row.innerText)").await;
    let row = |place: usize| rows[place].as_str().unwrap();
    keys(browser, "j").await;
    assert_eq!(focus(browser).await, row(0));
    keys(browser, "jj").await;
    assert_eq!(focus(browser).await, row(2));
    keys(browser, "k").await;
    assert_eq!(focus(browser).await, row(1));
    keys(browser, "kkk").await;
    assert_eq!(focus(browser).await, row(0), "at the top it stays there");

    keys(browser, "/bakery").await;
    browser.until("location.search.includes('q=bakery')").await;
    browser.until("document.querySelectorAll('[data-row]').length === 1").await;
    assert_eq!(focus(browser).await, "#q");
    tab_to(browser, "Search").await;
    keys(browser, "j").await;
    assert_eq!(focus(browser).await, "Harbour Lane Bakery");
    keys(browser, ENTER).await;
    browser.wait_for_url(&office.portal("/clients/1037")).await;
    super::ready(browser).await;
}

async fn question_mark_opens_shortcuts_and_escape_closes_them(browser: &Browser) {
    let is_open = "return document.querySelector('#keys').open";
    assert_eq!(browser.script(is_open).await, false);
    keys(browser, "?").await;
    assert_eq!(browser.script(is_open).await, true);
    browser.shows("Search").await;
    assert_eq!(focus(browser).await, "Keyboard shortcuts");
    keys(browser, ESCAPE).await;
    assert_eq!(browser.script(is_open).await, false);
    keys(browser, "j").await;
    let ring = "const at = document.activeElement; return [at.matches('article.entry'), getComputedStyle(at).outlineStyle]";
    assert_eq!(browser.script(ring).await, serde_json::json!([true, "solid"]), "one sees which entry it is");
}

async fn tab_goes_through_the_page_in_its_order(office: &Office, browser: &Browser) {
    browser.open(&office.portal("/clients/1037")).await;
    super::ready(browser).await;
    let is_ahead = "const at = document.activeElement, before = window.before; window.before = at; \
        if (at === document.body) return 'end'; \
        const box = at.getBoundingClientRect(); \
        if (box.width === 0 || box.height === 0) return 'unseen ' + at.outerHTML; \
        if (at.tabIndex > 0) return 'jumps ' + at.outerHTML; \
        const isAhead = !before || before === document.body || \
            Boolean(before.compareDocumentPosition(at) & Node.DOCUMENT_POSITION_FOLLOWING); \
        return isAhead ? 'ahead' : 'end'";
    let mut steps = 0;
    for _ in 0..MAX_TABS {
        keys(browser, TAB).await;
        match browser.script(is_ahead).await.as_str().unwrap() {
            "ahead" => steps += 1,
            "end" => break,
            other => panic!("{other}"),
        }
    }
    assert!(steps > 15, "only {steps} places to tab to");
}

async fn add_and_save_note(office: &Office, browser: &Browser) {
    browser.open(&office.portal("/clients/1037")).await;
    tab_to(browser, "Add note").await;
    keys(browser, ENTER).await;
    browser.wait_for_url(&office.portal("/clients/1037?open=note")).await;
    browser.until("document.activeElement.id === 'title'").await;
    keys(browser, format!("By keyboard{TAB}No mouse was near.")).await;
    tab_to(browser, "Save note").await;
    keys(browser, ENTER).await;
    browser.wait_for_url(&office.portal("/clients/1037?done=")).await;
    browser.shows("By keyboard").await;
}

async fn n_e_and_control_s_create_edit_and_save(office: &Office, browser: &Browser) {
    browser.open(&office.portal("/clients/1037")).await;
    super::ready(browser).await;
    keys(browser, "n").await;
    browser.wait_for_url(&office.portal("/clients/1037?open=note")).await;
    browser.until("document.activeElement.id === 'title'").await;
    keys(browser, format!("By shortcut{TAB}Neat.")).await;
    save_with_control_s(browser).await;
    browser.wait_for_url(&office.portal("/clients/1037?done=note")).await;
    browser.shows("By shortcut").await;

    browser.open(&office.portal("/clients/1037")).await;
    super::ready(browser).await;
    keys(browser, "e").await;
    browser.wait_for_url(&office.portal("/clients/1037?open=facts")).await;
    super::ready(browser).await;
    browser.open(&office.portal("/clients")).await;
    super::ready(browser).await;
    keys(browser, "n").await;
    browser.wait_for_url(&office.portal("/clients/new")).await;
}

/// The driver cannot hold Control down while it types.
async fn save_with_control_s(browser: &Browser) {
    let press = "const press = new KeyboardEvent('keydown', \
        { key: 's', ctrlKey: true, bubbles: true, cancelable: true }); \
        return document.activeElement.dispatchEvent(press)";
    assert_eq!(browser.script(press).await, false, "the browser's own dialog stays closed");
}
