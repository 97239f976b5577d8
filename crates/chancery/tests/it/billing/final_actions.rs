//! What cannot be undone in a browser with scripts: issuing an invoice, and a new key, which is shown once.

use super::billing_history::{Past, office_that_bills};
use super::open_as;
use crate::browser::Browser;
use crate::office::{Office, SignedInUser};
use serde_json::Value;

#[tokio::test]
async fn final_actions_ask_first_and_happen_once() {
    let office = office_that_bills();
    let ruth = office.sign_in("ruth").await;
    let past = Past::of(&office, &ruth).await;
    let browser = Browser::start().await;
    let account = format!("/accounts/{}", past.brightwater.account);
    let draft = format!("/invoices/drafts/{}/{}", past.brightwater.account, past.last);
    invoice_needs_an_address_that_can_be_printed(&office, &browser, &ruth, (&account, &draft)).await;
    invoice_is_issued_after_confirmation(&office, &browser, &ruth, &draft).await;
    key_form_sent_again_creates_no_second_key(&office, &browser, &ruth, &account).await;
    assert_eq!(browser.console_errors().await, Vec::<String>::new());
}

async fn total(ruth: &SignedInUser) -> Value {
    ruth.json("/invoices").await.value()["total"].take()
}

async fn invoice_needs_an_address_that_can_be_printed(
    office: &Office,
    browser: &Browser,
    ruth: &SignedInUser,
    (account, draft): (&str, &str),
) {
    let billing = format!("{account}/billing");
    let cleared = ruth.post(&billing, &[("address", ""), ("email", "")]).await;
    assert_eq!(cleared.status, 303, "{}", cleared.body);
    open_as(office, browser, ruth, draft).await;
    browser.follow("a[href$='/issue']").await;
    browser.shows("No billing address.").await;
    let buttons = "return document.querySelectorAll(\"form[action$='/issue'] button\").length";
    assert_eq!(browser.script(buttons).await, 0);
    browser.follow("main a[href*='open=billing']").await;
    browser.fill("#address", "東京都千代田区").await;
    browser.follow("form[action$='/billing'] button").await;
    browser.wait_for_url(&office.portal(draft)).await;
    browser.shows("cannot be printed: 東 (U+6771)").await;
    browser.follow("a[href$='/issue']").await;
    browser.shows("cannot be printed: 東 (U+6771)").await;
    assert_eq!(browser.script(buttons).await, 0);

    let printable = [("address", "شارع الملك فهد\nالرياض"), ("email", "accounts@brightwater.example")];
    assert_eq!(ruth.post(&billing, &printable).await.status, 303);
}

async fn invoice_is_issued_after_confirmation(
    office: &Office,
    browser: &Browser,
    ruth: &SignedInUser,
    draft: &str,
) {
    let before = total(ruth).await;
    browser.open(&office.portal(draft)).await;
    browser.follow("a[href$='/issue']").await;
    browser.shows("You cannot change or delete it.").await;
    assert_eq!(total(ruth).await, before, "nothing is issued yet");
    browser.follow("form[action$='/issue'] button").await;
    browser.shows("can no longer be changed").await;
    assert_eq!(total(ruth).await.as_u64(), before.as_u64().map(|before| before + 1));
    let number = browser.url().await.path().trim_start_matches("/invoices/").to_owned();
    assert_eq!(copied(browser, "number").await, number);
}

/// Presses the copy button of this element; returns what it copied. Whether a headless browser may write to the clipboard differs
/// between versions.
async fn copied(browser: &Browser, id: &str) -> Value {
    let clipboard = "{ writeText: async (text) => { window.copied = text; } }";
    let replace = format!(
        "Object.defineProperty(navigator, 'clipboard', {{ value: {clipboard}, configurable: true }})"
    );
    browser.script(&replace).await;
    browser.press(&format!("button[data-copies={id}]")).await;
    let is_copied = format!("document.querySelector('[data-copied-by={id}]').textContent === 'Copied.'");
    browser.until(&is_copied).await;
    browser.script("return window.copied").await
}

async fn key_form_sent_again_creates_no_second_key(
    office: &Office,
    browser: &Browser,
    ruth: &SignedInUser,
    account: &str,
) {
    let keys = async || ruth.json(account).await.value()["keys"].as_array().map(Vec::len);
    browser.open(&office.portal(&format!("{account}?open=key"))).await;
    browser.fill("#label", "night shift").await;
    let prefix = browser.script("return document.querySelector('input[name=prefix]').value").await;
    let before = keys().await;
    browser.follow("section[aria-labelledby=new-key] form button").await;
    browser.shows("Copy it now").await;
    let key = copied(browser, "new-key").await;
    assert!(key.as_str().unwrap().starts_with(prefix.as_str().unwrap()), "{prefix}");
    let command = copied(browser, "curl").await;
    assert!(command.as_str().unwrap().starts_with("curl "), "{command}");
    assert_eq!(keys().await, before.map(|before| before + 1));
    // What the browser sends again after a reload that the user confirms.
    let again = format!(
        "const form = document.createElement('form');
         form.method = 'post';
         form.action = '{account}/keys';
         for (const [name, value] of [['prefix', {prefix}], ['label', 'night shift']]) {{
           const field = document.createElement('input');
           field.name = name;
           field.value = value;
           form.append(field);
         }}
         document.body.append(form);
         form.submit();"
    );
    browser.script(&again).await;
    browser.shows("No second key was created.").await;
    assert_eq!(browser.status().await, 409);
    assert_eq!(keys().await, before.map(|before| before + 1));
}
