//! Who may view and change what.

use super::{Firm, assert_has, form, get_json, json, new_client, new_entry};
use crate::tests::browser::Reply;
use crate::tests::firm::manage;
use axum::http::{HeaderMap, StatusCode};
use chancery_domain::PersonId;

/// Everything by which two replies can be compared, except the request id.
fn comparable(reply: &Reply) -> (StatusCode, HeaderMap, &str) {
    let mut headers = reply.headers.clone();
    assert!(headers.remove("x-request-id").is_some());
    (reply.status, headers, &reply.body)
}

#[tokio::test]
async fn session_does_not_open_another_consultants_record() {
    let mut firm = Firm::open().await;
    let anns = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let bens = new_client(&mut firm.ben, "Ostrander Freight").await;
    assert_eq!(firm.ann.get(&format!("/clients/{anns}")).await.status, StatusCode::OK);
    assert_eq!(firm.ben.get(&format!("/clients/{bens}")).await.status, StatusCode::OK);
    for (browser, swapped) in [(&mut firm.ann, bens), (&mut firm.ben, anns)] {
        let reply = browser.get(&format!("/clients/{swapped}")).await;
        assert_eq!(reply.status, StatusCode::FORBIDDEN);
        let reply = get_json(browser, &format!("/clients/{swapped}")).await;
        assert_eq!(reply.status, StatusCode::FORBIDDEN);
        let body: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
        assert_eq!(body["error"]["code"], "forbidden");
    }
    for number in [anns, bens] {
        assert_eq!(firm.ruth.get(&format!("/clients/{number}")).await.status, StatusCode::OK);
    }
}

#[tokio::test]
async fn url_swap_returns_403_without_leaking_existence() {
    let mut firm = Firm::open().await;
    let bens = new_client(&mut firm.ben, "Ostrander Freight").await;
    let entry = new_entry(&mut firm.ben, bens, "meeting_note", "Call", "They called.").await;
    let others =
        ["0", "-1", "424242", "9223372036854775807", "9223372036854775808", "99999999999999999999999999"];
    for tail in ["", "?tab=letters", "?open=facts", "/versions", &format!("/entries/{entry}/versions")] {
        for accept in ["text/html", "application/json"] {
            firm.ann.accept = accept;
            let foreign = firm.ann.get(&format!("/clients/{bens}{tail}")).await;
            assert_eq!(foreign.status, StatusCode::FORBIDDEN, "{tail}");
            assert!(!foreign.body.contains(&bens.to_string()) && !foreign.body.contains("Ostrander"));
            for other in others {
                let missing = firm.ann.get(&format!("/clients/{other}{tail}")).await;
                assert_eq!(comparable(&missing), comparable(&foreign), "{other}{tail}");
            }
        }
    }
}

#[tokio::test]
async fn partners_get_404_for_a_missing_client() {
    let mut firm = Firm::open().await;
    for path in ["/clients/424242", "/clients/424242/versions", "/clients/424242/entries/1/versions"] {
        let reply = firm.ruth.get(path).await;
        assert_eq!(reply.status, StatusCode::NOT_FOUND, "{path}");
        let reply = get_json(&mut firm.ruth, path).await;
        assert_eq!(reply.status, StatusCode::NOT_FOUND);
        assert!(reply.body.contains("\"not_found\""));
    }
    let entry =
        form(&[("kind", "meeting_note"), ("title", "Call"), ("text", "They called."), ("version", "1")]);
    let details = form(&[("name", "Nobody"), ("version", "1")]);
    let owner = form(&[("owner", &firm.number_of("ann@company.com").await.to_string())]);
    for (path, fields) in [
        ("/clients/424242", &details),
        ("/clients/424242/archive", &String::new()),
        ("/clients/424242/restore", &String::new()),
        ("/clients/424242/reassign", &owner),
        ("/clients/424242/entries", &entry),
        ("/clients/424242/entries/1", &entry),
        ("/clients/424242/entries/1/archive", &String::new()),
    ] {
        assert_eq!(firm.ruth.post(path, fields).await.status, StatusCode::NOT_FOUND, "{path}");
    }
}

#[tokio::test]
async fn non_integer_client_id_is_404() {
    let mut firm = Firm::open().await;
    for number in ["abc", "1e3", "1042.0", "%31x", "0x10", "+5", "1042%20"] {
        for browser in [&mut firm.ann, &mut firm.ruth] {
            let reply = browser.get(&format!("/clients/{number}")).await;
            assert_eq!(reply.status, StatusCode::NOT_FOUND, "{number}");
        }
    }
}

#[tokio::test]
async fn editing_anothers_client_is_the_same_403_as_reading() {
    let mut firm = Firm::open().await;
    let bens = new_client(&mut firm.ben, "Ostrander Freight").await;
    let entry = new_entry(&mut firm.ben, bens, "billing_dispute", "Invoice 7", "Too much.").await;
    let before = json(&mut firm.ben, &format!("/clients/{bens}")).await;

    let details = form(&[("name", "Taken"), ("version", "1")]);
    let bad_details = form(&[("name", ""), ("version", "1")]);
    let note = form(&[("kind", "billing_dispute"), ("title", "Hm"), ("text", "Hm."), ("version", "1")]);
    let bad_note = form(&[("kind", "billing_dispute"), ("title", ""), ("text", ""), ("version", "1")]);
    let owner = form(&[("owner", &firm.number_of("ann@company.com").await.to_string())]);
    for (tail, fields) in [
        (String::new(), &details),
        (String::new(), &bad_details),
        ("/entries".to_owned(), &note),
        ("/entries".to_owned(), &bad_note),
        (format!("/entries/{entry}"), &note),
        (format!("/entries/{entry}"), &bad_note),
        (format!("/entries/{entry}/archive"), &String::new()),
        (format!("/entries/{entry}/restore"), &String::new()),
        ("/archive".to_owned(), &String::new()),
        ("/restore".to_owned(), &String::new()),
        ("/reassign".to_owned(), &owner),
    ] {
        let foreign = firm.ann.post(&format!("/clients/{bens}{tail}"), fields).await;
        assert_eq!(foreign.status, StatusCode::FORBIDDEN, "{tail} {fields}");
        let missing = firm.ann.post(&format!("/clients/424242{tail}"), fields).await;
        assert_eq!(comparable(&missing), comparable(&foreign), "{tail} {fields}");
    }
    assert_eq!(json(&mut firm.ben, &format!("/clients/{bens}")).await, before, "nothing was changed");
    assert_eq!(
        firm.ben.post(&format!("/clients/{bens}/reassign"), &owner).await.status,
        StatusCode::FORBIDDEN,
        "not even their owner gives them away"
    );
    let for_ben =
        form(&[("name", "Planted"), ("owner", &firm.number_of("ben@company.com").await.to_string())]);
    assert_eq!(firm.ann.post("/clients", &for_ben).await.status, StatusCode::FORBIDDEN);
    assert_eq!(json(&mut firm.ben, "/clients").await["total"], 1);
}

#[tokio::test]
async fn entry_of_another_client_is_404() {
    let mut firm = Firm::open().await;
    let [mine, other] = [new_client(&mut firm.ann, "Mine").await, new_client(&mut firm.ann, "Other").await];
    let bens = new_client(&mut firm.ben, "Bens").await;
    let others = new_entry(&mut firm.ann, other, "meeting_note", "Secret call", "Words.").await;
    let bens = new_entry(&mut firm.ben, bens, "meeting_note", "Secret call", "Words.").await;
    let change = form(&[("kind", "meeting_note"), ("title", "Moved"), ("text", "x"), ("version", "1")]);
    for entry in [others, bens, 424_242] {
        for path in [format!("/entries/{entry}/versions"), format!("?open=entry-{entry}")] {
            let reply = firm.ann.get(&format!("/clients/{mine}{path}")).await;
            assert_eq!(reply.status, StatusCode::NOT_FOUND, "{path}");
            assert!(!reply.body.contains("Secret"));
        }
        for (tail, fields) in [("", change.as_str()), ("/archive", ""), ("/restore", "")] {
            let reply = firm.ann.post(&format!("/clients/{mine}/entries/{entry}{tail}"), fields).await;
            assert_eq!(reply.status, StatusCode::NOT_FOUND, "{entry}{tail}");
        }
    }
    let record = json(&mut firm.ann, &format!("/clients/{other}")).await;
    assert_eq!(record["meeting_notes"][0]["title"], "Secret call");
}

#[tokio::test]
async fn reassignment_changes_access_on_the_next_request() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let path = format!("/clients/{client}");
    assert!(!firm.ann.get(&path).await.body.contains("Reassign"), "no button that would be refused");
    assert!(firm.ruth.get(&path).await.body.contains(&format!("action=\"{path}/reassign\"")));
    let owner = form(&[("owner", &firm.number_of("ben@company.com").await.to_string())]);
    let reply = firm.ruth.post(&format!("{path}/reassign"), &owner).await;
    let ann = firm.number_of("ann@company.com").await;
    assert_eq!(reply.location(), format!("{path}?done=reassigned&undo=2_{ann}"));
    assert_eq!(firm.ann.get(&path).await.status, StatusCode::FORBIDDEN);
    assert_eq!(firm.ben.get(&path).await.status, StatusCode::OK);
    let gone = firm.ruth.post(&format!("{path}/reassign"), &form(&[("owner", "424242")])).await;
    assert_eq!(gone.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(gone.body.contains("The new owner is not on the team."));
    assert_eq!(firm.ben.get(&path).await.status, StatusCode::OK);
}

#[tokio::test]
async fn record_shows_who_viewed_it() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    let path = format!("/clients/{client}");
    assert_eq!(firm.ben.get(&path).await.status, StatusCode::FORBIDDEN);
    firm.ruth.get(&path).await;
    let seen = firm.ann.get(&path).await.body;
    let seen = seen.split("Viewed by").nth(1).unwrap().split("</ul>").next().unwrap();
    assert!(seen.contains("ruth@<wbr>company.com") && seen.contains("ann@<wbr>company.com"), "{seen}");
    assert!(!seen.contains("ben@"), "who was refused has not opened it: {seen}");
}

#[tokio::test]
async fn removed_owner_is_still_shown_as_owner() {
    let mut firm = Firm::open().await;
    let client = new_client(&mut firm.ann, "Harbour Lane Bakery").await;
    new_client(&mut firm.ben, "Other Mill").await;
    let (ann, ben) = (firm.number_of("ann@company.com").await, firm.number_of("ben@company.com").await);
    let path = format!("/clients/{client}");
    let removed = firm
        .portal
        .portal
        .store
        .people
        .remove_person(manage(&firm.portal.portal), PersonId(ann), Box::new(|_| true))
        .await;
    removed.unwrap();

    let page = firm.ruth.get(&path).await;
    let former = format!("<option value=\"{ann}\" selected>ann@company.com (removed)</option>");
    assert_has(&page, &["<option value=\"\">Choose a person</option>", &former]);
    assert_eq!(page.body.matches(" selected>").count(), 1);

    let no_owner = firm.ruth.post(&format!("{path}/reassign"), &form(&[("owner", "")])).await;
    assert_eq!(no_owner.status, StatusCode::BAD_REQUEST);
    assert_has(&no_owner, &["`owner` is missing. Choose the new owner."]);
    for (person, is_said) in [(ann, false), (ben, true), (ben, false)] {
        let owner = form(&[("owner", &person.to_string())]);
        let reply = firm.ruth.post(&format!("{path}/reassign"), &owner).await;
        assert_eq!(reply.status, StatusCode::SEE_OTHER);
        assert_eq!(reply.location().contains("done=reassigned"), is_said, "{person}");
    }
    assert_eq!(firm.ben.get(&path).await.status, StatusCode::OK);

    let list = firm.ruth.get(&format!("/clients?owner={ann}")).await;
    assert_has(&list, &[&former]);
}
