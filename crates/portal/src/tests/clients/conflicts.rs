//! Two people change the same thing.

use super::{Firm, assert_has, form, json, new_client, new_entry};
use axum::http::StatusCode;

#[tokio::test]
async fn the_second_to_save_an_entry_sees_both_and_decides() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let entry = new_entry(&mut firm.ann, client, "draft_letter", "Credit", "We offer a credit.").await;
    let path = format!("/clients/{client}/entries/{entry}");
    let fields = |version: &'static str, title: &'static str, text: &'static str| {
        form(&[
            ("kind", "draft_letter"),
            ("version", version),
            ("title", title),
            ("text", text),
            ("at", "2026-11-13T09:14"),
            ("is_open", "1"),
        ])
    };
    let reply = firm.ruth.post(&path, &fields("1", "Credit", "We offer a full credit.")).await;
    assert_eq!(reply.status, StatusCode::SEE_OTHER);
    let reply = firm.ann.post(&path, &fields("1", "Credit for <May>", "We offer half.")).await;
    assert_eq!(reply.status, StatusCode::CONFLICT);
    assert_has(
        &reply,
        &[
            "Changed meanwhile.",
            "role=\"alert\"",
            "ruth@company.com saved this letter",
            "Different from yours: title and letter.",
            "We offer a full credit.",
            "We offer half.</textarea>",
            "value=\"Credit for &#60;May&#62;\"",
            "name=\"version\" value=\"2\"",
            "Save mine over theirs",
            "Keep theirs",
            "<ins><span class=\"visually-hidden\">added: </span>full ",
            "Same as yours",
        ],
    );
    let record = json(&mut firm.ann, &format!("/clients/{client}")).await;
    assert_eq!(record["draft_letters"][0]["text"], "We offer a full credit.", "nothing was overwritten");

    let reply = firm.ann.post(&path, &fields("2", "Credit for May", "We offer half.")).await;
    assert_eq!(reply.status, StatusCode::SEE_OTHER, "on purpose");
    let record = json(&mut firm.ann, &format!("/clients/{client}")).await;
    assert_eq!(record["draft_letters"][0]["text"], "We offer half.");
    let versions = firm.ann.get(&format!("{path}/versions")).await;
    assert_has(&versions, &["We offer a full credit.", "We offer a credit."]);
}

#[tokio::test]
async fn the_second_to_save_facts_sees_both_and_decides() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let path = format!("/clients/{client}");
    let theirs = form(&[("version", "1"), ("name", "Harbour Lane Bakery"), ("contact", "Luis")]);
    assert_eq!(firm.ruth.post(&path, &theirs).await.status, StatusCode::SEE_OTHER);
    let mine = |version| form(&[("version", version), ("name", "Harbour Bakery"), ("contact", "Priya")]);
    let reply = firm.ann.post(&path, &mine("1")).await;
    assert_eq!(reply.status, StatusCode::CONFLICT);
    assert_has(
        &reply,
        &[
            "Changed meanwhile.",
            "ruth@company.com saved these facts",
            "Different from yours: name and contact.",
            "value=\"Priya\"",
            "name=\"version\" value=\"2\"",
        ],
    );
    assert_eq!(json(&mut firm.ann, &path).await["contact"], "Luis");
    assert_eq!(firm.ann.post(&path, &mine("2")).await.status, StatusCode::SEE_OTHER);
    assert_eq!(json(&mut firm.ann, &path).await["contact"], "Priya");
}
