//! The record: details, tabs, timeline, JSON.

use super::{Firm, assert_has, form, json, new_client, new_entry};
use axum::http::StatusCode;
use serde_json::json as value;
use std::time::Duration;

#[tokio::test]
async fn record_json_uses_the_specified_fields() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let note = new_entry(&mut firm.ann, client, "meeting_note", "Call", "They called.\r\nTwice.").await;
    let dispute = new_entry(&mut firm.ruth, client, "billing_dispute", "Invoice 7", "Too much.").await;
    let letter = new_entry(&mut firm.ann, client, "draft_letter", "Credit", "Dear Ms Raman").await;
    let record = json(&mut firm.ann, &format!("/clients/{client}")).await;
    let entry = |id: i64, author: &str, title: &str, text: &str| value!({"id": id, "at": "2026-11-13T09:14:00.000Z", "author": author, "title": title, "text": text, "version": 1});
    let open = |mut entry: serde_json::Value| {
        entry["open"] = value!(true);
        entry
    };
    assert_eq!((&record["id"], &record["name"]), (&value!(client), &value!("Harbour Lane Bakery")));
    assert_eq!(record["owner"], "ann@company.com");
    let notes = value!([entry(note, "ann@company.com", "Call", "They called.\nTwice.")]);
    assert_eq!(record["meeting_notes"], notes);
    let mut dispute = open(entry(dispute, "ruth@company.com", "Invoice 7", "Too much."));
    (dispute["status"], dispute["amount"]) = (value!("open"), value!(null));
    (dispute["currency"], dispute["due"]) = (value!("USD"), value!(null));
    assert_eq!(record["billing_disputes"], value!([dispute]));
    let mut draft = open(entry(letter, "ann@company.com", "Credit", "Dear Ms Raman"));
    (draft["status"], draft["sent_at"], draft["sent_to"]) = (value!("draft"), value!(null), value!(null));
    let letters = value!([draft]);
    assert_eq!(record["draft_letters"], letters);
    assert_eq!((&record["archived"], &record["version"]), (&value!(false), &value!(1)));
}

#[tokio::test]
async fn record_shows_known_details_only() {
    let mut firm = Firm::open().await;
    let fields = [
        ("name", "Harbour Lane Bakery"),
        ("contact", "Priya Raman, owner"),
        ("email", "priya@harbourlane.example"),
        ("telephone", "+1 617 555 0142"),
        ("address", "12 Harbour Lane\r\nBoston"),
        ("since", "2024-03-04"),
    ];
    let reply = firm.ann.post("/clients", &form(&fields)).await;
    let page = firm.ann.get(reply.location()).await;
    assert_has(
        &page,
        &[
            "<strong>Client created.</strong>",
            "<dd dir=\"auto\">Priya Raman, owner</dd>",
            "<a href=\"mailto:priya@harbourlane.example\">priya@<wbr>harbourlane.example</a>",
            "href=\"tel:+16175550142\"",
            "12 Harbour Lane<br>Boston",
            "<time datetime=\"2024-03-04\">4 March 2024</time>",
            "ann@<wbr>company.com</span></dd>",
        ],
    );
    let bare = new_client(&mut firm.ann, "Bare").await;
    let page = firm.ann.get(&format!("/clients/{bare}")).await;
    for label in ["Contact", "Email", "Telephone", "Address", "Client since"] {
        assert!(!page.body.contains(&format!("<dt>{label}</dt>")), "{label}");
    }
    assert_has(&page, &["No entries yet", "Add note"]);
}

#[tokio::test]
async fn timeline_is_newest_first_with_tabs_by_kind() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let path = format!("/clients/{client}");
    for (kind, title, at) in [
        ("meeting_note", "The middle", "2026-11-02T10:00"),
        ("billing_dispute", "The newest", "2026-11-12T10:00"),
        ("draft_letter", "The oldest", "2025-11-02T10:00"),
    ] {
        let fields =
            form(&[("kind", kind), ("title", title), ("text", "Words."), ("at", at), ("is_open", "1")]);
        firm.ann.post(&format!("{path}/entries"), &fields).await;
    }
    let page = firm.ann.get(&path).await;
    let positions: Vec<_> =
        ["The newest", "The middle", "The oldest"].map(|title| page.body.find(title).unwrap()).into();
    assert!(positions.is_sorted(), "{positions:?}");
    assert_has(
        &page,
        &["yesterday, 10:00 UTC", "2 Nov, 10:00 UTC", "2 Nov 2025, 10:00 UTC", "class=\"is-letter\""],
    );
    assert_has(&page, &["Everything<span class=\"count\">3</span>", "Letters<span class=\"count\">1</span>"]);
    assert_has(&page, &["Dispute open", ">Open</span>", ">Draft</span>"]);
    let letters = firm.ann.get(&format!("{path}?tab=letters")).await;
    assert!(letters.body.contains("The oldest") && !letters.body.contains("The newest"));
    assert_has(&letters, &["id=\"tab-letters\" href=\"", "aria-current=\"page\">Letters"]);
    for query in ["tab=x", "older=1", "open=nothing"] {
        assert_eq!(firm.ann.get(&format!("{path}?{query}")).await.status, StatusCode::BAD_REQUEST, "{query}");
    }
}

#[tokio::test]
async fn older_entries_are_paged_and_editable() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let path = format!("/clients/{client}");
    let mut first = 0;
    for number in 0..30 {
        let entry = new_entry(&mut firm.ann, client, "meeting_note", &format!("Note {number:02}"), "x").await;
        first = if number == 0 { entry } else { first };
        firm.portal.pass(Duration::from_secs(1));
    }
    let page = firm.ann.get(&path).await;
    assert!(page.body.contains("Note 29") && !page.body.contains("Note 04"));
    assert_has(&page, &["25 of 30 entries.", "Older entries"]);
    let older = page.body.split("id=\"older\" href=\"").nth(1).unwrap().split('"').next().unwrap();
    let older = older.replace("&#38;", "&");
    let page = firm.ann.get(&older).await;
    assert!(page.body.contains("Note 04") && page.body.contains("Note 00") && !page.body.contains("Note 05"));
    assert_has(&page, &["Latest entries"]);
    let page = firm.ann.get(&format!("{path}?open=entry-{first}")).await;
    assert_has(&page, &["value=\"Note 00\"", &format!("action=\"{path}/entries/{first}\"")]);
    assert_eq!(json(&mut firm.ann, &path).await["meeting_notes"].as_array().unwrap().len(), 30);
}

#[tokio::test]
async fn long_text_folds_without_scripts() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let text = format!("Agreed:\n- a credit\n- no refund\n\n{}\n\nThe end.", "More words. ".repeat(150));
    new_entry(&mut firm.ann, client, "meeting_note", "Call", &text).await;
    let page = firm.ann.get(&format!("/clients/{client}")).await;
    assert_has(
        &page,
        &[
            "<ul dir=\"auto\"><li dir=\"auto\">a credit</li><li dir=\"auto\">no refund</li></ul>",
            "<summary>Show more",
            "<p dir=\"auto\">The end.</p>",
        ],
    );
}
