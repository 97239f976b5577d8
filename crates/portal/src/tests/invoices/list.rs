//! `/invoices` and `/invoices.csv`.

use super::{assert_has, assert_has_not, json, page, rejected};
use crate::tests::billing_fixture::TOKENS;
use crate::tests::firm::Firm;
use crate::tests::routes::HTML;
use axum::http::StatusCode;
use chancery_store::INVOICES_PER_PAGE;
use std::time::Duration;

#[tokio::test]
async fn empty_invoice_list_says_what_to_do() {
    let mut firm = Firm::open().await;
    let list = page(&mut firm, "/invoices").await;
    assert_has(
        &list,
        &[
            "No invoices yet",
            "You can issue its invoice when the month has ended.",
            "aria-current=\"page\">Invoices</a>",
        ],
    );
    assert_has_not(&list, &["<table", "invoices.csv"]);
    let nothing = json(&mut firm, "/invoices").await;
    assert_eq!(nothing["invoices"], serde_json::json!([]));
    assert_eq!((&nothing["page"], &nothing["pages"], &nothing["total"]), (&1.into(), &1.into(), &0.into()));
}

#[tokio::test]
async fn unbilled_months_show_exact_amounts() {
    let mut firm = Firm::open().await;
    let brightwater = firm.used("Brightwater Claims", "2026-10").await;
    firm.settle(brightwater, "2026-11-02", "smollm2-135m", (10, 1)).await;
    let list = page(&mut firm, "/invoices").await;
    let drafts = format!("/invoices/drafts/{}", brightwater.account);
    assert_has(
        &list,
        &[
            "No invoices yet",
            "Unbilled usage",
            "1 draft ready to issue",
            &format!("href=\"{drafts}/2026-10\""),
            &format!("href=\"{drafts}/2026-11\""),
            "Ready to issue",
            "0.1669126",
            "In progress",
            ">1 December 2026</time>",
            "0.0000014",
        ],
    );
    let listed = json(&mut firm, "/invoices").await;
    assert_eq!(listed["drafts"][0]["month"], "2026-11", "the newest month first");
    assert_eq!(listed["drafts"][1]["exact"], "0.1669126");
    assert_eq!(listed["drafts"][1]["account"]["name"], "Brightwater Claims");
    assert_eq!(listed["drafts"][1]["can_be_issued_from"], "2026-11-01T01:00:00.000Z");

    let number = firm.issued(brightwater, "2026-10").await;
    let list = page(&mut firm, "/invoices").await;
    assert_has(
        &list,
        &[&format!("href=\"/invoices/{number}\""), "badge-issued\">Issued", "October 2026", "0.18"],
    );
    assert_has_not(&list, &[&format!("{drafts}/2026-10"), "ready to issue"]);
    let listed = json(&mut firm, "/invoices").await;
    assert_eq!(listed["drafts"].as_array().unwrap().len(), 1);
    let row = &listed["invoices"][0];
    for (name, value) in [
        ("number", number.to_string()),
        ("kind", "invoice".to_owned()),
        ("state", "issued".to_owned()),
        ("month", "2026-10".to_owned()),
        ("issued_at", "2026-11-13T09:14:00.000Z".to_owned()),
        ("due", "2026-12-13".to_owned()),
        ("currency", "USD".to_owned()),
        ("total", "0.18".to_owned()),
        ("outstanding", "0.18".to_owned()),
    ] {
        assert_eq!(row[name], value, "{name}");
    }
}

#[tokio::test]
async fn ready_count_includes_unlisted_months() {
    let mut firm = Firm::open().await;
    for index in 0..INVOICES_PER_PAGE {
        firm.used(&format!("Account {index}"), "2026-10").await;
    }
    let own = firm.used(crate::DRAFTING_ACCOUNT, "2026-10").await;
    firm.settle(own, "2026-11-02", "smollm2-135m", TOKENS).await;
    let list = page(&mut firm, "/invoices").await;
    assert_has(&list, &["26 drafts ready to issue", "AI drafting", "Show all 27 months"]);
}

#[tokio::test]
async fn invoice_filters_apply_to_rows_and_totals() {
    let mut firm = Firm::open().await;
    let (one, two) = (firm.payer("One").await, firm.payer("Two").await);
    for (payer, month, tokens) in [
        (one, "2026-09", (10_000_000, 0)),
        (one, "2026-10", (20_000_000, 0)),
        (two, "2026-10", (50_000_000, 0)),
    ] {
        firm.settle(payer, &format!("{month}-10"), "smollm2-135m", tokens).await;
        firm.issued(payer, month).await;
    }
    firm.settle(two, "2026-11-03", "smollm2-135m", TOKENS).await;
    assert_eq!(firm.ruth.browser.post("/invoices/2026-0001/paid", "").await.status, 303);
    let sums = async |firm: &mut Firm, query: &str| {
        let listed = json(firm, &format!("/invoices{query}")).await;
        let numbers: Vec<String> = listed["invoices"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["number"].as_str().unwrap().to_owned())
            .collect();
        let sums = listed["sums"].get(0).map(|sums| {
            ["billed", "outstanding", "overdue"].map(|name| sums[name].as_str().unwrap().to_owned())
        });
        (numbers.join(" "), sums.unwrap_or_default().join(" "))
    };
    let pair = |numbers: &str, sums: &str| (numbers.to_owned(), sums.to_owned());
    // 1.00, 2.00 and 5.00, each with 6.25 % of tax, halves to the even cent.
    assert_eq!(sums(&mut firm, "").await, pair("2026-0003 2026-0002 2026-0001", "8.49 7.43 0.00"));
    let by_one = format!("?account={}", one.account);
    assert_eq!(sums(&mut firm, &by_one).await, pair("2026-0002 2026-0001", "3.18 2.12 0.00"));
    assert_eq!(sums(&mut firm, "?state=paid").await, pair("2026-0001", "1.06 0.00 0.00"));
    assert_eq!(sums(&mut firm, "?year=2025").await.0, "");
    assert_eq!(sums(&mut firm, "?state=draft").await.0, "");

    let list = page(&mut firm, &format!("/invoices{by_one}&state=issued")).await;
    assert_has(
        &list,
        &[
            &format!("<option value=\"{}\" selected>One</option>", one.account),
            "<option value=\"issued\" selected>",
            "<option value=\"2026\">2026</option>",
            "$2.12",
            "Clear filters",
            &format!("href=\"/invoices.csv?account={}&#38;state=issued\"", one.account),
        ],
    );
    assert_has_not(&list, &["2026-0001", "2026-0003"]);
    let drafts = page(&mut firm, "/invoices?state=draft").await;
    assert_has(&drafts, &["<h1>Unbilled usage", "November 2026", "Preview </span>Two"]);
    let empty = page(&mut firm, "/invoices?year=2025").await;
    assert_has(&empty, &["No invoices match these filters", "href=\"/invoices\">Clear filters"]);
    for (query, name) in
        [("account=x", "account"), ("state=late", "state"), ("year=26", "year"), ("page=0", "page")]
    {
        let reply = firm.ruth.browser.get(&format!("/invoices?{query}")).await;
        rejected(&reply, StatusCode::BAD_REQUEST, &[name, "Go to invoices"]);
        assert_eq!(
            firm.ruth.browser.get(&format!("/invoices.csv?{query}")).await.status,
            StatusCode::BAD_REQUEST
        );
    }
}

#[tokio::test]
async fn overdue_is_shown_from_the_next_day() {
    let mut firm = Firm::open().await;
    let payer = firm.used("Late Payer", "2026-10").await;
    firm.issued(payer, "2026-10").await;
    // Due on 13 December.
    firm.portal.pass(Duration::from_secs(30 * 86_400));
    firm.ruth.browser = firm.ruth.elsewhere(&firm.portal).await;
    assert_has(
        &page(&mut firm, "/invoices").await,
        &[
            "badge-issued\">Issued",
            "<dt>Overdue</dt><dd class=\"figure\">$0.00</dd><dd class=\"meta\">none</dd>",
        ],
    );
    firm.portal.pass(Duration::from_secs(2 * 86_400));
    firm.ruth.browser = firm.ruth.elsewhere(&firm.portal).await;
    let list = page(&mut firm, "/invoices").await;
    assert_has(&list, &["badge-overdue\">Overdue", "2 days overdue", "past the due date"]);
    assert_eq!(json(&mut firm, "/invoices").await["sums"][0]["overdue"], "0.18");
    let document = page(&mut firm, "/invoices/2026-0001").await;
    assert_has(&document, &["Overdue: $0.18 was due on 13 December 2026."]);
}

#[tokio::test]
async fn invoice_pages_and_csv_have_every_row_once() {
    let mut firm = Firm::open().await;
    let all = INVOICES_PER_PAGE as usize + 2;
    for number in 0..all {
        let payer = firm.used(&format!("={number} & Sons"), "2026-10").await;
        firm.issued(payer, "2026-10").await;
    }
    let first = json(&mut firm, "/invoices").await;
    assert_eq!((&first["pages"], &first["total"]), (&2.into(), &all.into()));
    let second = json(&mut firm, "/invoices?page=2").await;
    assert_eq!(first["invoices"].as_array().unwrap().len(), INVOICES_PER_PAGE as usize);
    assert_eq!(second["invoices"].as_array().unwrap().len(), 2);
    let list = page(&mut firm, "/invoices?page=2").await;
    assert_has(&list, &["26–27 of 27", "rel=\"prev\"", "href=\"/invoices\""]);
    assert_has(&page(&mut firm, "/invoices?page=9").await, &["No page 9", "The last page is page 2."]);

    let file = firm.ruth.browser.get("/invoices.csv?page=2").await;
    assert_eq!(file.status, StatusCode::OK);
    assert_eq!(file.headers["content-type"], "text/csv; charset=utf-8; header=present");
    assert_eq!(file.headers["content-disposition"], "attachment; filename=\"invoices-2026-11-13.csv\"");
    assert_eq!(file.headers["cache-control"], "no-store");
    let lines: Vec<_> = file.body.split("\r\n").collect();
    assert_eq!(
        lines[0],
        "number,kind,credit_of,state,account_id,account,month,issued_at,due,currency,total,credited,outstanding"
    );
    assert_eq!(lines.len(), all + 2, "a head, the rows, and the end of the last");
    assert!(lines[1].starts_with("2026-0027,invoice,,issued,") && lines[1].contains(",'=26 & Sons,2026-10,"));
    assert!(lines[1].ends_with(",2026-12-13,USD,0.18,0.00,0.18"), "{}", lines[1]);
}

#[tokio::test]
async fn unbilled_months_have_pages_and_a_csv() {
    let mut firm = Firm::open().await;
    let all = INVOICES_PER_PAGE as usize + 1;
    for number in 0..all {
        firm.used(&format!("Account {number:02}"), "2026-10").await;
    }
    let list = page(&mut firm, "/invoices").await;
    assert_has(&list, &["Show all 26 months of unbilled usage", "href=\"/invoices?state=draft\""]);
    let drafts = json(&mut firm, "/invoices?state=draft&page=2").await;
    assert_eq!((&drafts["pages"], &drafts["total"]), (&2.into(), &all.into()));
    assert_eq!(drafts["drafts"].as_array().unwrap().len(), 1);
    firm.ruth.browser.accept = HTML;
    let file = firm.ruth.browser.get("/invoices.csv?state=draft").await;
    assert_eq!(file.headers["content-disposition"], "attachment; filename=\"drafts-2026-11-13.csv\"");
    let lines: Vec<_> = file.body.split("\r\n").collect();
    assert_eq!(lines[0], "account_id,account,month,currency,exact,can_be_issued_from");
    assert_eq!(lines.len(), all + 2);
    assert!(lines[1].ends_with(",2026-10,USD,0.1669126,2026-11-01T01:00:00.000Z"), "{}", lines[1]);
}
