//! What was paid, and what was not after all.

use super::{assert_has, assert_has_not, done, json, page, refused};
use crate::tests::firm::Firm;
use axum::http::StatusCode;

#[tokio::test]
async fn an_invoice_is_marked_as_paid_and_back_and_its_history_says_by_whom() {
    let mut firm = Firm::open().await;
    let payer = firm.used("Brightwater Claims", "2026-10").await;
    firm.issued(payer, "2026-10").await;
    let (invoice, shown) = done(&mut firm, "/invoices/2026-0001/paid", "").await;
    assert_eq!(invoice, "/invoices/2026-0001");
    assert_has(
        &shown,
        &[
            "Marked as paid.</strong> $0.18 of invoice 2026-0001 counts as paid.",
            "badge-paid\">Paid",
            "Marked as paid by ruth@<wbr>company.com",
            "action=\"/invoices/2026-0001/not-paid\"",
        ],
    );
    assert_has_not(&shown, &["action=\"/invoices/2026-0001/paid\""]);
    let paid = json(&mut firm, "/invoices/2026-0001").await;
    assert_eq!((&paid["state"], &paid["outstanding"]), (&"paid".into(), &"0.00".into()));

    done(&mut firm, "/invoices/2026-0001/paid", "").await;
    let (_, shown) = done(&mut firm, "/invoices/2026-0001/not-paid", "").await;
    assert_has(
        &shown,
        &["Taken back.", "badge-issued\">Issued", "Marked as not paid after all by ruth@<wbr>company.com"],
    );
    assert_eq!(shown.matches("Marked as paid by").count(), 1, "doing it again changes nothing");
    let deeds: Vec<String> = json(&mut firm, "/invoices/2026-0001").await["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["deed"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(deeds, ["issued", "paid", "payment_taken_back"]);
    let stale = page(&mut firm, "/invoices/2026-0001?done=paid").await;
    assert_has_not(&stale, &["counts as paid"]);
}

#[tokio::test]
async fn what_is_no_invoice_cannot_be_paid() {
    let mut firm = Firm::open().await;
    for number in ["2026-0001", "2026-1", "x", "%FF", "99999-0001", "2026-0000"] {
        for deed in ["paid", "not-paid"] {
            let reply = firm.ruth.browser.post(&format!("/invoices/{number}/{deed}"), "").await;
            refused(&reply, StatusCode::NOT_FOUND, &["There is no such invoice"]);
        }
    }
}
