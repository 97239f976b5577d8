//! Forms with mistakes: every field is named, and nothing typed is lost.

use super::{Firm, assert_has, form, json, new_client, new_entry};
use axum::http::StatusCode;

#[tokio::test]
async fn a_new_client_with_two_mistakes_gets_a_summary_and_keeps_every_word() {
    let mut firm = Firm::open().await;
    let fields = [
        ("name", " "),
        ("contact", "Grace \"Okafor\""),
        ("email", "grace.abbotsmill.example"),
        ("telephone", "+44 20"),
        ("address", "Mill <Lane>"),
        ("since", "2024-03-04"),
    ];
    let reply = firm.ann.post("/clients", &form(&fields)).await;
    assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_has(
        &reply,
        &[
            "<title>Error: New client",
            "role=\"alert\"",
            "Two things to put right",
            "<a href=\"#name\">Enter the client’s name</a>",
            "<a href=\"#email\">Write the e-mail address like name@example.com</a>",
            "aria-invalid=\"true\" aria-describedby=\"name-error\"",
            "aria-invalid=\"true\" aria-describedby=\"email-hint email-error\"",
            "value=\"Grace &#34;Okafor&#34;\"",
            "value=\"grace.abbotsmill.example\"",
            "value=\"+44 20\"",
            "Mill &#60;Lane&#62;</textarea>",
            "value=\"2024-03-04\"",
            "data-unsaved",
        ],
    );
    assert_eq!(json(&mut firm.ann, "/clients").await["total"], 0);
}

#[tokio::test]
async fn one_mistake_needs_no_summary() {
    let mut firm = Firm::open().await;
    let reply = firm.ann.post("/clients", &form(&[("name", "")])).await;
    assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(!reply.body.contains("error-summary"));
    assert_has(&reply, &["<title>Error: ", "id=\"name-error\""]);
}

#[tokio::test]
async fn an_entry_with_mistakes_comes_back_open_in_the_record_with_everything_in_it() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let path = format!("/clients/{client}");
    let long = "x".repeat(20_001);
    let fields = [("kind", "draft_letter"), ("title", ""), ("text", &long), ("at", "soon")];
    let reply = firm.ann.post(&format!("{path}/entries"), &form(&fields)).await;
    assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_has(
        &reply,
        &[
            "Three things to put right",
            "<a href=\"#title\">Enter a title</a>",
            "The text has 20001 characters; 20000 at most",
            "<a href=\"#at\">Write the day and the time like 2026-11-13 09:14</a>",
            &long,
            "value=\"soon\"",
            "<h1>Harbour Lane Bakery",
        ],
    );
    assert!(!reply.body.contains(" checked"), "an empty box stays empty");

    let entry = new_entry(&mut firm.ann, client, "meeting_note", "Call", "They called.").await;
    let fields = [("kind", "meeting_note"), ("version", "1"), ("title", ""), ("text", "\n\nIndented anew")];
    let reply = firm.ann.post(&format!("{path}/entries/{entry}"), &form(&fields)).await;
    assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_has(&reply, &["Indented anew</textarea>", "id=\"title-error\"", "name=\"version\" value=\"1\""]);
    assert_eq!(json(&mut firm.ann, &path).await["meeting_notes"][0]["text"], "They called.");
}

#[tokio::test]
async fn text_keeps_its_leading_lines_in_the_editor() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let fields = [("kind", "draft_letter"), ("title", ""), ("text", "\n\n  Dear Ms Raman")];
    let reply = firm.ann.post(&format!("/clients/{client}/entries"), &form(&fields)).await;
    // Browsers drop one line break right after the tag, and ours stands there for them.
    assert_has(&reply, &[">\n\n\n  Dear Ms Raman</textarea>"]);
}

#[tokio::test]
async fn the_longest_text_fits_into_a_form_and_what_is_far_longer_is_refused_plainly() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let path = format!("/clients/{client}/entries");
    let longest = "€".repeat(20_000);
    let fields = form(&[("kind", "meeting_note"), ("title", "Call"), ("text", &longest)]);
    assert_eq!(firm.ann.post(&path, &fields).await.status, StatusCode::SEE_OTHER);
    let fields = form(&[("kind", "meeting_note"), ("title", "Call"), ("text", &"😀".repeat(20_001))]);
    let reply = firm.ann.post(&path, &fields).await;
    assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY, "it is shown again with everything typed");
    let fields = form(&[("kind", "meeting_note"), ("title", "Call"), ("text", &"€".repeat(120_000))]);
    let reply = firm.ann.post(&path, &fields).await;
    assert_eq!(reply.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_has(&reply, &["too large", "Go back"]);
    assert_eq!(firm.ann.post(&path, "title=a&title=b").await.status, StatusCode::BAD_REQUEST);
}

/// Idle sessions end while people write, records change hands, and databases go away.
#[tokio::test]
async fn a_form_that_is_refused_gives_back_what_was_typed_whatever_the_reason() {
    let mut firm = Firm::open().await;
    let id = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let fields = form(&[
        ("kind", "meeting_note"),
        ("title", "Call & credit"),
        ("text", "an <hour> of writing"),
        ("version", "77"),
    ]);
    let typed = ["What you typed", "Call &#38; credit", "an &#60;hour&#62; of writing"];

    let refused = firm.ben.post(&format!("/clients/{id}/entries"), &fields).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    assert_has(&refused, &typed);
    assert!(!refused.body.contains("77"), "only what people write: {}", refused.body);
    let nobodys = firm.ben.post("/clients/999999/entries", &fields).await;
    assert_eq!(refused.body, nobodys.body, "and the same for a number that is no client's");

    let path = format!("/clients/{id}/entries");
    firm.desk.pass(std::time::Duration::from_secs(3_600));
    let ended = firm.ann.post(&path, &fields).await;
    assert_eq!(ended.status, StatusCode::UNAUTHORIZED);
    assert_has(&ended, &typed);
    assert_has(&ended, &["You are signed out", "nothing was saved"]);
}
