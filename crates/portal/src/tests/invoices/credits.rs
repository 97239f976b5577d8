//! Credit notes: the only way to correct an invoice.

use super::{assert_has, assert_has_not, done, form, json, page, rejected};
use crate::tests::firm::Firm;
use axum::http::StatusCode;

/// Invoice 2026-0001 over 100.00 and 6.25 of tax.
async fn with_an_invoice() -> Firm {
    let firm = Firm::open().await;
    let payer = firm.payer("Brightwater Claims").await;
    firm.settle(payer, "2026-10-14", "smollm2-135m", (1_000_000_000, 0)).await;
    firm.bill_to(payer, "210 Pier Road", "accounts@brightwater.example").await;
    firm.issued(payer, "2026-10").await;
    firm
}

const CREDIT: &str = "/invoices/2026-0001/credit";

#[tokio::test]
async fn partial_credit_includes_tax_after_preview() {
    let mut firm = with_an_invoice().await;
    let blank = page(&mut firm, CREDIT).await;
    assert_has(
        &blank,
        &[
            "Credit note for invoice 2026-0001",
            "Up to $100.00. Tax is added.",
            "Remaining amount, $106.25",
            "so_far\" value=\"0\"",
        ],
    );
    assert_has_not(&blank, &["Issue credit note", " checked"]);
    let fields =
        [("credit", "part"), ("amount", "40.00"), ("reason", "Two requests came twice."), ("so_far", "0")];
    let preview = form(&[&fields[..], &[("look", "1")]].concat());
    let reply = firm.ruth.browser.post(CREDIT, &preview).await;
    rejected(
        &reply,
        StatusCode::OK,
        &[
            "This credits $42.50. $63.75 of invoice 2026-0001 remains due.",
            "Draft credit note",
            "Two requests came twice.",
            "-40.00",
            "-2.50",
            "-$42.50",
            "Issue credit note",
        ],
    );
    assert_eq!(json(&mut firm, "/invoices").await["total"], 1, "looking changes nothing");

    let (note, shown) = done(&mut firm, CREDIT, &form(&fields)).await;
    assert_eq!(note, "/invoices/2026-0002");
    assert_has(
        &shown,
        &[
            "Credit note 2026-0002 can no longer be changed.",
            "$63.75 of invoice 2026-0001 remains due.",
            "<h1>Credit note 2026-0002",
            "href=\"/invoices/2026-0001\"",
            "Two requests came twice.",
            "-$42.50",
        ],
    );
    assert_has_not(&shown, &["Mark as paid", "2026-0002/credit"]);
    let invoice = page(&mut firm, "/invoices/2026-0001").await;
    assert_has(
        &invoice,
        &[
            "$63.75 due on 13 December 2026.",
            "<dt>Credited</dt><dd>$42.50</dd>",
            "<dt>Amount due</dt><dd>$63.75</dd>",
            "Partly credited by credit note <a class=\"num\" href=\"/invoices/2026-0002\">2026-0002</a>, by <span class=\"person\" dir=\"auto\" data-initials=\"R\" title=\"ruth@company.com\">ruth@<wbr>company.com",
        ],
    );
    let (list, found) = (page(&mut firm, "/invoices").await, json(&mut firm, "/invoices").await);
    assert_has(&list, &["credits 2026-0001", "badge-role\">Credit note", "-42.50", "63.75 remaining"]);
    assert_eq!(found["invoices"][0]["kind"], "credit_note");
    assert_eq!(found["sums"][0]["outstanding"], "63.75");
    let file = firm.ruth.browser.get("/invoices.csv").await;
    assert!(file.body.contains("2026-0002,credit_note,2026-0001,issued,"), "{}", file.body);
    assert!(file.body.contains(",USD,-42.50,0.00,0.00\r\n"), "figures are figures: {}", file.body);
}

#[tokio::test]
async fn full_credit_voids_the_invoice_and_reopens_the_month() {
    let mut firm = with_an_invoice().await;
    let fields = form(&[("credit", "whole"), ("reason", "Wrong address.")]);
    let (note, shown) = done(&mut firm, CREDIT, &fields).await;
    assert_eq!(note, "/invoices/2026-0002");
    assert_has(&shown, &["Invoice 2026-0001 is now void. You can invoice October 2026 again.", "-$106.25"]);
    let invoice = page(&mut firm, "/invoices/2026-0001").await;
    assert_has(
        &invoice,
        &[
            "badge-void\">Void",
            "This invoice was fully credited. Nothing is due.",
            "Open draft",
            "Fully credited and voided by credit note",
        ],
    );
    assert_has_not(&invoice, &["Mark as paid", "Create credit note"]);
    for path in ["/invoices/2026-0001/paid", CREDIT] {
        let reply = firm.ruth.browser.post(path, &fields).await;
        rejected(&reply, StatusCode::CONFLICT, &["Invoice is void"]);
    }
    rejected(&firm.ruth.browser.get(CREDIT).await, StatusCode::CONFLICT, &["Invoice is void"]);

    let account = json(&mut firm, "/invoices/2026-0001").await["account"]["id"].clone();
    let draft = format!("/invoices/drafts/{account}/2026-10");
    assert_has(&page(&mut firm, &draft).await, &["Issue invoice</a>", "$106.25"]);
    let (again, _) = done(&mut firm, &format!("{draft}/issue"), "").await;
    assert_eq!(again, "/invoices/2026-0003");
    let sums = &json(&mut firm, "/invoices").await["sums"][0];
    assert_eq!((&sums["billed"], &sums["outstanding"]), (&"106.25".into(), &"106.25".into()));
}

#[tokio::test]
async fn reason_that_cannot_be_printed_is_named_and_nothing_is_issued() {
    let mut firm = with_an_invoice().await;
    let fields = [("credit", "whole"), ("reason", "誤り")];
    for form in [form(&fields), form(&[&fields[..], &[("look", "1")]].concat())] {
        let reply = firm.ruth.browser.post(CREDIT, &form).await;
        rejected(
            &reply,
            StatusCode::UNPROCESSABLE_ENTITY,
            &["Text cannot be printed.", "The reason contains", "誤 (U+8AA4)", "value=\"誤り\""],
        );
        assert_has_not(&reply.body, &["Issue credit note</button>"]);
    }
    assert_eq!(json(&mut firm, "/invoices").await["total"], 1);
}

#[tokio::test]
async fn invalid_credit_keeps_input_and_shows_field_errors() {
    let mut firm = with_an_invoice().await;
    let long = "x".repeat(301);
    for (fields, parts) in [
        (vec![], vec!["Choose an amount", "Enter a reason", "Fix 2 problems"]),
        (
            vec![("credit", "part"), ("reason", "Kept text")],
            vec!["</span>Enter an amount</p>", "value=\"Kept text\""],
        ),
        (
            vec![("credit", "part"), ("amount", "40,00"), ("reason", "r")],
            vec!["like 50.00", "value=\"40,00\"", "id=\"amount-error\""],
        ),
        (
            vec![("credit", "part"), ("amount", "0.001"), ("reason", "r")],
            vec!["Use at most 2 decimals for USD, like 50.00"],
        ),
        (vec![("credit", "part"), ("amount", "0"), ("reason", "r")], vec!["Enter an amount above zero"]),
        (vec![("credit", "part"), ("amount", "-5"), ("reason", "r")], vec!["like 50.00"]),
        (
            vec![("credit", "part"), ("amount", "100.01"), ("reason", "r")],
            vec!["Enter at most $100.00, the remaining subtotal"],
        ),
        (vec![("credit", "part"), ("amount", "99999999999999999999"), ("reason", "r")], vec!["like 50.00"]),
        (
            vec![("credit", "whole"), ("reason", &long)],
            vec!["Use at most 300 characters for the reason; it has 301", " checked"],
        ),
        (vec![("credit", "whole"), ("reason", "a\nb")], vec!["The reason must be one line"]),
        (vec![("credit", "all"), ("reason", "r")], vec!["Choose an amount"]),
    ] {
        let reply = firm.ruth.browser.post(CREDIT, &form(&fields)).await;
        let parts: Vec<&str> = parts.into_iter().chain(["<title>Error: ", "aria-invalid=\"true\""]).collect();
        let parts = if fields.iter().any(|(_, value)| *value == "all") { &parts[..2] } else { &parts[..] };
        rejected(&reply, StatusCode::UNPROCESSABLE_ENTITY, parts);
    }
    assert_eq!(json(&mut firm, "/invoices").await["total"], 1, "nothing was issued");
}

#[tokio::test]
async fn double_submit_credits_once() {
    let mut firm = with_an_invoice().await;
    let fields = form(&[("credit", "part"), ("amount", "10"), ("reason", "Once."), ("so_far", "0")]);
    done(&mut firm, CREDIT, &fields).await;
    let reply = firm.ruth.browser.post(CREDIT, &fields).await;
    rejected(
        &reply,
        StatusCode::CONFLICT,
        &["Someone else credited this invoice.", "value=\"Once.\"", "so_far\" value=\"1000\""],
    );
    // Nor does a form without the amount credited so far.
    let fields = form(&[("credit", "part"), ("amount", "10"), ("reason", "Once.")]);
    let reply = firm.ruth.browser.post(CREDIT, &fields).await;
    rejected(&reply, StatusCode::CONFLICT, &["Someone else credited this invoice.", "value=\"Once.\""]);
    assert_eq!(json(&mut firm, "/invoices").await["total"], 2);
}

#[tokio::test]
async fn concurrent_credits_issue_one_note() {
    let mut firm = with_an_invoice().await;
    let fields = form(&[("credit", "part"), ("amount", "10"), ("reason", "Once."), ("so_far", "0")]);
    let (first, second) =
        tokio::join!(firm.ruth.browser.post(CREDIT, &fields), firm.rob.browser.post(CREDIT, &fields));
    let mut statuses = [first.status.as_u16(), second.status.as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [303, 409], "{} {}", first.body, second.body);
    assert_eq!(json(&mut firm, "/invoices").await["total"], 2);
}

#[tokio::test]
async fn credit_note_cannot_be_credited_or_paid() {
    let mut firm = with_an_invoice().await;
    let fields = form(&[("credit", "part"), ("amount", "10"), ("reason", "Once.")]);
    done(&mut firm, CREDIT, &fields).await;
    for path in ["/invoices/2026-0002/credit", "/invoices/2026-0002/paid", "/invoices/2026-0002/not-paid"] {
        rejected(&firm.ruth.browser.post(path, &fields).await, StatusCode::NOT_FOUND, &["Invoice not found"]);
    }
    rejected(
        &firm.ruth.browser.get("/invoices/2026-0002/credit").await,
        StatusCode::NOT_FOUND,
        &["Invoice not found"],
    );
}

#[tokio::test]
async fn crediting_a_paid_invoice_warns_about_a_refund() {
    let mut firm = with_an_invoice().await;
    done(&mut firm, "/invoices/2026-0001/paid", "").await;
    let blank = page(&mut firm, CREDIT).await;
    assert_has(&blank, &["This invoice is paid.", "Refund the credited amount"]);
    assert_has_not(&blank, &["remains due"]);
    let fields =
        [("credit", "part"), ("amount", "40.00"), ("reason", "Two requests came twice."), ("so_far", "0")];
    let preview = form(&[&fields[..], &[("look", "1")]].concat());
    let reply = firm.ruth.browser.post(CREDIT, &preview).await;
    rejected(&reply, StatusCode::OK, &["This credits $42.50. Invoice 2026-0001 stays marked as paid."]);
    let (_, shown) = done(&mut firm, CREDIT, &form(&fields)).await;
    assert_has(&shown, &["Invoice 2026-0001 is paid: refund the credited amount"]);
    assert_has_not(&shown, &["remains due"]);
}

#[tokio::test]
async fn credit_note_files_are_named_after_it() {
    let mut firm = with_an_invoice().await;
    done(&mut firm, CREDIT, &form(&[("credit", "whole"), ("reason", "Wrong address.")])).await;
    let (headers, _) = firm.ruth.browser.download("/invoices/2026-0002.pdf").await;
    assert_eq!(headers["content-disposition"], "inline; filename=\"credit-note-2026-0002.pdf\"");
    let file = firm.ruth.browser.get("/invoices/2026-0002.csv").await;
    assert_eq!(file.headers["content-disposition"], "attachment; filename=\"credit-note-2026-0002.csv\"");
}
