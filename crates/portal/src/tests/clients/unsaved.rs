//! Unsaved text: stored per person and form, given back to the same person only, and deleted when the form is saved.

use super::{Firm, assert_has, form, new_client, new_entry, sign_in};
use axum::http::StatusCode;
use chancery_store::UNSAVED_TEXT_LIFETIME;
use std::time::Duration;

const RESTORED: &str = "Restored unsaved text";
/// Longer than a session may be idle.
const AWAY: Duration = Duration::from_secs(3_600);

fn typed(text: &str) -> String {
    form(&[("kind", "meeting_note"), ("title", "Call & credit"), ("text", text)])
}

/// As the form sends it that this person has opened.
fn typed_by(person: i64, text: &str) -> String {
    format!("{}&person={person}", typed(text))
}

#[tokio::test]
async fn unsaved_text_comes_back_to_its_person_and_form_only() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let (path, unsaved) = (format!("/clients/{client}"), format!("/clients/{client}/unsaved"));
    for text in ["an hour", "an <hour> of writing"] {
        assert_eq!(firm.ann.post(&unsaved, &typed(text)).await.status, StatusCode::NO_CONTENT);
    }
    let page = firm.ann.get(&format!("{path}?open=note")).await;
    assert_has(
        &page,
        &[
            RESTORED,
            "today, 09:14 UTC",
            "value=\"Call &#38; credit\"",
            "an &#60;hour&#62; of writing",
            "data-unsaved",
            &format!("action=\"{unsaved}/discard\""),
        ],
    );
    for open in ["letter", "dispute", "facts"] {
        assert!(!firm.ann.get(&format!("{path}?open={open}")).await.body.contains(RESTORED), "{open}");
    }
    // Ruth may edit the client, and has her own text.
    assert!(!firm.ruth.get(&format!("{path}?open=note")).await.body.contains("of writing"));
    let denied = firm.ben.post(&unsaved, &typed("mine")).await;
    assert_eq!(denied.status, StatusCode::FORBIDDEN);
    let nobodys = firm.ben.post("/clients/999999/unsaved", &typed("mine")).await;
    assert_eq!(denied.body, nobodys.body, "and the same for a number that is no client's");
    // A colleague who gets the client does not get the text with it.
    let ben = firm.number_of("ben@company.com").await.to_string();
    firm.ruth.post(&format!("{path}/reassign"), &form(&[("owner", &ben)])).await;
    assert!(!firm.ben.get(&format!("{path}?open=note")).await.body.contains("of writing"));
    assert_eq!(firm.ann.post(&unsaved, &typed("more")).await.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn saving_or_discarding_deletes_unsaved_text() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let (path, unsaved) = (format!("/clients/{client}"), format!("/clients/{client}/unsaved"));
    firm.ann.post(&unsaved, &typed("first")).await;
    let entry = new_entry(&mut firm.ann, client, "meeting_note", "Call", "first").await;
    assert!(!firm.ann.get(&format!("{path}?open=note")).await.body.contains(RESTORED));

    let number = entry.to_string();
    let edited = [("kind", "meeting_note"), ("entry", &number), ("version", "1"), ("title", "Call")];
    let edited = [edited.as_slice(), &[("text", "second"), ("at", "2026-11-13T09:14")]].concat();
    let open = format!("{path}?open=entry-{entry}");
    firm.ann.post(&unsaved, &form(&edited)).await;
    assert_has(&firm.ann.get(&open).await, &[RESTORED, "second</textarea>"]);
    let reply = firm.ann.post(&format!("{unsaved}/discard"), &form(&edited[..2])).await;
    assert_eq!((reply.status, reply.location()), (StatusCode::SEE_OTHER, open.as_str()));
    assert!(!firm.ann.get(&open).await.body.contains(RESTORED));

    firm.ann.post(&unsaved, &form(&edited)).await;
    let reply = firm.ann.post(&format!("{path}/entries/{entry}"), &form(&edited)).await;
    assert_eq!(reply.status, StatusCode::SEE_OTHER, "{}", reply.body);
    assert!(!firm.ann.get(&open).await.body.contains(RESTORED));

    // The same text as the saved one is not offered.
    let same = [("version", "2"), ("text", "second"), ("title", "Call"), ("at", "2026-11-13T09:14")];
    firm.ann.post(&unsaved, &form(&[&edited[..2], &same].concat())).await;
    assert!(!firm.ann.get(&open).await.body.contains(RESTORED));

    let details = [("kind", "details"), ("version", "1"), ("name", "Harbour Lane Bakery Ltd")];
    firm.ann.post(&unsaved, &form(&details)).await;
    assert_has(&firm.ann.get(&format!("{path}?open=facts")).await, &[RESTORED, "Bakery Ltd\""]);
    assert_eq!(firm.ann.post(&path, &form(&details)).await.status, StatusCode::SEE_OTHER);
    assert!(!firm.ann.get(&format!("{path}?open=facts")).await.body.contains(RESTORED));
}

#[tokio::test]
async fn unsaved_dispute_comes_back_with_status_amount_and_due_date() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let path = format!("/clients/{client}");
    let terms = [("status", "resolved"), ("amount", "12.50"), ("due", "2026-11-20")];
    let typed = form(&[[("kind", "billing_dispute")].as_slice(), &terms].concat());
    assert_eq!(firm.ann.post(&format!("{path}/unsaved"), &typed).await.status, StatusCode::NO_CONTENT);
    let page = firm.ann.get(&format!("{path}?open=dispute")).await;
    assert_has(&page, &[RESTORED, "value=\"resolved\" selected", "value=\"12.50\"", "value=\"2026-11-20\""]);
}

#[tokio::test]
async fn text_sent_after_the_session_ended_comes_back_after_signing_in() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let path = format!("/clients/{client}");
    let ann = firm.number_of("ann@company.com").await;
    let opened = firm.ann.get(&format!("{path}?open=note")).await;
    assert_has(&opened, &[&format!("name=\"person\" value=\"{ann}\"")]);
    firm.portal.pass(AWAY);
    let late = typed_by(ann, "an hour of writing");
    let ended = firm.ann.post(&format!("{path}/entries"), &late).await;
    assert_eq!(ended.status, StatusCode::UNAUTHORIZED);
    let sign_in_link = format!("/auth/sign-in?return_to=%2Fclients%2F{client}%3Fopen%3Dnote");
    assert_has(&ended, &["Your text is stored.", &sign_in_link, "an hour of writing"]);
    assert!(!ended.body.contains("Copy it before"), "{}", ended.body);
    let accept = std::mem::replace(&mut firm.ann.accept, "application/json");
    let ended = firm.ann.post(&format!("{path}/unsaved"), &late).await;
    firm.ann.accept = accept;
    assert_eq!(ended.status, StatusCode::UNAUTHORIZED);
    assert_has(&ended, &["\"text_stored\""]);

    // Someone else at the same computer gets nothing of it.
    let mut ruth = sign_in(&firm.portal, "ruth").await;
    assert!(!ruth.get(&format!("{path}?open=note")).await.body.contains("an hour of writing"));
    let mut again = sign_in(&firm.portal, "ann").await;
    assert_has(&again.get(&format!("{path}?open=note")).await, &[RESTORED, "an hour of writing"]);

    // The form is open in another session now, so the ended one stores nothing.
    let ended = firm.ann.post(&format!("{path}/entries"), &typed_by(ann, "too late")).await;
    assert_has(&ended, &["Nothing was saved.", "Copy it before you leave this page."]);
    assert!(!again.get(&format!("{path}?open=note")).await.body.contains("too late"));
}

#[tokio::test]
async fn form_that_someone_else_opened_in_the_same_browser_is_never_stored() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let (path, ann) = (format!("/clients/{client}"), firm.number_of("ann@company.com").await);
    // Ruth may edit the client, and has signed in where Ann has left a form open.
    firm.ruth.get(&format!("{path}?open=note")).await;
    for target in ["unsaved", "entries", "letters/draft", "letters/rewrite"] {
        let reply = firm.ruth.post(&format!("{path}/{target}"), &typed_by(ann, "an hour of writing")).await;
        assert_eq!(reply.status, StatusCode::CONFLICT, "{target}");
        assert_has(&reply, &["Someone else has signed in in this browser"]);
    }
    let page = firm.ruth.get(&format!("{path}?open=note")).await;
    assert!(!page.body.contains("an hour of writing"), "{}", page.body);

    firm.portal.pass(AWAY);
    let ended = firm.ruth.post(&format!("{path}/entries"), &typed_by(ann, "an hour of writing")).await;
    assert_has(&ended, &["Nothing was saved."]);
    let mut ruth = sign_in(&firm.portal, "ruth").await;
    assert!(!ruth.get(&format!("{path}?open=note")).await.body.contains("an hour of writing"));
}

#[tokio::test]
async fn invalid_unsaved_text_is_rejected_by_name_and_old_text_is_deleted() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let (path, unsaved) = (format!("/clients/{client}"), format!("/clients/{client}/unsaved"));
    let reply = firm.ann.post(&unsaved, &form(&[("kind", "poem"), ("text", "x")])).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST);
    assert_has(&reply, &["`kind` or `entry`"]);
    let other = new_client(&mut firm.ann, "Calder & Sons").await;
    let entry = new_entry(&mut firm.ann, other, "meeting_note", "Call", "text").await.to_string();
    let reply = firm.ann.post(&unsaved, &form(&[("kind", "meeting_note"), ("entry", &entry)])).await;
    assert_eq!(reply.status, StatusCode::NOT_FOUND, "an entry of another client");

    firm.ann.post(&unsaved, &typed("an hour of writing")).await;
    firm.portal.pass(UNSAVED_TEXT_LIFETIME + AWAY);
    crate::maintenance::run_maintenance_once(&firm.portal.portal).await.unwrap();
    let mut ann = sign_in(&firm.portal, "ann").await;
    assert!(!ann.get(&format!("{path}?open=note")).await.body.contains("an hour of writing"));
}

#[tokio::test]
async fn confirmation_is_shown_at_the_saved_entry() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let entry = new_entry(&mut firm.ann, client, "meeting_note", "Call", "text").await;
    let page = firm.ann.get(&format!("/clients/{client}?done=note&at={entry}")).await;
    let (_, article) = page.body.split_once(&format!("id=\"entry-{entry}\"")).unwrap();
    let article = article.split("</article>").next().unwrap();
    assert!(article.contains("<strong>Note added.</strong>"), "{article}");
    assert_eq!(page.body.matches("Note added.").count(), 1);
    // An entry that is not on this page: the confirmation is at the top.
    let page = firm.ann.get(&format!("/clients/{client}?done=note&at=999999")).await;
    assert_has(&page, &["<strong>Note added.</strong>"]);
}
