//! Changes to records: create, edit, archive.

use super::{Firm, assert_has, form, json, new_client, new_entry};
use axum::http::StatusCode;

#[tokio::test]
async fn consultants_create_own_clients_and_partners_any() {
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
async fn details_are_edited_in_place() {
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
        (StatusCode::SEE_OTHER, format!("{path}?done=facts&undo=2").as_str())
    );
    let page = firm.ann.get(reply.location()).await;
    assert_has(
        &page,
        &[
            "<h1><span dir=\"auto\">Harbour Lane Bakery &#38; Sons",
            "<dd dir=\"auto\">Luis</dd>",
            "role=\"status\"",
        ],
    );
    assert_eq!(json(&mut firm.ann, &path).await["version"], 2);
    let unclear = firm.ann.post(&path, &form(&[("name", "x")])).await;
    assert_eq!(unclear.status, StatusCode::BAD_REQUEST);
    assert_has(&unclear, &["`version`"]);
}

#[tokio::test]
async fn entry_is_added_edited_archived_and_restored() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let path = format!("/clients/{client}");
    for (open, label) in [
        ("note", "Save note"),
        ("dispute", "<option value=\"open\" selected>"),
        ("letter", "<span>Draft</span>"),
    ] {
        let page = firm.ann.get(&format!("{path}?open={open}")).await;
        assert_has(&page, &[label, "type=\"datetime-local\"", "Time in UTC.", "value=\"2026-11-13T09:14\""]);
        assert_eq!(page.body.matches("button-primary").count(), 1);
    }
    let entry = new_entry(&mut firm.ann, client, "billing_dispute", "Invoice 7", "Too much.").await;
    let page = firm.ann.get(&format!("{path}?done=dispute")).await;
    assert_has(
        &page,
        &["<strong>Dispute added.</strong></p>", ">Open</span>", &format!("id=\"entry-{entry}\"")],
    );

    let page = firm.ann.get(&format!("{path}?open=entry-{entry}")).await;
    assert_has(
        &page,
        &[
            &format!("action=\"{path}/entries/{entry}\""),
            "value=\"Invoice 7\"",
            "Too much.",
            "value=\"open\" selected",
        ],
    );
    let change = [
        ("kind", "billing_dispute"),
        ("version", "1"),
        ("title", "Invoice 7, settled"),
        ("text", "A credit."),
        ("at", "2026-11-03T10:08"),
    ];
    let reply = firm.ann.post(&format!("{path}/entries/{entry}"), &form(&change)).await;
    assert_eq!(reply.location(), format!("{path}?done=entry&undo=2_{entry}&at={entry}#entry-{entry}"));
    let record = json(&mut firm.ann, &path).await;
    let dispute = &record["billing_disputes"][0];
    assert_eq!((&dispute["title"], &dispute["open"]), (&"Invoice 7, settled".into(), &false.into()));
    assert_eq!(dispute["at"], "2026-11-03T10:08:00.000Z");
    assert_eq!(dispute["status"], "resolved");
    assert_has(&firm.ann.get(&path).await, &[">Resolved</span>", "2 versions", "3 Nov, 10:08 UTC"]);

    let reply = firm.ann.post(&format!("{path}/entries/{entry}/archive"), "").await;
    assert_eq!(reply.location(), format!("{path}?done=entry-archived&undo=3_{entry}"));
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
async fn edit_without_kind_or_date_keeps_both() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let entry = new_entry(&mut firm.ann, client, "billing_dispute", "Invoice 7", "Too much.").await;
    firm.portal.pass(std::time::Duration::from_secs(600));
    let path = format!("/clients/{client}/entries/{entry}");
    let fields =
        form(&[("version", "1"), ("title", "Invoice 8"), ("text", "Far too much."), ("is_open", "1")]);
    assert_eq!(firm.ann.post(&path, &fields).await.status, StatusCode::SEE_OTHER);
    let record = json(&mut firm.ann, &format!("/clients/{client}")).await;
    let dispute = &record["billing_disputes"][0];
    assert_eq!((&dispute["title"], &dispute["open"]), (&"Invoice 8".into(), &true.into()));
    assert_eq!(dispute["at"], "2026-11-13T09:14:00.000Z");
    let reply = firm.ann.post(&path, &form(&[("version", "2"), ("title", ""), ("text", "x")])).await;
    assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_has(&reply, &["Edit dispute", "Disputed amount"]);
}

#[tokio::test]
async fn unknown_entry_kind_is_rejected() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    for kind in ["", "poem"] {
        let fields = form(&[("kind", kind), ("title", "x"), ("text", "x")]);
        let reply = firm.ann.post(&format!("/clients/{client}/entries"), &fields).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST);
        assert_has(&reply, &["`kind`", "meeting_note"]);
    }
}
