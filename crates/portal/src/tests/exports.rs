//! `/clients/export.jsonl` and `/clients/export.csv`: what somebody may read, and nothing else, as a file.

use super::firm::{Firm, in_short};
use crate::sign_in::session::SignedIn;
use axum::http::StatusCode;
use chancery_domain::{Action, ClientId, Decision, PersonId, RequestId, Session, SessionId};
use chancery_store::Ownership;
use serde_json::Value;

fn names(lines: &str) -> Vec<String> {
    let name = |line: &str| serde_json::from_str::<Value>(line).unwrap()["name"].as_str().unwrap().to_owned();
    lines.lines().map(name).collect()
}

#[tokio::test]
async fn a_file_has_every_client_that_a_person_may_read_and_each_is_decided_and_on_record() {
    let mut firm = Firm::open().await;
    let mut anns = Vec::new();
    // More than are read at once.
    for number in 0..45 {
        anns.push(firm.client(firm.ann.id, &format!("Ann's {number}")).await.client);
        if number % 9 == 0 {
            firm.client(firm.ben.id, &format!("Ben's {number}")).await;
        }
    }
    let decided = firm.decisions().await.len();
    let reply = firm.ann.browser.get("/clients/export.jsonl").await;
    assert_eq!(reply.status, StatusCode::OK);
    assert_eq!(reply.headers["content-type"], "application/x-ndjson");
    assert_eq!(reply.headers["content-disposition"], "attachment; filename=\"clients-2026-11-13.jsonl\"");
    assert_eq!(reply.headers["cache-control"], "no-store");
    let expected: Vec<_> = (0..45).map(|number| format!("Ann's {number}")).collect();
    assert_eq!(names(&reply.body), expected, "all of hers by number, and nobody else's");
    let first: Value = serde_json::from_str(reply.body.lines().next().unwrap()).unwrap();
    assert_eq!((&first["id"], &first["owner"]), (&anns[0].0.into(), &"ann@company.com".into()));
    assert_eq!(first["entries"].as_array().unwrap().len(), 3);
    let rows = firm.decisions().await.split_off(decided);
    let exported: Vec<_> =
        rows.iter().filter(|row| row.asked.action == Action::ExportClient).map(in_short).collect();
    let expected: Vec<_> = anns
        .iter()
        .map(|client| (Action::ExportClient, Decision::Allowed, Some(*client), Some(firm.ann.id)))
        .collect();
    assert_eq!(exported, expected);
    assert_eq!(names(&firm.ruth.browser.get("/clients/export.jsonl").await.body).len(), 50, "partners: all");
}

#[tokio::test]
async fn a_file_for_spreadsheets_has_one_line_for_each_entry_and_no_formula() {
    let mut firm = Firm::open().await;
    firm.client(firm.ann.id, "=HYPERLINK(\"http://evil.example\")").await;
    let reply = firm.ann.browser.get("/clients/export.csv").await;
    assert_eq!(reply.headers["content-type"], "text/csv; charset=utf-8; header=present");
    assert_eq!(reply.headers["content-disposition"], "attachment; filename=\"clients-2026-11-13.csv\"");
    assert!(reply.body.starts_with("id,name,owner,"), "{}", reply.body);
    assert_eq!(reply.body.matches("\"'=HYPERLINK(").count(), 3, "{}", reply.body);
    assert!(!reply.body.contains(",=") && !reply.body.contains(",\"="), "{}", reply.body);
}

#[tokio::test]
async fn somebody_without_clients_gets_an_empty_file() {
    let mut firm = Firm::open().await;
    assert_eq!(firm.ben.browser.get("/clients/export.jsonl").await.body, "");
    let csv = firm.ben.browser.get("/clients/export.csv").await;
    assert_eq!(csv.body.lines().count(), 1, "{}", csv.body);
}

#[tokio::test]
async fn a_client_that_changes_hands_while_a_file_is_made_is_in_it_if_it_may_be_read_and_not_if_not() {
    let firm = Firm::open().await;
    let (hers, moved) = (
        firm.client(firm.ann.id, "Ann's").await.client,
        firm.client(firm.ben.id, "Moved to Ben").await.client,
    );
    let portal = &firm.desk.portal;
    // As they were a moment ago, when all of them were Ann's; there was one more, which nobody has any more.
    let page: Vec<_> =
        [hers, moved, ClientId(7777)].map(|client| Ownership { client, owner: firm.ann.id }).into();
    let taken = async |id: PersonId| {
        let people = portal.store.people.list_people().await.unwrap();
        let person = people.into_iter().find(|person| person.id == id).unwrap();
        let now = portal.clock.now();
        let (place, browser) = (String::new(), String::new());
        let session =
            Session { id: SessionId(1), person: id, started_at: now, last_used_at: now, place, browser };
        let request_id = RequestId::new(now, portal.randomness.as_ref());
        let token = chancery_domain::SecretToken::generate(portal.randomness.as_ref()).hash();
        let who = SignedIn::new(chancery_store::SignedIn { session, person }, request_id, token);
        let records = portal.records(&who, page.clone()).await.unwrap();
        records.into_iter().map(|record| record.client.id).collect::<Vec<_>>()
    };
    assert_eq!(taken(firm.ruth.id).await, [hers, moved], "a partner reads both");
    assert_eq!(taken(firm.ann.id).await, [hers]);
    let last = firm.decisions().await;
    let refused: Vec<_> = last.iter().filter(|row| row.decision != Decision::Allowed).map(in_short).collect();
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert_eq!(
        (refused[0].0, refused[0].2, refused[0].3),
        (Action::ExportClient, Some(moved), Some(firm.ann.id))
    );
}
