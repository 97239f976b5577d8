//! User text is plain text on every page.

use super::super::firm::Firm;
use super::{form, json, new_entry};
use axum::http::StatusCode;
use chancery_domain::ClientId;

const HOSTILE: &str =
    "\"><script>alert(1)</script><img src=x onerror=alert(1)>' {{7*7}} </title></textarea><!--";

#[tokio::test]
async fn client_texts_are_escaped_on_every_page() {
    let mut firm = Firm::open().await;
    let reply = firm.ann.browser.post("/clients", &form(&[("name", HOSTILE)])).await;
    assert_eq!(reply.status, StatusCode::SEE_OTHER, "{}", reply.body);
    let list = json(&mut firm.ann.browser, "/clients").await;
    let client = list["clients"][0]["id"].as_i64().unwrap();
    assert_eq!(list["clients"][0]["name"], HOSTILE);
    let path = format!("/clients/{client}");
    // No such address is accepted any more, but one that is stored stays.
    let email = "\"><script>alert(1)</script>@x";
    firm.store_email(ClientId(client), 1, email).await;
    let fields =
        [("version", "2"), ("name", HOSTILE), ("contact", HOSTILE), ("email", email), ("address", HOSTILE)];
    let reply = firm.ann.browser.post(&path, &form(&fields)).await;
    assert_eq!(reply.status, StatusCode::SEE_OTHER, "{}", reply.body);
    let mut entries = Vec::new();
    for kind in ["meeting_note", "billing_dispute", "draft_letter"] {
        entries.push(
            new_entry(&mut firm.ann.browser, client, kind, HOSTILE, &format!("- {HOSTILE}\n\n{HOSTILE}"))
                .await,
        );
    }
    let change = [("kind", "draft_letter"), ("version", "1"), ("title", "x"), ("text", HOSTILE), ("at", "")];
    let entry = format!("{path}/entries/{}", entries[2]);
    assert_eq!(firm.ann.browser.post(&entry, &form(&change)).await.status, StatusCode::SEE_OTHER);

    let search = form(&[("q", HOSTILE)]);
    let mut pages = Vec::new();
    for address in [
        "/clients".to_owned(),
        format!("/clients?{search}"),
        path.clone(),
        format!("{path}?open=facts"),
        format!("{path}?open=entry-{}", entries[0]),
        format!("{path}?open=entry-{}", entries[2]),
        format!("{path}/versions"),
        format!("{entry}/versions"),
    ] {
        let page = firm.ann.browser.get(&address).await;
        assert_eq!(page.status, StatusCode::OK, "{address}");
        pages.push(page);
    }
    // Conflicts and invalid forms show the typed text, too.
    let stale =
        [("kind", "draft_letter"), ("version", "1"), ("title", HOSTILE), ("text", HOSTILE), ("at", HOSTILE)];
    let page = firm.ann.browser.post(&entry, &form(&stale)).await;
    assert_eq!(page.status, StatusCode::UNPROCESSABLE_ENTITY);
    pages.push(page);
    let stale = [("kind", "draft_letter"), ("version", "1"), ("title", HOSTILE), ("text", HOSTILE)];
    let page = firm.ann.browser.post(&entry, &form(&stale)).await;
    assert_eq!(page.status, StatusCode::CONFLICT);
    pages.push(page);
    pages.push(firm.ann.browser.post(&path, &form(&[("version", "77"), ("name", HOSTILE)])).await);
    pages.push(firm.ann.browser.post("/clients", &form(&[("name", ""), ("contact", HOSTILE)])).await);
    for page in pages {
        for part in ["<script>", "<img", "onerror=alert(1)>", "alert(1)</"] {
            assert!(!page.body.contains(part), "{part}: {}", page.body);
        }
        assert!(page.body.contains("&#60;script&#62;"), "it is there, as text: {}", page.body);
        assert_eq!(page.body.matches("</title>").count(), 1);
        assert_eq!(page.body.matches("<!--").count(), 0);
        assert_eq!(
            page.body.matches("<textarea").count(),
            page.body.matches("</textarea>").count(),
            "{}",
            page.body
        );
    }
}

#[tokio::test]
async fn unprintable_characters_are_rejected() {
    let mut firm = Firm::open().await;
    let reply =
        firm.ann.browser.post("/clients", &form(&[("name", "a\u{202e}b"), ("contact", "a\0b")])).await;
    assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(reply.body.contains("U+202E") && reply.body.contains("U+0000"), "{}", reply.body);
    assert_eq!(firm.ann.browser.get("/clients?q=a%00b").await.status, StatusCode::BAD_REQUEST);
}
