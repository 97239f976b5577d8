//! The search: what it finds in entries, who may see it, and how the page shows it.

use super::{Firm, assert_has, form, json, new_client, new_entry};
use axum::http::StatusCode;
use serde_json::{Value, json as value};

fn matches(list: &Value) -> &Value {
    &list["clients"][0]["matches"]
}

#[tokio::test]
async fn search_lists_matching_entries_newest_first_with_snippets() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let note = new_entry(&mut firm.ann, client, "meeting_note", "Call", "They asked about the lease.").await;
    let dispute = new_entry(&mut firm.ann, client, "billing_dispute", "Leases", "Billed twice.").await;
    let letter =
        new_entry(&mut firm.ann, client, "draft_letter", "Credit", "Dear Ms Raman,\n\nthe LEASE ended.")
            .await;

    let list = json(&mut firm.ann, "/clients?q=leas").await;
    let expected = value!([
        {"kind": "draft_letter", "id": letter, "snippet": "Dear Ms Raman, the LEASE ended."},
        {"kind": "billing_dispute", "id": dispute, "snippet": "Leases"},
        {"kind": "meeting_note", "id": note, "snippet": "They asked about the lease."},
    ]);
    assert_eq!(matches(&list), &expected);
    assert_eq!(matches(&json(&mut firm.ann, "/clients?q=harbour").await), &value!([]));
    assert!(matches(&json(&mut firm.ann, "/clients").await).is_null(), "without a search there are none");

    let page = firm.ann.get("/clients?q=leas").await;
    assert_has(
        &page,
        &[
            "aria-label=\"Matches in Harbour Lane Bakery\"",
            "the <mark>LEASE</mark> ended.",
            "Dispute: <bdi><mark>Leases</mark></bdi></a>",
            "They asked about the <mark>lease</mark>.",
        ],
    );
    let link = page.body.split("href=\"").find(|rest| rest.contains(&format!("#entry-{note}\""))).unwrap();
    let href = link.split('#').next().unwrap();
    assert_has(&firm.ann.get(href).await, &[&format!("id=\"entry-{note}\"")]);
}

#[tokio::test]
async fn another_consultants_entries_are_never_found() {
    let mut firm = Firm::open().await;
    let anns = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    new_entry(&mut firm.ann, anns, "meeting_note", "Call", "About the zeppelin.").await;
    let found = json(&mut firm.ben, "/clients?q=zeppelin").await;
    assert_eq!(found, value!({"clients": [], "page": 1, "pages": 1, "total": 0}));
    let page = firm.ben.get("/clients?q=zeppelin").await;
    assert_has(&page, &["Nothing matches “zeppelin”"]);
    let never_written = firm.ben.get("/clients?q=zeppelim").await;
    assert_eq!(page.body.replace("zeppelin", ""), never_written.body.replace("zeppelim", ""));
    assert_eq!(json(&mut firm.ruth, "/clients?q=zeppelin").await["total"], 1);
}

#[tokio::test]
async fn snippets_escape_html() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    new_entry(&mut firm.ann, client, "meeting_note", "<b>Lease</b>", "</span><script>lease()</script>").await;
    let page = firm.ann.get("/clients?q=lease").await;
    assert_has(
        &page,
        &[
            "&#60;b&#62;<mark>Lease</mark>&#60;/b&#62;",
            "&#60;/span&#62;&#60;script&#62;<mark>lease</mark>()&#60;/script&#62;",
        ],
    );
    assert!(!page.body.contains("<script>lease"));
}

#[tokio::test]
async fn any_part_of_a_telephone_number_finds_its_client() {
    let mut firm = Firm::open().await;
    let fields = form(&[("name", "Ostrander Freight"), ("telephone", "+1 (617) 555-0142")]);
    assert_eq!(firm.ann.post("/clients", &fields).await.status, StatusCode::SEE_OTHER);
    for typed in ["555", "617 555", "5550142", "0142"] {
        let list = json(&mut firm.ann, &format!("/clients?{}", form(&[("q", typed)]))).await;
        assert_eq!(list["total"], 1, "{typed}");
    }
    assert_eq!(json(&mut firm.ann, "/clients?q=5551").await["total"], 0);
}

#[tokio::test]
async fn search_with_excerpts_is_one_row_of_the_audit_log_and_no_view() {
    let mut firm = Firm::open().await;
    for name in ["Harbour Lane Bakery", "Ostrander Freight"] {
        let client = new_client(&mut firm.ann, name).await;
        new_entry(&mut firm.ann, client, "meeting_note", "Call", "About the lease.").await;
    }
    let of_ann = format!("/audit?person={}", firm.number_of("ann@company.com").await);
    let actions = |log: Value| -> Vec<String> {
        let rows = log["rows"].as_array().unwrap().iter();
        rows.filter_map(|row| row["action"].as_str().map(str::to_owned)).collect()
    };
    let before = actions(json(&mut firm.ruth, &of_ann).await);
    let found = json(&mut firm.ann, "/clients?q=lease").await;
    assert_eq!((&found["total"], matches(&found).as_array().unwrap().len()), (&value!(2), 1));
    let after = actions(json(&mut firm.ruth, &of_ann).await);
    assert_eq!(after[0], "listClients");
    assert_eq!(after[1..], before[..]);
}
