//! Credit notes: the one way to set an invoice right.

use super::{assert_has, assert_has_not, done, form, json, page, refused};
use crate::tests::firm::Firm;
use axum::http::StatusCode;

/// Invoice 2026-0001 over 100.00 and 6.25 of tax.
async fn with_an_invoice() -> Firm {
    let firm = Firm::open().await;
    let payer = firm.payer("Brightwater Claims").await;
    firm.settle(payer, "2026-10-14", "smollm2-135m", (1_000_000_000, 0)).await;
    firm.issued(payer, "2026-10").await;
    firm
}

const CREDIT: &str = "/invoices/2026-0001/credit";

#[tokio::test]
async fn a_part_is_credited_with_its_tax_after_its_preview() {
    let mut firm = with_an_invoice().await;
    let blank = page(&mut firm, CREDIT).await;
    assert_has(
        &blank,
        &[
            "Credit note for invoice 2026-0001",
            "$100.00 of the subtotal is left.",
            "All that is left, $106.25",
            "so_far\" value=\"0\"",
        ],
    );
    assert_has_not(&blank, &["Issue this credit note", " checked"]);
    let fields =
        [("credit", "part"), ("amount", "40.00"), ("reason", "Two requests came twice."), ("so_far", "0")];
    let looked = form(&[&fields[..], &[("look", "1")]].concat());
    let reply = firm.ruth.browser.post(CREDIT, &looked).await;
    refused(
        &reply,
        StatusCode::OK,
        &[
            "It takes back $42.50, and $63.75 is left of invoice 2026-0001.",
            "Draft credit note",
            "Two requests came twice.",
            "-40.00",
            "-2.50",
            "-$42.50",
            "Issue this credit note",
        ],
    );
    assert_eq!(json(&mut firm, "/invoices").await["total"], 1, "looking changes nothing");

    let (note, shown) = done(&mut firm, CREDIT, &form(&fields)).await;
    assert_eq!(note, "/invoices/2026-0002");
    assert_has(
        &shown,
        &[
            "Credit note 2026-0002 can no longer change.",
            "$63.75 is left of invoice 2026-0001.",
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
            "Waiting for payment of $63.75",
            "<dt>Credited</dt><dd>$42.50</dd>",
            "<dt>Left to pay</dt><dd>$63.75</dd>",
            "Credited in part by credit note <a class=\"num\" href=\"/invoices/2026-0002\">2026-0002</a>, by ruth@<wbr>company.com",
        ],
    );
    let (list, found) = (page(&mut firm, "/invoices").await, json(&mut firm, "/invoices").await);
    assert_has(&list, &["credits 2026-0001", "badge-role\">Credit note", "-42.50", "63.75 left"]);
    assert_eq!(found["invoices"][0]["kind"], "credit_note");
    assert_eq!(found["sums"][0]["outstanding"], "63.75");
    let file = firm.ruth.browser.get("/invoices.csv").await;
    assert!(file.body.contains("2026-0002,credit_note,2026-0001,issued,"), "{}", file.body);
    assert!(file.body.contains(",USD,-42.50,0.00,0.00\r\n"), "figures are figures: {}", file.body);
}

#[tokio::test]
async fn what_is_credited_as_a_whole_is_void_and_its_month_can_be_issued_again() {
    let mut firm = with_an_invoice().await;
    let fields = form(&[("credit", "whole"), ("reason", "Wrong address.")]);
    let (note, shown) = done(&mut firm, CREDIT, &fields).await;
    assert_eq!(note, "/invoices/2026-0002");
    assert_has(&shown, &["Invoice 2026-0001 is void, and October 2026 can be invoiced again.", "-$106.25"]);
    let invoice = page(&mut firm, "/invoices/2026-0001").await;
    assert_has(
        &invoice,
        &[
            "badge-void\">Void",
            "nothing of it is to be paid",
            "Open the draft",
            "Credited as a whole, and void since by credit note",
        ],
    );
    assert_has_not(&invoice, &["Mark as paid", "Make a credit note"]);
    for path in ["/invoices/2026-0001/paid", CREDIT] {
        let reply = firm.ruth.browser.post(path, &fields).await;
        refused(&reply, StatusCode::CONFLICT, &["This invoice is void"]);
    }
    refused(&firm.ruth.browser.get(CREDIT).await, StatusCode::CONFLICT, &["This invoice is void"]);

    let account = json(&mut firm, "/invoices/2026-0001").await["account"]["id"].clone();
    let draft = format!("/invoices/drafts/{account}/2026-10");
    assert_has(&page(&mut firm, &draft).await, &["Issue invoice</button>", "$106.25"]);
    let (again, _) = done(&mut firm, &format!("{draft}/issue"), "").await;
    assert_eq!(again, "/invoices/2026-0003");
    let sums = &json(&mut firm, "/invoices").await["sums"][0];
    assert_eq!((&sums["billed"], &sums["outstanding"]), (&"106.25".into(), &"106.25".into()));
}

#[tokio::test]
async fn mistakes_are_named_at_their_fields_and_what_was_typed_stays() {
    let mut firm = with_an_invoice().await;
    let long = "x".repeat(301);
    for (fields, parts) in [
        (
            vec![],
            vec!["Choose how much to take back", "Say why, for whoever gets it", "Two things to put right"],
        ),
        (
            vec![("credit", "part"), ("reason", "Kept text")],
            vec!["Enter how much of the subtotal", "value=\"Kept text\""],
        ),
        (
            vec![("credit", "part"), ("amount", "40,00"), ("reason", "r")],
            vec!["like 50.00", "value=\"40,00\"", "id=\"amount-error\""],
        ),
        (vec![("credit", "part"), ("amount", "0.001"), ("reason", "r")], vec!["USD has 2 decimals at most"]),
        (vec![("credit", "part"), ("amount", "0"), ("reason", "r")], vec!["Write an amount above zero"]),
        (vec![("credit", "part"), ("amount", "-5"), ("reason", "r")], vec!["like 50.00"]),
        (
            vec![("credit", "part"), ("amount", "100.01"), ("reason", "r")],
            vec!["$100.00 of the subtotal is left; write no more"],
        ),
        (vec![("credit", "part"), ("amount", "99999999999999999999"), ("reason", "r")], vec!["like 50.00"]),
        (
            vec![("credit", "whole"), ("reason", &long)],
            vec!["The reason has 301 characters; 300 at most", " checked"],
        ),
        (vec![("credit", "whole"), ("reason", "a\nb")], vec!["The reason is one line"]),
        (vec![("credit", "all"), ("reason", "r")], vec!["Choose how much to take back"]),
    ] {
        let reply = firm.ruth.browser.post(CREDIT, &form(&fields)).await;
        let parts: Vec<&str> = parts.into_iter().chain(["<title>Error: ", "aria-invalid=\"true\""]).collect();
        let parts = if fields.iter().any(|(_, value)| *value == "all") { &parts[..2] } else { &parts[..] };
        refused(&reply, StatusCode::UNPROCESSABLE_ENTITY, parts);
    }
    assert_eq!(json(&mut firm, "/invoices").await["total"], 1, "nothing was issued");
}

#[tokio::test]
async fn a_form_that_is_sent_twice_credits_once() {
    let mut firm = with_an_invoice().await;
    let fields = form(&[("credit", "part"), ("amount", "10"), ("reason", "Once."), ("so_far", "0")]);
    done(&mut firm, CREDIT, &fields).await;
    let reply = firm.ruth.browser.post(CREDIT, &fields).await;
    refused(
        &reply,
        StatusCode::CONFLICT,
        &["Credited meanwhile.", "value=\"Once.\"", "so_far\" value=\"1000\""],
    );
    assert_eq!(json(&mut firm, "/invoices").await["total"], 2);
}

#[tokio::test]
async fn a_credit_note_is_not_credited_and_not_paid() {
    let mut firm = with_an_invoice().await;
    let fields = form(&[("credit", "part"), ("amount", "10"), ("reason", "Once.")]);
    done(&mut firm, CREDIT, &fields).await;
    for path in ["/invoices/2026-0002/credit", "/invoices/2026-0002/paid", "/invoices/2026-0002/not-paid"] {
        refused(
            &firm.ruth.browser.post(path, &fields).await,
            StatusCode::NOT_FOUND,
            &["There is no such invoice"],
        );
    }
    refused(
        &firm.ruth.browser.get("/invoices/2026-0002/credit").await,
        StatusCode::NOT_FOUND,
        &["no such invoice"],
    );
}

#[tokio::test]
async fn whoever_credits_what_is_paid_is_told_that_money_goes_back() {
    let mut firm = with_an_invoice().await;
    done(&mut firm, "/invoices/2026-0001/paid", "").await;
    assert_has(&page(&mut firm, CREDIT).await, &["Marked as paid.", "has to be paid back"]);
}
