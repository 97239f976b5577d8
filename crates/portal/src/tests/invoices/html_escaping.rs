//! Account names and credit reasons are plain text.

use super::form;
use crate::tests::firm::Firm;
use axum::http::StatusCode;

const HOSTILE: &str = "\"><script>alert(1)</script><img src=x onerror=alert(1)>' {{7*7}} </title><!--";

#[tokio::test]
async fn invoice_texts_are_escaped_on_every_page() {
    let mut firm = Firm::open().await;
    let payer = firm.used(HOSTILE, "2026-10").await;
    firm.settle(payer, "2026-10-15", HOSTILE, (5, 5)).await;
    firm.settle(payer, "2026-11-02", HOSTILE, (5, 5)).await;
    firm.bill_to(payer, HOSTILE, "\"><script>alert(1)</script>@x").await;
    firm.issued(payer, "2026-10").await;
    let credit = "/invoices/2026-0001/credit";
    let fields = [("credit", "part"), ("amount", "0.01"), ("reason", HOSTILE)];
    let mut pages = vec![
        firm.ruth.browser.post(credit, &form(&[&fields[..], &[("look", "1")]].concat())).await,
        firm.ruth
            .browser
            .post(credit, &form(&[("credit", "part"), ("amount", HOSTILE), ("reason", HOSTILE)]))
            .await,
    ];
    assert_eq!(firm.ruth.browser.post(credit, &form(&fields)).await.status, StatusCode::SEE_OTHER);
    for path in [
        "/invoices".to_owned(),
        format!("/invoices?account={}", payer.account),
        "/invoices/2026-0001?done=issued".to_owned(),
        "/invoices/2026-0001?done=already-issued".to_owned(),
        "/invoices/2026-0002?done=credited".to_owned(),
        credit.to_owned(),
        format!("/invoices/drafts/{}/2026-11", payer.account),
    ] {
        let page = firm.ruth.browser.get(&path).await;
        assert_eq!(page.status, StatusCode::OK, "{path}");
        pages.push(page);
    }
    for page in pages {
        for part in ["<script>", "<img", "onerror=alert(1)>", "alert(1)</"] {
            assert!(!page.body.contains(part), "{part}: {}", page.body);
        }
        assert!(page.body.contains("&#60;script&#62;"), "it is there, as text: {}", page.body);
        assert_eq!(page.body.matches("</title>").count(), 1);
        assert_eq!(page.body.matches("<!--").count(), 0);
    }
}
