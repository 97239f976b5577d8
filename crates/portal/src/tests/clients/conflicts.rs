//! Edit conflicts.

use super::{Firm, assert_has, form, json, new_client, new_entry};
use axum::http::StatusCode;

#[tokio::test]
async fn concurrent_entry_edit_shows_both_versions() {
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
            "<title>Not saved: ",
            "tabindex=\"-1\" autofocus>",
            "Someone else edited this.",
            "role=\"alert\"",
            "ruth@company.com saved this letter",
            "Fields that differ: title and letter.",
            "We offer a full credit.",
            "We offer half.</textarea>",
            "value=\"Credit for &#60;May&#62;\"",
            "name=\"version\" value=\"2\"",
            "<button class=\"button button-primary\" name=\"resolve\" value=\"edit\">Continue editing</button>",
            "<button class=\"button button-danger\" name=\"resolve\" value=\"overwrite\">",
            "Discard my changes",
            "<ins><span class=\"visually-hidden\">added: </span>half.</ins>",
            "<ins><span class=\"visually-hidden\">added: </span>full ",
            "<span class=\"badge\">Same</span>",
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
async fn continuing_to_edit_saves_nothing_and_keeps_the_typed_text() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let entry = new_entry(&mut firm.ann, client, "meeting_note", "Call", "They called.").await;
    let path = format!("/clients/{client}/entries/{entry}");
    let fields = |version: &'static str, text: &'static str, resolve: &'static str| {
        form(&[
            ("kind", "meeting_note"),
            ("version", version),
            ("title", "Call"),
            ("text", text),
            ("resolve", resolve),
        ])
    };
    firm.ruth.post(&path, &fields("1", "They called twice.", "")).await;
    let reply = firm.ann.post(&path, &fields("2", "They wrote.", "edit")).await;
    assert_eq!(reply.status, StatusCode::OK);
    assert_has(
        &reply,
        &["Not saved yet.", "They wrote.</textarea>", "name=\"version\" value=\"2\"", ">Save note</button>"],
    );
    assert!(!reply.body.contains("value=\"overwrite\""), "{}", reply.body);
    let record = json(&mut firm.ann, &format!("/clients/{client}")).await;
    assert_eq!(record["meeting_notes"][0]["text"], "They called twice.");

    // If there is another edit meanwhile, the user sees that one first.
    firm.ruth.post(&path, &fields("2", "They called three times.", "")).await;
    let reply = firm.ann.post(&path, &fields("2", "They wrote.", "edit")).await;
    assert_eq!(reply.status, StatusCode::CONFLICT);
    assert_has(&reply, &["value=\"overwrite\"", "name=\"version\" value=\"3\""]);
    let denied = firm.ben.post(&path, &fields("3", "Mine.", "edit")).await;
    assert_eq!(denied.status, StatusCode::FORBIDDEN);
    let reply = firm.ann.post(&path, &fields("3", "They called and wrote.", "overwrite")).await;
    assert_eq!(reply.status, StatusCode::SEE_OTHER);

    let details = |resolve| form(&[("version", "1"), ("name", "Harbour Bakery"), ("resolve", resolve)]);
    let reply = firm.ann.post(&format!("/clients/{client}"), &details("edit")).await;
    assert_eq!(reply.status, StatusCode::OK);
    assert_has(&reply, &["Not saved yet.", "value=\"Harbour Bakery\"", ">Save details</button>"]);
}

#[tokio::test]
async fn concurrent_details_edit_shows_both_versions() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let path = format!("/clients/{client}");
    let other_form = form(&[("version", "1"), ("name", "Harbour Lane Bakery"), ("contact", "Luis")]);
    assert_eq!(firm.ruth.post(&path, &other_form).await.status, StatusCode::SEE_OTHER);
    let mine = |version| form(&[("version", version), ("name", "Harbour Bakery"), ("contact", "Priya")]);
    let reply = firm.ann.post(&path, &mine("1")).await;
    assert_eq!(reply.status, StatusCode::CONFLICT);
    assert_has(
        &reply,
        &[
            "Someone else edited this.",
            "ruth@company.com saved these details",
            "Fields that differ: name and contact.",
            "value=\"Priya\"",
            "name=\"version\" value=\"2\"",
        ],
    );
    assert_eq!(json(&mut firm.ann, &path).await["contact"], "Luis");
    assert_eq!(firm.ann.post(&path, &mine("2")).await.status, StatusCode::SEE_OTHER);
    assert_eq!(json(&mut firm.ann, &path).await["contact"], "Priya");
}

#[tokio::test]
async fn saving_over_an_archived_entry_offers_restore() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let entry = new_entry(&mut firm.ann, client, "meeting_note", "Call", "They called.").await;
    let path = format!("/clients/{client}/entries/{entry}");
    let fields = |version: &'static str, text: &'static str| {
        vec![("kind", "meeting_note"), ("version", version), ("title", "Call"), ("text", text)]
    };
    firm.ruth.post(&format!("{path}/archive"), "").await;
    let reply = firm.ann.post(&path, &form(&fields("1", "They called twice."))).await;
    assert_eq!(reply.status, StatusCode::CONFLICT);
    assert_has(
        &reply,
        &[
            "ruth@company.com archived this note.",
            "It is archived now",
            "name=\"restore\" value=\"1\" checked",
        ],
    );
    assert!(!reply.body.contains("ruth@company.com saved"), "she only archived it");

    // Unless restored, it stays archived, and the next page shows it there.
    let reply = firm.ann.post(&path, &form(&fields("2", "They called twice."))).await;
    let saved = format!("/clients/{client}?tab=archived&done=entry&undo=3_{entry}&at={entry}#entry-{entry}");
    assert_eq!(reply.location(), saved);
    let mut restoring = fields("3", "They called three times.");
    restoring.push(("restore", "1"));
    let reply = firm.ann.post(&path, &form(&restoring)).await;
    assert_eq!(reply.location(), format!("/clients/{client}?done=entry&at={entry}#entry-{entry}"));
    let record = json(&mut firm.ann, &format!("/clients/{client}")).await;
    assert_eq!(record["meeting_notes"][0]["text"], "They called three times.");

    let reply = firm.ann.post(&path, &form(&fields("1", "Late."))).await;
    let own = ["You edited this elsewhere.", "It has 4 newer versions; the last is yours.", "By you, "];
    assert_has(&reply, &own);
}

#[tokio::test]
async fn conflict_names_the_changes_made() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let path = format!("/clients/{client}");
    let mine = |version| form(&[("version", version), ("name", "Harbour Bakery")]);
    firm.ruth.post(&format!("{path}/archive"), "").await;
    let reply = firm.ann.post(&path, &mine("1")).await;
    assert_eq!(reply.status, StatusCode::CONFLICT);
    assert_has(&reply, &["ruth@company.com archived this client.", "until you restore it."]);
    assert!(!reply.body.contains("saved these details"));

    let ben = form(&[("owner", &firm.number_of("ben@company.com").await.to_string())]);
    firm.ruth.post(&format!("{path}/reassign"), &ben).await;
    let reply = firm.ben.post(&path, &mine("2")).await;
    assert_has(&reply, &["ruth@company.com reassigned this client to ben@company.com."]);
    let reply = firm.ben.post(&path, &mine("1")).await;
    assert_has(
        &reply,
        &["Other people reassigned this client to ben@company.com and archived this client; the last"],
    );
}
