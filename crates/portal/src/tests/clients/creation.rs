//! New clients: a warning before the same name is used again, and their place in the list.

use super::{Firm, assert_has, form, json, new_client, new_entry};
use axum::http::StatusCode;
use std::time::Duration;

#[tokio::test]
async fn equal_name_is_created_only_after_confirmation() {
    let mut firm = Firm::open().await;
    let first = new_client(&mut firm.ann, "Café Zoë").await;
    firm.ann.post(&format!("/clients/{first}/archive"), "").await;
    let reply = firm.ann.post("/clients", &form(&[("name", "CAFE zoe"), ("contact", "Zoë")])).await;
    assert_eq!(reply.status, StatusCode::CONFLICT);
    let link = format!("href=\"/clients/{first}\"");
    assert_has(
        &reply,
        &[
            "A client with this name exists",
            &link,
            "archived",
            "Create anyway",
            "value=\"Zoë\"",
            "data-unsaved",
        ],
    );
    assert!(!reply.body.contains("button-primary"), "a second client is not what the page suggests");
    assert_eq!(json(&mut firm.ann, "/clients").await["total"], 0, "nothing was created");

    let other_name = form(&[("name", "Café Zoë"), ("create_anyway", "CAFE zoe")]);
    assert_eq!(firm.ann.post("/clients", &other_name).await.status, StatusCode::CONFLICT, "not confirmed");
    let confirmed = form(&[("name", "CAFE zoe"), ("create_anyway", "CAFE zoe")]);
    assert_eq!(firm.ann.post("/clients", &confirmed).await.status, StatusCode::SEE_OTHER);
    assert_eq!(json(&mut firm.ann, "/clients").await["total"], 1);
}

#[tokio::test]
async fn warning_names_no_client_that_the_person_may_not_read() {
    let mut firm = Firm::open().await;
    let bens = new_client(&mut firm.ben, "Ostrander Freight").await;
    let anns = new_client(&mut firm.ann, "Ostrander Freight").await;
    let reply = firm.ruth.post("/clients", &form(&[("name", "Ostrander Freight")])).await;
    assert_eq!(reply.status, StatusCode::CONFLICT);
    let links = [bens, anns].map(|client| format!("href=\"/clients/{client}\""));
    assert_has(&reply, &[&links[0], &links[1]]);
}

#[tokio::test]
async fn new_client_comes_first_in_the_list() {
    let mut firm = Firm::open().await;
    let older = new_client(&mut firm.ann, "Older").await;
    new_entry(&mut firm.ann, older, "meeting_note", "Call", "They called.").await;
    firm.portal.pass(Duration::from_secs(60));
    let new = new_client(&mut firm.ann, "New").await;
    let first = async |firm: &mut Firm| json(&mut firm.ann, "/clients").await["clients"][0]["id"].clone();
    assert_eq!(first(&mut firm).await, new);
    assert_has(&firm.ann.get("/clients").await, &["Added <time"]);
    firm.portal.pass(Duration::from_secs(60));
    let entry = new_entry(&mut firm.ann, older, "meeting_note", "Call", "They called again.").await;
    assert_eq!(first(&mut firm).await, older, "the newest entry first");
    firm.ann.post(&format!("/clients/{older}/entries/{entry}/archive"), "").await;
    assert_eq!(first(&mut firm).await, new, "an archived entry does not count");
}

#[tokio::test]
async fn future_dates_and_text_as_telephone_are_rejected_with_the_fix() {
    let mut firm = Firm::open().await;
    let fields = [("name", "Calder"), ("telephone", "call me maybe"), ("since", "2099-01-01")];
    let reply = firm.ann.post("/clients", &form(&fields)).await;
    assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_has(&reply, &["id=\"telephone-error\"", "+1 617 555 0142", "id=\"since-error\"", "in the future"]);
    let client = new_client(&mut firm.ann, "Calder").await;
    let fields = [("kind", "meeting_note"), ("title", "Call"), ("text", "Soon."), ("at", "2099-01-01T09:00")];
    let reply = firm.ann.post(&format!("/clients/{client}/entries"), &form(&fields)).await;
    assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_has(&reply, &["id=\"at-error\"", "more than a year ahead"]);
}
