//! What is done to records: made, changed, put away.

use super::{Firm, assert_has, form, json, new_client, new_entry};
use axum::http::StatusCode;

#[tokio::test]
async fn a_client_is_made_by_anybody_for_themselves_and_by_partners_for_anybody() {
    let mut firm = Firm::open().await;
    assert!(!firm.ann.get("/clients/new").await.body.contains("name=\"owner\""));
    assert_has(
        &firm.ruth.get("/clients/new").await,
        &["name=\"owner\"", "ann@company.com", "ruth@company.com"],
    );
    let ann = firm.number_of("ann@company.com").await.to_string();
    let reply = firm.ruth.post("/clients", &form(&[("name", "Harbour Lane Bakery"), ("owner", &ann)])).await;
    assert_eq!(reply.status, StatusCode::SEE_OTHER);
    assert_eq!(json(&mut firm.ann, "/clients").await["clients"][0]["name"], "Harbour Lane Bakery");
    let gone = firm.ruth.post("/clients", &form(&[("name", "Lost"), ("owner", "424242")])).await;
    assert_eq!(gone.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_has(&gone, &["id=\"owner-error\"", "value=\"Lost\""]);
}

#[tokio::test]
async fn facts_are_changed_in_place_and_the_page_says_so() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let path = format!("/clients/{client}");
    let page = firm.ann.get(&format!("{path}?open=facts")).await;
    assert_has(
        &page,
        &["id=\"facts-form\"", "name=\"version\" value=\"1\"", "value=\"Harbour Lane Bakery\""],
    );
    assert_eq!(page.body.matches("button-primary").count(), 1, "one primary button");
    let fields = [("version", "1"), ("name", "Harbour Lane Bakery & Sons"), ("contact", "Luis")];
    let reply = firm.ann.post(&path, &form(&fields)).await;
    assert_eq!(
        (reply.status, reply.location()),
        (StatusCode::SEE_OTHER, format!("{path}?done=facts").as_str())
    );
    let page = firm.ann.get(reply.location()).await;
    assert_has(&page, &["<h1>Harbour Lane Bakery &#38; Sons", "<dd>Luis</dd>", "role=\"status\""]);
    assert_eq!(json(&mut firm.ann, &path).await["version"], 2);
    let unclear = firm.ann.post(&path, &form(&[("name", "x")])).await;
    assert_eq!(unclear.status, StatusCode::BAD_REQUEST);
    assert_has(&unclear, &["`version`"]);
}

#[tokio::test]
async fn an_entry_is_added_changed_archived_and_taken_out_again() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let path = format!("/clients/{client}");
    for (open, label) in [("note", "Save note"), ("dispute", "Still open"), ("letter", "Not sent yet")] {
        let page = firm.ann.get(&format!("{path}?open={open}")).await;
        assert_has(&page, &[label, "type=\"datetime-local\"", "In UTC", "value=\"2026-11-13T09:14\""]);
        assert_eq!(page.body.matches("button-primary").count(), 1);
    }
    let entry = new_entry(&mut firm.ann, client, "billing_dispute", "Invoice 7", "Too much.").await;
    let page = firm.ann.get(&format!("{path}?done=dispute")).await;
    assert_has(&page, &["The dispute is in the record.", ">Open</span>", &format!("id=\"entry-{entry}\"")]);

    let page = firm.ann.get(&format!("{path}?open=entry-{entry}")).await;
    assert_has(
        &page,
        &[&format!("action=\"{path}/entries/{entry}\""), "value=\"Invoice 7\"", "Too much.", " checked"],
    );
    let change = [
        ("kind", "billing_dispute"),
        ("version", "1"),
        ("title", "Invoice 7, settled"),
        ("text", "A credit."),
        ("at", "2026-11-03T10:08"),
    ];
    let reply = firm.ann.post(&format!("{path}/entries/{entry}"), &form(&change)).await;
    assert_eq!(reply.location(), format!("{path}?done=entry#entry-{entry}"));
    let record = json(&mut firm.ann, &path).await;
    let dispute = &record["billing_disputes"][0];
    assert_eq!((&dispute["title"], &dispute["open"]), (&"Invoice 7, settled".into(), &false.into()));
    assert_eq!(dispute["at"], "2026-11-03T10:08:00.000Z");
    assert_has(&firm.ann.get(&path).await, &[">Settled</span>", "2 versions", "3 Nov, 10:08 UTC"]);

    let reply = firm.ann.post(&format!("{path}/entries/{entry}/archive"), "").await;
    assert_eq!(reply.location(), format!("{path}?done=entry-archived"));
    assert_has(
        &firm.ann.get(reply.location()).await,
        &["Show archived entries", "Archived<span class=\"count\">1"],
    );
    assert_eq!(json(&mut firm.ann, &path).await["billing_disputes"], serde_json::json!([]));
    let page = firm.ann.get(&format!("{path}?tab=archived")).await;
    assert_has(&page, &["Invoice 7, settled", &format!("entries/{entry}/restore")]);
    firm.ann.post(&format!("{path}/entries/{entry}/restore"), "").await;
    assert_eq!(json(&mut firm.ann, &path).await["billing_disputes"][0]["id"], entry);
}

#[tokio::test]
async fn a_kind_that_there_is_not_is_refused_by_name() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    for kind in ["", "poem"] {
        let fields = form(&[("kind", kind), ("title", "x"), ("text", "x")]);
        let reply = firm.ann.post(&format!("/clients/{client}/entries"), &fields).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST);
        assert_has(&reply, &["`kind`", "meeting_note"]);
    }
}
