//! Invoices are for partners. Everyone else gets the same denial for every number.

use crate::tests::firm::Firm;
use crate::tests::routes::{HTML, JSON};
use axum::http::StatusCode;

#[tokio::test]
async fn consultants_get_the_same_403_for_every_invoice() {
    let mut firm = Firm::open().await;
    let payer = firm.used("Brightwater Claims", "2026-10").await;
    firm.issued(payer, "2026-10").await;
    let account = payer.account;
    for accept in [HTML, JSON] {
        firm.ann.browser.accept = accept;
        let there = firm.ann.browser.get("/invoices/2026-0001").await;
        assert_eq!(there.status, StatusCode::FORBIDDEN);
        assert!(!there.body.contains("2026-0001"), "{}", there.body);
        for path in [
            "/invoices".to_owned(),
            "/invoices?state=late".to_owned(),
            "/invoices.csv".to_owned(),
            "/invoices/2026-0002".to_owned(),
            "/invoices/nothing".to_owned(),
            "/invoices/%FF".to_owned(),
            "/invoices/2026-0001.pdf".to_owned(),
            "/invoices/2026-0002.pdf".to_owned(),
            "/invoices/2026-0001.csv".to_owned(),
            "/invoices/2026-0001/credit".to_owned(),
            "/invoices/2026-0002/credit".to_owned(),
            format!("/invoices/drafts/{account}/2026-10"),
            format!("/invoices/drafts/{account}/2026-10/issue"),
            format!("/invoices/drafts/{account}/2026-13"),
            "/invoices/drafts/987654/2026-10".to_owned(),
        ] {
            let reply = firm.ann.browser.get(&path).await;
            assert_eq!((reply.status, &reply.body), (there.status, &there.body), "{path}");
        }
        for path in [
            "/invoices/2026-0001/paid".to_owned(),
            "/invoices/2026-0002/paid".to_owned(),
            "/invoices/2026-0001/not-paid".to_owned(),
            "/invoices/2026-0001/credit".to_owned(),
            "/invoices/2026-0002/credit".to_owned(),
            format!("/invoices/drafts/{account}/2026-11/issue"),
            "/invoices/drafts/x/y/issue".to_owned(),
        ] {
            let reply = firm.ann.browser.post(&path, "").await;
            assert_eq!((reply.status, &reply.body), (there.status, &there.body), "{path}");
        }
        // The form is not parsed before the policy has decided.
        firm.ann.browser.content_type = "text/plain";
        let reply = firm.ann.browser.post("/invoices/2026-0001/credit", "credit=whole").await;
        assert_eq!((reply.status, &reply.body), (there.status, &there.body));
        firm.ann.browser.content_type = "application/x-www-form-urlencoded";
    }
    firm.ann.browser.accept = HTML;
    let clients = firm.ann.browser.get("/clients").await;
    assert!(!clients.body.contains("/invoices"), "{}", clients.body);
}
