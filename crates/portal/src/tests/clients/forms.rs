//! Invalid forms: every invalid field is named, and nothing typed is lost.

use super::{Firm, assert_has, form, json, new_client, new_entry};
use axum::http::StatusCode;

#[tokio::test]
async fn two_errors_show_a_summary_and_keep_the_input() {
    let mut firm = Firm::open().await;
    let fields = [
        ("name", " "),
        ("contact", "Grace \"Okafor\""),
        ("email", "grace.abbotsmill.example"),
        ("telephone", "+44 203"),
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
            "Fix 2 problems",
            "<a href=\"#name\">Enter the client’s name</a>",
            "<a href=\"#email\">Enter an email address like name@example.com</a>",
            "aria-invalid=\"true\" aria-describedby=\"name-error\"",
            "aria-invalid=\"true\" aria-describedby=\"email-hint email-error\"",
            "value=\"Grace &#34;Okafor&#34;\"",
            "value=\"grace.abbotsmill.example\"",
            "value=\"+44 203\"",
            "Mill &#60;Lane&#62;</textarea>",
            "value=\"2024-03-04\"",
            "data-unsaved",
        ],
    );
    assert_eq!(json(&mut firm.ann, "/clients").await["total"], 0);
}

#[tokio::test]
async fn one_error_shows_no_summary() {
    let mut firm = Firm::open().await;
    let reply = firm.ann.post("/clients", &form(&[("name", "")])).await;
    assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(!reply.body.contains("error-summary"));
    assert_has(&reply, &["<title>Error: ", "id=\"name-error\""]);
}

#[tokio::test]
async fn invalid_entry_reopens_with_its_input() {
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
            "Fix 3 problems",
            "<a href=\"#title\">Enter a title</a>",
            "Use at most 20000 characters for the text; it has 20001",
            "<a href=\"#at\">Enter a date and time like 2026-11-13 09:14</a>",
            &long,
            "value=\"soon\"",
            "<h1><span dir=\"auto\">Harbour Lane Bakery",
        ],
    );
    assert!(!reply.body.contains(" checked"), "an empty box stays empty");

    let entry = new_entry(&mut firm.ann, client, "meeting_note", "Call", "They called.").await;
    let fields = [("kind", "meeting_note"), ("version", "1"), ("title", ""), ("text", "\n\nIndented again")];
    let reply = firm.ann.post(&format!("{path}/entries/{entry}"), &form(&fields)).await;
    assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_has(&reply, &["Indented again</textarea>", "id=\"title-error\"", "name=\"version\" value=\"1\""]);
    assert_eq!(json(&mut firm.ann, &path).await["meeting_notes"][0]["text"], "They called.");
}

#[tokio::test]
async fn editor_keeps_leading_blank_lines() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let fields = [("kind", "draft_letter"), ("title", ""), ("text", "\n\n  Dear Ms Raman")];
    let reply = firm.ann.post(&format!("/clients/{client}/entries"), &form(&fields)).await;
    // Browsers drop one line break right after the tag, so the template adds one.
    assert_has(&reply, &[">\n\n\n  Dear Ms Raman</textarea>"]);
}

#[tokio::test]
async fn longest_text_fits_and_oversized_form_is_413() {
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
    assert_has(&reply, &["Request too large", "Go back and shorten the text."]);
    assert_eq!(firm.ann.post(&path, "title=a&title=b").await.status, StatusCode::BAD_REQUEST);
}

/// Sessions expire while people write, clients are reassigned, and databases fail.
#[tokio::test]
async fn failed_form_preserves_the_typed_text() {
    let mut firm = Firm::open().await;
    let id = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let fields = form(&[
        ("kind", "meeting_note"),
        ("title", "Call & credit"),
        ("text", "an <hour> of writing"),
        ("version", "77"),
    ]);
    let typed = ["Your unsaved text", "Call &#38; credit", "an &#60;hour&#62; of writing"];

    let rejected = firm.ben.post(&format!("/clients/{id}/entries"), &fields).await;
    assert_eq!(rejected.status, StatusCode::FORBIDDEN);
    assert_has(&rejected, &typed);
    assert!(!rejected.body.contains("77"), "only what people write: {}", rejected.body);
    let nobodys = firm.ben.post("/clients/999999/entries", &fields).await;
    assert_eq!(rejected.body, nobodys.body, "and the same for a number that is no client's");

    let path = format!("/clients/{id}/entries");
    firm.portal.pass(std::time::Duration::from_secs(3_600));
    let ended = firm.ann.post(&path, &fields).await;
    assert_eq!(ended.status, StatusCode::UNAUTHORIZED);
    assert_has(&ended, &typed);
    assert_has(&ended, &["You are signed out", "Nothing was saved."]);
}
