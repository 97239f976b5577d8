//! Consultants see no links to invoices, usage and accounts, and none of these pages opens for them.

use super::billing_history::{BRIGHTWATER, Past, office_that_bills};

#[tokio::test]
async fn consultant_can_neither_see_nor_open_billing_pages() {
    let office = office_that_bills();
    let (maya, ruth) = (office.sign_in("maya").await, office.sign_in("ruth").await);
    let past = Past::of(&office, &ruth).await;
    let documents = past.invoice().await;
    let links =
        ["/invoices", "/usage", "/accounts", "/team", "/audit"].map(|path| format!("href=\"{path}\""));
    let home = ruth.page("/clients").await.body;
    assert!(links.iter().all(|link| home.contains(link)), "{home}");
    let home = maya.page("/clients").await.body;
    assert!(!links.iter().any(|link| home.contains(link)), "{home}");

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
        let page = maya.page(&path).await;
        assert_eq!(page.status.as_u16(), 403, "{path}");
        assert!(page.body.contains("Only partners can open"), "{path}: {}", page.body);
        assert!(!page.body.contains(BRIGHTWATER), "{path}: {}", page.body);
        assert!(!links.iter().any(|link| page.body.contains(link)), "{path}: {}", page.body);
    }
}
