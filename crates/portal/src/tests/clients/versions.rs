//! Every earlier version is stored, and shown with its changes.

use super::{Firm, assert_has, form, new_client, new_entry};
use axum::http::StatusCode;
use std::time::Duration;

#[tokio::test]
async fn history_shows_author_time_and_changes() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let path = format!("/clients/{client}");
    firm.portal.pass(Duration::from_secs(600));
    firm.ruth
        .post(&path, &form(&[("version", "1"), ("name", "Harbour Street Bakery"), ("contact", "Luis")]))
        .await;
    let owner = form(&[("owner", &firm.number_of("ben@company.com").await.to_string())]);
    firm.ruth.post(&format!("{path}/reassign"), &owner).await;
    let page = firm.ben.get(&format!("{path}/versions")).await;
    assert_has(
        &page,
        &[
            "Version 3",
            "Owner changed",
            "Version 2",
            "ruth@<wbr>company.com",
            "today, 09:24 UTC",
            "<del><span class=\"visually-hidden\">removed: </span>Lane</del><ins><span class=\"visually-hidden\">added: </span>Street</ins>",
            "Contact changed",
            "First version.",
            "today, 09:14 UTC",
        ],
    );
    assert_eq!(firm.ann.get(&format!("{path}/versions")).await.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn history_is_paged() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let entry = new_entry(&mut firm.ann, client, "meeting_note", "Call", "Words 1.").await;
    let path = format!("/clients/{client}/entries/{entry}");
    for version in 1..25 {
        let (version, text) = (version.to_string(), format!("Words {}.", version + 1));
        let fields =
            form(&[("kind", "meeting_note"), ("version", &version), ("title", "Call"), ("text", &text)]);
        assert_eq!(firm.ann.post(&path, &fields).await.status, StatusCode::SEE_OTHER);
    }
    let page = firm.ann.get(&format!("{path}/versions")).await;
    assert_has(&page, &["Version 25", "Version 6<", "?before=6"]);
    assert!(!page.body.contains("Version 5<"));
    let page = firm.ann.get(&format!("{path}/versions?before=6")).await;
    assert_has(&page, &["Version 5<", "Version 1<", "First version."]);
    assert_eq!(firm.ann.get(&format!("{path}/versions?before=x")).await.status, StatusCode::BAD_REQUEST);
}
