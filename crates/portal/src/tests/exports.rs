//! `/clients/export.jsonl` and `/clients/export.csv`: exactly the clients that a person may export.

use super::firm::{Firm, in_short};
use crate::sign_in::session::SignedIn;
use axum::http::StatusCode;
use chancery_domain::{Action, ClientId, Decision, PersonId, RequestId, Session, SessionId};
use chancery_store::ClientOwner;
use serde_json::Value;

fn names(lines: &str) -> Vec<String> {
    let name = |line: &str| serde_json::from_str::<Value>(line).unwrap()["name"].as_str().unwrap().to_owned();
    lines.lines().map(name).collect()
}

#[tokio::test]
async fn export_has_every_readable_client_each_audited() {
    let mut firm = Firm::open().await;
    let mut anns = Vec::new();
    // More than one batch.
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
        rows.iter().filter(|row| row.access_request.action == Action::ExportClient).map(in_short).collect();
    let expected: Vec<_> = anns
        .iter()
        .map(|client| (Action::ExportClient, Decision::Allowed, Some(*client), Some(firm.ann.id)))
        .collect();
    assert_eq!(exported, expected);
    assert_eq!(names(&firm.ruth.browser.get("/clients/export.jsonl").await.body).len(), 50, "partners: all");
}

#[tokio::test]
async fn csv_export_has_one_row_per_entry_and_no_formulas() {
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
async fn export_without_clients_is_empty() {
    let mut firm = Firm::open().await;
    assert_eq!(firm.ben.browser.get("/clients/export.jsonl").await.body, "");
    let csv = firm.ben.browser.get("/clients/export.csv").await;
    assert_eq!(csv.body.lines().count(), 1, "{}", csv.body);
}

#[tokio::test]
async fn export_rechecks_clients_reassigned_meanwhile() {
    let firm = Firm::open().await;
    let (own, moved) = (
        firm.client(firm.ann.id, "Ann's").await.client,
        firm.client(firm.ben.id, "Moved to Ben").await.client,
    );
    let portal = &firm.portal.portal;
    // Outdated ownership: all of them were Ann's a moment ago, and one no longer exists.
    let page: Vec<_> =
        [own, moved, ClientId(7777)].map(|client| ClientOwner { client, owner: firm.ann.id }).into();
    let taken = async |id: PersonId| {
        let people = portal.store.people.list_people().await.unwrap();
        let person = people.into_iter().find(|person| person.id == id).unwrap();
        let now = portal.clock.now();
        let (ip_address, user_agent) = (String::new(), String::new());
        let session = Session {
            id: SessionId(1),
            person: id,
            started_at: now,
            last_used_at: now,
            ip_address,
            user_agent,
        };
        let request_id = RequestId::new(now, portal.randomness.as_ref());
        let token = chancery_domain::SecretToken::generate(portal.randomness.as_ref()).hash();
        let signed_in = SignedIn::new(chancery_store::SignedIn { session, person }, request_id, token);
        let records = portal.records(&signed_in, page.clone()).await.unwrap();
        records.into_iter().map(|record| record.client.id).collect::<Vec<_>>()
    };
    assert_eq!(taken(firm.ruth.id).await, [own, moved], "a partner reads both");
    assert_eq!(taken(firm.ann.id).await, [own]);
    let last = firm.decisions().await;
    let rejected: Vec<_> =
        last.iter().filter(|row| row.decision != Decision::Allowed).map(in_short).collect();
    assert_eq!(rejected.len(), 1, "{rejected:?}");
    assert_eq!(
        (rejected[0].0, rejected[0].2, rejected[0].3),
        (Action::ExportClient, Some(moved), Some(firm.ann.id))
    );
}
