//! An invoice as a page, JSON, PDF and CSV.

use super::{assert_has, json, page, rejected};
use crate::tests::firm::Firm;
use axum::http::StatusCode;
use chancery_domain::{Principal, RequestId, Role};
use chancery_policy::{AuthzRequest, FirmResource, ReadInvoices};

#[tokio::test]
async fn invoice_page_shows_every_amount() {
    let mut firm = Firm::open().await;
    let payer = firm.used("Brightwater Claims", "2026-10").await;
    firm.settle(payer, "2026-10-20", "qwen2.5-7b", (182_640_275, 24_118_906)).await;
    firm.issued(payer, "2026-10").await;
    let sheet = page(&mut firm, "/invoices/2026-0001").await;
    assert_has(
        &sheet,
        &[
            "qwen2.5-7b, input<span class=\"sub only-phone\">182,640,275 tokens at 0.10 per million</span>",
            "<span class=\"sub only-phone\">exact: 18.2640275</span>",
            "Amount, USD",
            "<dt>Subtotal</dt><dd>28.08</dd>",
            "<dt>Sales tax, 6.25%</dt><dd>1.76</dd>",
            "<dt>Total</dt><dd>$29.84</dd>",
            "First Harbor Bank, account 000 123 456.",
            "rounded to the nearest cent, with halves rounded to even",
            "Before rounding, the lines add up to 28.0785025 USD.",
            "<caption class=\"visually-hidden\">Lines of Invoice 2026-0001, in USD</caption>",
            "href=\"/invoices/2026-0001.pdf\"",
            "href=\"/invoices/2026-0001.csv\"",
        ],
    );
    let record = json(&mut firm, "/invoices/2026-0001").await;
    assert_eq!(record["number"], "2026-0001");
    assert_eq!(
        (&record["subtotal"], &record["total"], &record["exact"]),
        (&"28.08".into(), &"29.84".into(), &"28.0785025".into())
    );
    assert_eq!(record["lines"].as_array().unwrap().len(), 4);
    assert_eq!(record["events"][0]["by"], "ruth@company.com");
}

#[tokio::test]
async fn pdf_is_the_issued_file_byte_for_byte() {
    let mut firm = Firm::open().await;
    let payer = firm.used("Brightwater Claims", "2026-10").await;
    let number = firm.issued(payer, "2026-10").await;
    let portal = &firm.portal.portal;
    let authz_request = AuthzRequest {
        by: Principal::Person { id: firm.ruth.id, role: Role::Partner },
        at: portal.clock.now(),
        request_id: RequestId::new(portal.clock.now(), portal.randomness.as_ref()),
    };
    let permit = portal.policy.decide::<ReadInvoices>(&authz_request, FirmResource).unwrap();
    let stored = portal.store.invoices.read_invoice_document(permit, number).await.unwrap().unwrap();
    // Later changes to the account do not affect it.
    firm.bill_to(payer, "A new address", "").await;
    let (headers, pdf) = firm.ruth.browser.download("/invoices/2026-0001.pdf").await;
    assert_eq!(headers["content-type"], "application/pdf");
    assert_eq!(headers["content-disposition"], "inline; filename=\"invoice-2026-0001.pdf\"");
    assert_eq!(headers["cache-control"], "no-store");
    assert_eq!(headers["x-content-type-options"], "nosniff");
    assert!(pdf == stored && pdf.starts_with(b"%PDF-"), "{} bytes and {}", pdf.len(), stored.len());
}

#[tokio::test]
async fn csv_matches_the_document() {
    let mut firm = Firm::open().await;
    let payer = firm.used("Brightwater Claims", "2026-10").await;
    firm.issued(payer, "2026-10").await;
    let file = firm.ruth.browser.get("/invoices/2026-0001.csv").await;
    assert_eq!(file.headers["content-type"], "text/csv; charset=utf-8; header=present");
    assert_eq!(file.headers["content-disposition"], "attachment; filename=\"invoice-2026-0001.csv\"");
    assert_has(&file.body, &["2026-0001", "smollm2-135m", "1284310", "0.128431"]);
}

#[tokio::test]
async fn unknown_invoice_is_404_in_every_format() {
    let mut firm = Firm::open().await;
    for number in ["2026-0001", "2026-1", "nothing", "%FF", "2026-0001.xml", ".pdf", "+2026-0001"] {
        for suffix in ["", ".pdf", ".csv"] {
            let reply = firm.ruth.browser.get(&format!("/invoices/{number}{suffix}")).await;
            rejected(&reply, StatusCode::NOT_FOUND, &["Invoice not found", "Go to invoices"]);
        }
    }
}
