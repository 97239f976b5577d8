//! Marking invoices as paid and unpaid.

use super::{assert_has, assert_has_not, done, json, page, rejected};
use crate::tests::firm::Firm;
use axum::http::StatusCode;

#[tokio::test]
async fn paid_and_unpaid_are_recorded_with_author() {
    let mut firm = Firm::open().await;
    let payer = firm.used("Brightwater Claims", "2026-10").await;
    firm.issued(payer, "2026-10").await;
    let (invoice, shown) = done(&mut firm, "/invoices/2026-0001/paid", "").await;
    assert_eq!(invoice, "/invoices/2026-0001");
    assert_has(
        &shown,
        &[
            "Marked as paid.</strong> Invoice 2026-0001: $0.18.",
            "badge-paid\">Paid",
            "Marked as paid by <span class=\"person\" dir=\"auto\" data-initials=\"R\" title=\"ruth@company.com\">ruth@<wbr>company.com",
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
        &[
            "Marked as unpaid.",
            "badge-issued\">Issued",
            "Marked as unpaid by <span class=\"person\" dir=\"auto\" data-initials=\"R\" title=\"ruth@company.com\">ruth@<wbr>company.com",
        ],
    );
    assert_eq!(shown.matches("Marked as paid by").count(), 1, "doing it again changes nothing");
    let changes: Vec<String> = json(&mut firm, "/invoices/2026-0001").await["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["deed"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(changes, ["issued", "paid", "payment_taken_back"]);
    let stale = page(&mut firm, "/invoices/2026-0001?done=paid").await;
    assert_has_not(&stale, &["Marked as paid.</strong>"]);
}

#[tokio::test]
async fn only_invoices_can_be_marked_paid() {
    let mut firm = Firm::open().await;
    for number in ["2026-0001", "2026-1", "x", "%FF", "99999-0001", "2026-0000"] {
        for change in ["paid", "not-paid"] {
            let reply = firm.ruth.browser.post(&format!("/invoices/{number}/{change}"), "").await;
            rejected(&reply, StatusCode::NOT_FOUND, &["Invoice not found"]);
        }
    }
}
