//! Disputes with status, amount and due date, and the home page that shows what is due.

use super::{Firm, assert_has, form, json, new_client, new_entry};
use axum::http::StatusCode;

/// Today is 13 November 2026. Returns the client's number.
async fn disputed_client(firm: &mut Firm, name: &str, due: &str) -> i64 {
    let client = new_client(&mut firm.ann, name).await;
    let fields = form(&[
        ("kind", "billing_dispute"),
        ("title", &format!("Invoice of {name}")),
        ("text", "Too much."),
        ("status", "open"),
        ("amount", "120.50"),
        ("due", due),
    ]);
    let reply = firm.ann.post(&format!("/clients/{client}/entries"), &fields).await;
    assert_eq!(reply.status, StatusCode::SEE_OTHER, "{}", reply.body);
    client
}

#[tokio::test]
async fn dispute_keeps_status_amount_and_due_date() {
    let mut firm = Firm::open().await;
    let client = disputed_client(&mut firm, "Harbour Lane Bakery", "2026-11-10").await;
    let path = format!("/clients/{client}");
    let dispute = json(&mut firm.ann, &path).await["billing_disputes"][0].clone();
    assert_eq!(dispute["status"], "open");
    assert_eq!((&dispute["amount"], &dispute["currency"]), (&"120.50".into(), &"USD".into()));
    assert_eq!((&dispute["due"], &dispute["open"]), (&"2026-11-10".into(), &true.into()));
    assert_has(&firm.ann.get(&path).await, &["$120.50", "10 November 2026", ">Overdue</span>"]);

    let entry = dispute["id"].as_i64().unwrap();
    let page = firm.ann.get(&format!("{path}?open=entry-{entry}")).await;
    assert_has(&page, &["name=\"amount\"", "value=\"120.50\"", "value=\"2026-11-10\"", "In USD."]);
    let fields = |amount: &'static str, due: &'static str, status: &'static str| {
        form(&[
            ("kind", "billing_dispute"),
            ("version", "1"),
            ("title", "Invoice 7"),
            ("text", "Too much."),
            ("status", status),
            ("amount", amount),
            ("due", due),
        ])
    };
    let entry_path = format!("{path}/entries/{entry}");
    let wrong = firm.ann.post(&entry_path, &fields("a lot", "soon", "open")).await;
    assert_eq!(wrong.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_has(&wrong, &["id=\"amount-error\"", "id=\"due-error\"", "value=\"a lot\"", "Fix 2 problems"]);
    let reply = firm.ann.post(&entry_path, &fields("99", "", "resolved")).await;
    assert_eq!(reply.status, StatusCode::SEE_OTHER);
    let dispute = json(&mut firm.ann, &path).await["billing_disputes"][0].clone();
    assert_eq!((&dispute["status"], &dispute["amount"]), (&"resolved".into(), &"99.00".into()));
    assert!(dispute["due"].is_null());
    let history = firm.ann.get(&format!("{entry_path}/versions")).await;
    assert_has(&history, &["Amount changed", "Due changed", "Status changed", "Restore this version"]);
}

#[tokio::test]
async fn notes_and_letters_have_no_amount() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let fields = form(&[
        ("kind", "draft_letter"),
        ("title", "T"),
        ("text", "x"),
        ("amount", "5"),
        ("due", "2026-11-20"),
    ]);
    let reply = firm.ann.post(&format!("/clients/{client}/entries"), &fields).await;
    assert_eq!(reply.status, StatusCode::SEE_OTHER);
    let letter = json(&mut firm.ann, &format!("/clients/{client}")).await["draft_letters"][0].clone();
    assert!(letter.get("amount").is_none() && letter.get("due").is_none(), "{letter}");
    assert_has(&firm.ann.get("/home").await, &["No disputes are overdue"]);
}

#[tokio::test]
async fn disputes_of_a_record_are_filtered_by_status() {
    let mut firm = Firm::open().await;
    let client = disputed_client(&mut firm, "Harbour Lane Bakery", "2026-11-20").await;
    let other = new_entry(&mut firm.ann, client, "billing_dispute", "Settled in May", "Done.").await;
    let change = form(&[
        ("kind", "billing_dispute"),
        ("version", "1"),
        ("title", "Settled in May"),
        ("text", "Done."),
        ("status", "resolved"),
    ]);
    firm.ann.post(&format!("/clients/{client}/entries/{other}"), &change).await;
    let path = format!("/clients/{client}?tab=disputes");
    let all = firm.ann.get(&path).await;
    assert_has(&all, &["All (2)", "Open (1)", "Resolved (1)", "Settled in May", "Invoice of Harbour"]);
    let open = firm.ann.get(&format!("{path}&state=open")).await;
    assert!(open.body.contains("Invoice of Harbour") && !open.body.contains("Settled in May"));
    let resolved = firm.ann.get(&format!("{path}&state=resolved")).await;
    assert!(!resolved.body.contains("Invoice of Harbour") && resolved.body.contains("Settled in May"));
    let unknown = firm.ann.get(&format!("{path}&state=lost")).await;
    assert_eq!(unknown.status, StatusCode::BAD_REQUEST);
    assert!(!firm.ann.get(&format!("/clients/{client}")).await.body.contains("Resolved (1)"));
}

#[tokio::test]
async fn client_list_is_filtered_by_open_and_overdue_disputes() {
    let mut firm = Firm::open().await;
    let overdue = disputed_client(&mut firm, "Late Bakery", "2026-11-12").await;
    let open = disputed_client(&mut firm, "Early Bakery", "2026-11-13").await;
    new_client(&mut firm.ann, "Quiet Bakery").await;
    let mut ids = async |query: &str| -> Vec<i64> {
        let list = json(&mut firm.ann, &format!("/clients?{query}")).await;
        let ids = list["clients"].as_array().unwrap().iter().map(|client| client["id"].as_i64().unwrap());
        let ids: Vec<i64> = ids.collect();
        assert_eq!(list["total"], ids.len(), "{query}");
        ids
    };
    assert_eq!(ids("disputes=open&sort=id").await, [overdue, open]);
    assert_eq!(ids("disputes=overdue").await, [overdue]);
    assert_eq!(ids("disputes=overdue&q=bakery&sort=owner").await, [overdue]);
    assert_eq!(ids("disputes=open&q=early").await, [open]);
    assert_eq!(ids("disputes=open&sort=owner").await.len(), 2);
    assert!(json(&mut firm.ben, "/clients?disputes=open").await["clients"].as_array().unwrap().is_empty());
    assert_has(&firm.ann.get("/clients").await, &["Dispute overdue", "Dispute open"]);
    assert_eq!(firm.ann.get("/clients?disputes=late").await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn home_shows_what_is_due_and_nothing_of_other_consultants() {
    let mut firm = Firm::open().await;
    disputed_client(&mut firm, "Late Bakery", "2026-11-10").await;
    disputed_client(&mut firm, "Early Bakery", "2026-11-20").await;
    disputed_client(&mut firm, "Next Year Bakery", "2027-01-20").await;
    let seen = new_client(&mut firm.ann, "Seen Bakery").await;
    new_entry(&mut firm.ann, seen, "draft_letter", "Unsent reply", "Dear").await;
    firm.ann.get(&format!("/clients/{seen}")).await;
    let home = firm.ann.get("/home").await;
    assert_has(
        &home,
        &[
            "Invoice of Late Bakery",
            ">10 Nov</time>",
            "3 days late",
            "$120.50",
            "Invoice of Early Bakery",
            "in 7 days",
            "Unsent reply",
            "Seen Bakery",
            "aria-current=\"page\">Home</a>",
        ],
    );
    assert!(!home.body.contains("Next Year") && !home.body.contains("view=mine"), "{}", home.body);
    let late = home.body.find("Invoice of Late").unwrap();
    assert!(late < home.body.find("Invoice of Early").unwrap(), "the earliest comes first");

    let bens = firm.ben.get("/home").await;
    assert!(!bens.body.contains("Bakery") && !bens.body.contains("Unsent reply"), "{}", bens.body);
    assert_has(&bens, &["No disputes are overdue or due", "No letters in draft."]);
    let firms = firm.ruth.get("/home").await;
    assert_has(&firms, &["Invoice of Late Bakery", "Unsent reply", "ann@<wbr>company.com", "view=mine"]);
    let ruths = firm.ruth.get("/home?view=mine").await;
    assert!(!ruths.body.contains("Bakery"), "{}", ruths.body);
    assert_eq!(firm.ruth.get("/home?view=x").await.status, StatusCode::BAD_REQUEST);
}
