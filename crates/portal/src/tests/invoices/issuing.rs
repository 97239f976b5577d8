//! Drafts and issuing.

use super::{assert_has, assert_has_not, done, form, json, page, rejected};
use crate::tests::firm::Firm;
use crate::tests::routes::JSON;
use crate::tests::{TestPortal, invoice_terms};
use axum::http::StatusCode;
use serde_json::{Value, json as value};

#[tokio::test]
async fn draft_invoice_previews_and_warns_that_issuing_is_final() {
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
            "You cannot change an invoice after you issue it.",
            &format!("href=\"{path}/issue\""),
            "48 Commercial Wharf<br>Boston, MA 02110",
            "October 2026 (UTC)",
            "30 days after issue",
            "smollm2-135m, input",
            "1,284,310",
            "0.128431<span class=\"pad\" aria-hidden=\"true\">0</span>",
            "0.0384816",
            "Sales tax, 6.25%",
            "$0.18",
            "No billing address.",
            &format!("href=\"/accounts/{}?open=billing&#38;draft=2026-10#billing\"", payer.account),
        ],
    );
    firm.bill_to(payer, "Rob Santangelo\n210 Pier Road, Salem", "accounts@brightwater.example").await;
    let draft = page(&mut firm, &path).await;
    assert_has(&draft, &["Rob Santangelo<br>210 Pier Road, Salem<br>accounts@brightwater.example"]);
    assert_has_not(&draft, &["No billing address", "This account has no billing email"]);

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
async fn draft_warns_about_missing_settings_but_can_be_issued() {
    for (letterhead, payment, there, absent) in [
        ("", "", vec!["billing.letterhead", "billing.payment"], vec![]),
        ("48 Commercial Wharf", "", vec!["billing.payment"], vec!["billing.letterhead"]),
        ("", "By bank transfer.", vec!["billing.letterhead"], vec!["billing.payment"]),
        ("48 Commercial Wharf", "By bank transfer.", vec![], vec!["billing.letterhead", "billing.payment"]),
    ] {
        let mut terms = invoice_terms();
        (terms.seller.letterhead, terms.seller.payment) = (letterhead.to_owned(), payment.to_owned());
        let mut firm = Firm::at(TestPortal::open_billing(terms).await).await;
        let payer = firm.used("Brightwater Claims", "2026-10").await;
        let draft = page(&mut firm, &format!("/invoices/drafts/{}/2026-10", payer.account)).await;
        assert_has(&draft, &there);
        assert_has(&draft, &["Issue invoice</a>"]);
        assert_has_not(&draft, &absent);
        assert_eq!(draft.contains("Payment</h2>"), !payment.is_empty());
    }
}

#[tokio::test]
async fn issuing_twice_leads_to_the_same_invoice() {
    let mut firm = Firm::open().await;
    let payer = firm.used("Brightwater Claims", "2026-10").await;
    firm.bill_to(payer, "210 Pier Road", "accounts@brightwater.example").await;
    let path = format!("/invoices/drafts/{}/2026-10", payer.account);
    let (invoice, shown) = done(&mut firm, &format!("{path}/issue"), "").await;
    assert_eq!(invoice, "/invoices/2026-0001");
    assert_has(
        &shown,
        &[
            "<strong>Issued.</strong> Invoice 2026-0001 can no longer be changed. Send the PDF to accounts@brightwater.example.",
            "<h1>Invoice 2026-0001",
            "badge-issued\">Issued",
            "$0.18 due on 13 December 2026.",
            "Issued by <span class=\"person\" dir=\"auto\" data-initials=\"R\" title=\"ruth@company.com\">ruth@<wbr>company.com",
            "action=\"/invoices/2026-0001/paid\"",
            "href=\"/invoices/2026-0001/credit\"",
            "Please quote 2026-0001.",
            "13 November 2026",
        ],
    );
    let again = firm.rob.browser.post(&format!("{path}/issue"), "").await;
    assert_eq!(again.location(), "/invoices/2026-0001?done=already-issued");
    let shown = firm.rob.browser.get(again.location()).await;
    assert_has(&shown.body, &["Already issued.", "No second invoice was issued."]);
    let reply = firm.ruth.browser.get(&path).await;
    assert_eq!((reply.status, reply.location()), (StatusCode::SEE_OTHER, "/invoices/2026-0001"));
    assert_eq!(json(&mut firm, "/invoices").await["total"], 1);
}

#[tokio::test]
async fn concurrent_issues_create_one_invoice() {
    let mut firm = Firm::open().await;
    let payer = firm.used("Brightwater Claims", "2026-10").await;
    firm.bill_to(payer, "210 Pier Road", "accounts@brightwater.example").await;
    let path = format!("/invoices/drafts/{}/2026-10/issue", payer.account);
    let (first, second) = tokio::join!(firm.ruth.browser.post(&path, ""), firm.rob.browser.post(&path, ""));
    let mut locations = [first.location(), second.location()];
    locations.sort_unstable();
    assert_eq!(locations, ["/invoices/2026-0001?done=already-issued", "/invoices/2026-0001?done=issued"]);
}

#[tokio::test]
async fn current_month_is_previewed_but_not_issued() {
    let mut firm = Firm::open().await;
    let payer = firm.used("Brightwater Claims", "2026-11").await;
    let path = format!("/invoices/drafts/{}/2026-11", payer.account);
    let draft = page(&mut firm, &path).await;
    assert_has(&draft, &["November 2026 has not ended", "2026-12-01 01:00 UTC", "Amount so far"]);
    assert_has_not(&draft, &["Issue invoice</a>", "You cannot change an invoice after you issue it"]);
    let reply = firm.ruth.browser.post(&format!("{path}/issue"), "").await;
    rejected(
        &reply,
        StatusCode::CONFLICT,
        &["Month not ready to invoice", "2026-12-01 01:00 UTC", "Nothing was issued"],
    );
    firm.ruth.browser.accept = JSON;
    let reply = firm.ruth.browser.post(&format!("{path}/issue"), "").await;
    assert!(reply.body.contains("\"month_still_open\""), "{}", reply.body);
    assert_eq!(json(&mut firm, "/invoices").await["total"], 0);
}

#[tokio::test]
async fn no_draft_without_usage_or_account() {
    let mut firm = Firm::open().await;
    let payer = firm.used("Brightwater Claims", "2026-10").await;
    let nothing = page(&mut firm, &format!("/invoices/drafts/{}/2026-09", payer.account)).await;
    assert_has(&nothing, &["Nothing to invoice", "Brightwater Claims has no usage in September 2026 (UTC)."]);
    assert_has_not(&nothing, &["Issue invoice</a>"]);
    let path = format!("/invoices/drafts/{}/2026-09/issue", payer.account);
    let reply = firm.ruth.browser.post(&path, "").await;
    rejected(&reply, StatusCode::CONFLICT, &["Nothing to invoice"]);
    for (path, text) in [
        ("/invoices/drafts/987654/2026-10".to_owned(), "Account not found"),
        ("/invoices/drafts/x/2026-10".to_owned(), "Account not found"),
        (format!("/invoices/drafts/{}/2026-13", payer.account), "Month not found"),
        (format!("/invoices/drafts/{}/%FF", payer.account), "Account not found"),
    ] {
        rejected(&firm.ruth.browser.get(&path).await, StatusCode::NOT_FOUND, &[text]);
        let reply = firm.ruth.browser.post(&format!("{path}/issue"), "").await;
        rejected(&reply, StatusCode::NOT_FOUND, &[text]);
    }
}

#[tokio::test]
async fn issuing_asks_for_confirmation_with_total_and_consequences() {
    let mut firm = Firm::open().await;
    let payer = firm.used("Brightwater Claims", "2026-10").await;
    firm.bill_to(payer, "210 Pier Road", "accounts@brightwater.example").await;
    let path = format!("/invoices/drafts/{}/2026-10/issue", payer.account);
    let shown = page(&mut firm, &path).await;
    assert_has(
        &shown,
        &[
            "<h1>Issue invoice for $0.18?</h1>",
            "October 2026 (UTC)",
            "You cannot change or delete it.",
            "$0.18 is due on 13 December 2026.",
            "210 Pier Road",
            "accounts@brightwater.example",
            &format!("action=\"{path}\""),
            "Issue invoice</button>",
        ],
    );
    assert_eq!(json(&mut firm, "/invoices").await["total"], 0, "a click on the link issues nothing");
    let (invoice, _) = done(&mut firm, &path, "").await;
    assert_eq!(invoice, "/invoices/2026-0001");
    let reply = firm.ruth.browser.get(&path).await;
    assert_eq!((reply.status, reply.location()), (StatusCode::SEE_OTHER, "/invoices/2026-0001"));

    // What cannot be issued leads back to the draft, which says why.
    for month in ["2026-09", "2026-11"] {
        let draft = format!("/invoices/drafts/{}/{month}", payer.account);
        let reply = firm.ruth.browser.get(&format!("{draft}/issue")).await;
        assert_eq!((reply.status, reply.location()), (StatusCode::SEE_OTHER, draft.as_str()));
    }
}

#[tokio::test]
async fn invoice_without_billing_address_is_not_issued() {
    let mut firm = Firm::open().await;
    let payer = firm.used("Brightwater Claims", "2026-10").await;
    let path = format!("/invoices/drafts/{}/2026-10/issue", payer.account);
    let add = format!("href=\"/accounts/{}?open=billing&#38;draft=2026-10#billing\"", payer.account);
    let shown = page(&mut firm, &path).await;
    assert_has(&shown, &["No billing address.", &add]);
    assert_has_not(&shown, &["Issue invoice</button>"]);
    let reply = firm.ruth.browser.post(&path, "").await;
    rejected(&reply, StatusCode::CONFLICT, &["No billing address", "Nothing was issued", &add]);
    assert_eq!(json(&mut firm, "/invoices").await["total"], 0);
    let account = format!("/accounts/{}", payer.account);
    let shown = page(&mut firm, &format!("{account}?open=billing&draft=2026-10")).await;
    let draft = "name=\"draft\" value=\"2026-10\"";
    assert_has(&shown, &["<details open>\n          <summary>Edit billing contact", draft]);
    for (month, next) in [
        ("2026-10", format!("/invoices/drafts/{}/2026-10", payer.account)),
        ("//evil.example", format!("{account}?done=")),
    ] {
        let fields = form(&[("address", "210 Pier Road"), ("draft", month)]);
        let saved = firm.ruth.browser.post(&format!("{account}/billing"), &fields).await;
        assert_eq!(saved.status, StatusCode::SEE_OTHER, "{}", saved.body);
        assert!(saved.location().starts_with(&next), "{}", saved.location());
    }
}

#[tokio::test]
async fn text_that_no_font_can_print_is_named_and_not_issued() {
    let mut firm = Firm::open().await;
    let payer = firm.used("Brightwater Claims", "2026-10").await;
    firm.bill_to(payer, "東京都 1-1", "accounts@brightwater.example").await;
    let draft = format!("/invoices/drafts/{}/2026-10", payer.account);
    let problem = "The billing address contains characters that cannot be printed: 東 (U+6771), 京 (U+4EAC), 都 (U+90FD).";
    for path in [draft.clone(), format!("{draft}/issue")] {
        assert_has(&page(&mut firm, &path).await, &["Text cannot be printed.", problem, "billing.fonts"]);
    }
    let reply = firm.ruth.browser.post(&format!("{draft}/issue"), "").await;
    rejected(&reply, StatusCode::CONFLICT, &["Text cannot be printed", problem, "Nothing was issued"]);
    firm.bill_to(payer, "شارع الملك فهد، الرياض", "accounts@brightwater.example").await;
    assert_has_not(&page(&mut firm, &draft).await, &["cannot be printed"]);
    let (invoice, _) = done(&mut firm, &format!("{draft}/issue"), "").await;
    assert_eq!(invoice, "/invoices/2026-0001");
}
