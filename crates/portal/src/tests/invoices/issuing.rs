//! Drafts, and issuing them.

use super::{assert_has, assert_has_not, done, json, page, refused};
use crate::tests::firm::Firm;
use crate::tests::routes::JSON;
use axum::http::StatusCode;
use serde_json::{Value, json as value};

#[tokio::test]
async fn a_draft_shows_what_would_be_issued_and_that_it_is_final() {
    let mut firm = Firm::open().await;
    let payer = firm.used("Brightwater Claims", "2026-10").await;
    let path = format!("/invoices/drafts/{}/2026-10", payer.account);
    let draft = page(&mut firm, &path).await;
    assert_has(
        &draft,
        &[
            "<h1>Brightwater Claims, October 2026",
            "badge-draft\">Draft",
            "Draft invoice",
            "Not issued",
            "Issuing is final.",
            &format!("action=\"{path}/issue\""),
            "48 Commercial Wharf<br>Boston, MA 02110",
            "October 2026 (UTC)",
            "30 days after it is issued",
            "smollm2-135m, input",
            "1,284,310",
            "0.128431<span class=\"pad\" aria-hidden=\"true\">0</span>",
            "0.0384816",
            "Sales tax, 6.25\u{a0}%",
            "$0.18",
            "No billing address.",
            &format!("href=\"/accounts/{}\"", payer.account),
        ],
    );
    firm.bill_to(payer, "Rob Santangelo\n210 Pier Road, Salem", "accounts@brightwater.example").await;
    let draft = page(&mut firm, &path).await;
    assert_has(&draft, &["Rob Santangelo<br>210 Pier Road, Salem<br>accounts@brightwater.example"]);
    assert_has_not(&draft, &["No billing address", "No e-mail address"]);

    let draft = json(&mut firm, &path).await;
    for (name, expected) in [
        ("number", Value::Null),
        ("issued_at", Value::Null),
        ("due", Value::Null),
        ("state", value!("draft")),
        ("month", value!("2026-10")),
        ("can_be_issued_from", value!("2026-11-01T01:00:00.000Z")),
        ("subtotal", value!("0.17")),
        ("total", value!("0.18")),
        ("exact", value!("0.1669126")),
    ] {
        assert_eq!(draft[name], expected, "{name}");
    }
}

#[tokio::test]
async fn issuing_leads_to_the_invoice_and_a_second_person_to_the_same_one() {
    let mut firm = Firm::open().await;
    let payer = firm.used("Brightwater Claims", "2026-10").await;
    firm.bill_to(payer, "210 Pier Road", "accounts@brightwater.example").await;
    let path = format!("/invoices/drafts/{}/2026-10", payer.account);
    let (invoice, shown) = done(&mut firm, &format!("{path}/issue"), "").await;
    assert_eq!(invoice, "/invoices/2026-0001");
    assert_has(
        &shown,
        &[
            "<strong>Issued.</strong> Invoice 2026-0001 can no longer change. Send the PDF to accounts@brightwater.example.",
            "<h1>Invoice 2026-0001",
            "badge-issued\">Issued",
            "Waiting for payment of $0.18, due on 13 December 2026.",
            "Issued by ruth@<wbr>company.com",
            "action=\"/invoices/2026-0001/paid\"",
            "href=\"/invoices/2026-0001/credit\"",
            "Please quote 2026-0001.",
            "13 November 2026",
        ],
    );
    let again = firm.rob.browser.post(&format!("{path}/issue"), "").await;
    assert_eq!(again.location(), "/invoices/2026-0001?done=already-issued");
    let shown = firm.rob.browser.get(again.location()).await;
    assert_has(&shown.body, &["Issued already.", "no second one was made"]);
    let reply = firm.ruth.browser.get(&path).await;
    assert_eq!((reply.status, reply.location()), (StatusCode::SEE_OTHER, "/invoices/2026-0001"));
    assert_eq!(json(&mut firm, "/invoices").await["total"], 1);
}

#[tokio::test]
async fn two_people_who_issue_at_once_make_one_invoice() {
    let mut firm = Firm::open().await;
    let payer = firm.used("Brightwater Claims", "2026-10").await;
    let path = format!("/invoices/drafts/{}/2026-10/issue", payer.account);
    let (first, second) = tokio::join!(firm.ruth.browser.post(&path, ""), firm.rob.browser.post(&path, ""));
    let mut places = [first.location(), second.location()];
    places.sort_unstable();
    assert_eq!(places, ["/invoices/2026-0001?done=already-issued", "/invoices/2026-0001?done=issued"]);
}

#[tokio::test]
async fn a_running_month_is_shown_but_not_issued() {
    let mut firm = Firm::open().await;
    let payer = firm.used("Brightwater Claims", "2026-11").await;
    let path = format!("/invoices/drafts/{}/2026-11", payer.account);
    let draft = page(&mut firm, &path).await;
    assert_has(&draft, &["November 2026 is still running", "2026-12-01 01:00 UTC", "So far"]);
    assert_has_not(&draft, &["Issue invoice</button>", "Issuing is final"]);
    let reply = firm.ruth.browser.post(&format!("{path}/issue"), "").await;
    refused(
        &reply,
        StatusCode::CONFLICT,
        &["This month cannot be invoiced yet", "2026-12-01 01:00 UTC", "Nothing was issued"],
    );
    firm.ruth.browser.accept = JSON;
    let reply = firm.ruth.browser.post(&format!("{path}/issue"), "").await;
    assert!(reply.body.contains("\"month_still_open\""), "{}", reply.body);
    assert_eq!(json(&mut firm, "/invoices").await["total"], 0);
}

#[tokio::test]
async fn a_month_without_usage_and_an_account_that_is_not_there_have_no_draft() {
    let mut firm = Firm::open().await;
    let payer = firm.used("Brightwater Claims", "2026-10").await;
    let nothing = page(&mut firm, &format!("/invoices/drafts/{}/2026-09", payer.account)).await;
    assert_has(&nothing, &["Nothing to invoice", "Brightwater Claims used nothing in September 2026 (UTC)."]);
    assert_has_not(&nothing, &["Issue invoice</button>"]);
    let path = format!("/invoices/drafts/{}/2026-09/issue", payer.account);
    let reply = firm.ruth.browser.post(&path, "").await;
    refused(&reply, StatusCode::CONFLICT, &["There is nothing to invoice"]);
    for (path, words) in [
        ("/invoices/drafts/987654/2026-10".to_owned(), "There is no such account"),
        ("/invoices/drafts/x/2026-10".to_owned(), "There is no such account"),
        (format!("/invoices/drafts/{}/2026-13", payer.account), "There is no such month"),
        (format!("/invoices/drafts/{}/%FF", payer.account), "There is no such account"),
    ] {
        refused(&firm.ruth.browser.get(&path).await, StatusCode::NOT_FOUND, &[words]);
        let reply = firm.ruth.browser.post(&format!("{path}/issue"), "").await;
        refused(&reply, StatusCode::NOT_FOUND, &[words]);
    }
}
