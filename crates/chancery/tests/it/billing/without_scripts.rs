//! Invoices, accounts and keys in a browser without scripts.

use super::billing_history::{Past, office_that_bills};
use super::open_as;
use crate::browser::Browser;
use crate::office::{Office, SignedInUser};
use chancery_domain::ApiKey;
use serde_json::{Value, json};

#[tokio::test]
async fn invoices_accounts_and_keys_work_without_scripts() {
    let office = office_that_bills();
    let ruth = office.sign_in("ruth").await;
    let past = Past::of(&office, &ruth).await;
    let browser = Browser::start().await;
    browser.switch_scripts_off().await;
    open_as(&office, &browser, &ruth, "/invoices").await;
    assert_eq!(browser.script("return typeof htmx").await, "undefined");

    let draft = format!("/invoices/drafts/{}/{}", past.brightwater.account, past.last);
    browser.follow(&format!("a[href='{draft}']")).await;
    let number = it_is_issued(&office, &browser).await;
    it_is_paid_and_not_paid_after_all(&browser, &ruth, &number).await;
    credit_part_then_the_rest(&browser, &ruth, &number).await;
    it_is_issued_again(&office, &browser, &ruth, &number).await;

    let account = format!("/accounts/{}", past.brightwater.account);
    limits_are_changed(&office, &browser, &ruth, &account).await;
    key_is_created_shown_once_and_revoked(&browser, &ruth, &account).await;
    usage_is_chosen(&office, &browser, &past).await;
}

/// Issues the draft that the browser shows; returns its number.
async fn it_is_issued(office: &Office, browser: &Browser) -> String {
    browser.shows("You cannot change an invoice after you issue it.").await;
    browser.follow("a[href$='/issue']").await;
    browser.shows("You cannot change or delete it.").await;
    browser.follow("form[action$='/issue'] button").await;
    browser.shows("can no longer be changed").await;
    let url = browser.wait_for_url(&office.portal("/invoices/")).await;
    url.path().trim_start_matches("/invoices/").to_owned()
}

async fn record(ruth: &SignedInUser, number: &str) -> Value {
    ruth.json(&format!("/invoices/{number}")).await.value()
}

async fn it_is_paid_and_not_paid_after_all(browser: &Browser, ruth: &SignedInUser, number: &str) {
    assert_eq!(record(ruth, number).await["state"], "issued");
    browser.follow("form[action$='/paid'] button").await;
    browser.shows("Marked as paid.").await;
    assert_eq!(record(ruth, number).await["state"], "paid");
    browser.follow("form[action$='/not-paid'] button").await;
    browser.shows("is awaiting payment again").await;
    assert_eq!(record(ruth, number).await["state"], "issued");
}

async fn credit_part_then_the_rest(browser: &Browser, ruth: &SignedInUser, number: &str) {
    browser.follow("a[href$='/credit']").await;
    browser.press("#part").await;
    browser.fill("#amount", "12.5x").await;
    browser.fill("#reason", "The outage of Tuesday").await;
    browser.follow("form[data-guard] button").await;
    assert_eq!(browser.status().await, 422);
    browser.fill("#amount", "12.50").await;
    browser.follow("form[data-guard] button").await;
    browser.shows("Preview").await;
    assert_eq!(record(ruth, number).await["credited"], "0.00", "looking at it changes nothing");
    browser.follow("form.actions button.button-primary").await;
    browser.shows("The outage of Tuesday").await;
    let invoice = record(ruth, number).await;
    assert_eq!(
        (&invoice["state"], &invoice["credited"]),
        (&json!("issued"), &json!("13.28")),
        "with its tax"
    );

    browser.follow(&format!("a[href='/invoices/{number}']")).await;
    browser.follow("a[href$='/credit']").await;
    browser.press("#whole").await;
    browser.fill("#reason", "It went to the wrong address").await;
    browser.follow("form[data-guard] button").await;
    browser.follow("form.actions button.button-primary").await;
    browser.shows("It went to the wrong address").await;
    let invoice = record(ruth, number).await;
    assert_eq!(
        (&invoice["state"], &invoice["credited"], &invoice["outstanding"]),
        (&json!("void"), &invoice["total"], &json!("0.00"))
    );
}

async fn it_is_issued_again(office: &Office, browser: &Browser, ruth: &SignedInUser, void: &str) {
    browser.follow(&format!("a[href='/invoices/{void}']")).await;
    browser.follow("a[href^='/invoices/drafts/']").await;
    let number = it_is_issued(office, browser).await;
    assert_ne!(number, void);
    let (new, old) = (record(ruth, &number).await, record(ruth, void).await);
    assert_eq!((&new["state"], &new["lines"]), (&json!("issued"), &old["lines"]));
    let changes: Vec<_> = old["events"].as_array().unwrap().iter().map(|event| &event["deed"]).collect();
    assert_eq!(changes.len(), 5, "{changes:?}");
}

async fn limits_are_changed(office: &Office, browser: &Browser, ruth: &SignedInUser, account: &str) {
    browser.open(&office.portal(account)).await;
    browser.press("section[aria-labelledby=limits] summary").await;
    browser.fill("#rpm", "0").await;
    browser.follow("section[aria-labelledby=limits] form button").await;
    assert_eq!(browser.status().await, 422);
    browser.fill("#rpm", "90").await;
    browser.fill("#cap", "512.5").await;
    browser.follow("section[aria-labelledby=limits] form button").await;
    browser.wait_for_url(&office.portal(&format!("{account}?done="))).await;
    let changed = ruth.json(account).await.value();
    assert_eq!((&changed["rpm"], &changed["spend_per_month"]), (&json!(90), &json!("512.50")));
}

async fn key_is_created_shown_once_and_revoked(browser: &Browser, ruth: &SignedInUser, account: &str) {
    browser.follow("section[aria-labelledby=new-key] a[href*='open=key']").await;
    browser.fill("#label", "night shift").await;
    browser.follow("section[aria-labelledby=new-key] form button").await;
    browser.shows("Copy it now").await;
    let key = browser.script("return document.querySelector('#new-key').value").await;
    let key = ApiKey::parse(key.as_str().unwrap()).unwrap();
    browser.follow("main a.button-primary").await;
    browser.shows("night shift").await;
    let page = browser.script("return document.documentElement.outerHTML").await;
    assert!(!page.as_str().unwrap().contains(key.reveal()), "it is shown once");

    let prefix = key.prefix().to_string();
    browser.follow(&format!("tbody a[href*='key={prefix}']")).await;
    browser.press("#key-card details:has(form[action$='/revoke']) summary").await;
    browser.follow("#key-card form[action$='/revoke'] button").await;
    browser.shows("Revoked").await;
    let keys = ruth.json(account).await.value()["keys"].take();
    let revoked = keys.as_array().unwrap().iter().find(|key| key["prefix"] == prefix.as_str()).unwrap();
    assert!(revoked["revoked_at"].is_string(), "{revoked}");
}

async fn usage_is_chosen(office: &Office, browser: &Browser, past: &Past) {
    browser.open(&office.portal(&format!("/usage?month={}", past.last))).await;
    browser.fill_choice("#account", super::billing_history::NORTHGATE).await;
    browser.follow("form[action='/usage'] button").await;
    let account = past.northgate.account;
    browser.wait_for_url(&office.portal(&format!("/usage?account={account}&month={}", past.last))).await;
    browser.press("section[aria-labelledby=tokens] summary").await;
    browser.shows("Daily amounts are rounded.").await;
}
