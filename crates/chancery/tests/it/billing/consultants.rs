//! Consultants see no links to invoices, usage and accounts, and none of these pages opens for them.

use super::billing_history::{BRIGHTWATER, Past, office_that_bills};
use super::open_as;
use crate::browser::Browser;
use serde_json::json;

#[tokio::test]
async fn consultant_can_neither_see_nor_open_billing_pages() {
    let office = office_that_bills();
    let (maya, ruth) = (office.sign_in("maya").await, office.sign_in("ruth").await);
    let past = Past::of(&office, &ruth).await;
    let documents = past.invoice().await;
    let browser = Browser::start().await;
    let links = "return [...document.querySelectorAll('.bar-nav a')].map(link => link.innerText)";
    open_as(&office, &browser, &ruth, "/clients").await;
    assert_eq!(
        browser.script(links).await,
        json!(["Home", "Clients", "Invoices", "Usage", "Accounts", "Team", "Audit"])
    );
    open_as(&office, &browser, &maya, "/clients").await;
    assert_eq!(browser.script(links).await, json!(["Home", "Clients"]));

    let (account, last, running) = (past.brightwater.account, past.last, past.running);
    for path in [
        "/invoices".to_owned(),
        "/invoices?state=paid".to_owned(),
        "/invoices.csv".to_owned(),
        format!("/invoices/{}", documents.paid),
        format!("/invoices/{}.pdf", documents.paid),
        format!("/invoices/{}.csv", documents.paid),
        format!("/invoices/{}/credit", documents.overdue),
        format!("/invoices/{}", documents.credit_note),
        "/invoices/2026-9999".to_owned(),
        format!("/invoices/drafts/{account}/{last}"),
        format!("/invoices/drafts/{account}/{last}/issue"),
        format!("/invoices/drafts/{account}/{running}"),
        "/usage".to_owned(),
        format!("/usage?account={account}&month={last}"),
        "/accounts".to_owned(),
        "/accounts?open=account".to_owned(),
        format!("/accounts/{account}"),
        "/accounts/999999".to_owned(),
    ] {
        browser.open(&office.portal(&path)).await;
        browser.shows("Only partners can open").await;
        assert_eq!(browser.status().await, 403, "{path}");
        let shown = browser.page_text().await;
        assert!(!shown.contains(BRIGHTWATER), "{path}: {shown}");
        assert_eq!(browser.script(links).await, json!(["Home", "Clients"]), "{path}");
    }
}
