//! `/clients/export.jsonl` and `/clients/export.csv`: exactly the clients that a person may export.

use super::firm::{Firm, in_short, manage};
use super::routes::JSON;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::http::StatusCode;
use chancery_domain::{Action, ClientId, Decision, PersonId, RequestId, Role, Session, SessionId};
use chancery_policy::{ClientResource, ReadClient, ReassignClient};
use chancery_store::{ClientOwner, EntryQuery};
use serde_json::Value;

fn names(lines: &str) -> Vec<String> {
    let name = |line: &str| serde_json::from_str::<Value>(line).unwrap()["name"].as_str().unwrap().to_owned();
    lines.lines().map(name).collect()
}

async fn signed_in(portal: &Portal, id: PersonId) -> SignedIn {
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
        authenticated_at: now,
        confirmed_at: now,
        sid: None,
    };
    let request_id = RequestId::new(now, portal.randomness.as_ref());
    let token = chancery_domain::SecretToken::generate(portal.randomness.as_ref()).hash();
    SignedIn::new(chancery_store::SignedIn { session, person }, request_id, token)
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
    firm.client(firm.ben.id, "Mill;=HYPERLINK(A1)").await;
    let of_ben = firm.ben.browser.get("/clients/export.csv").await.body;
    assert_eq!(of_ben.matches(",Mill;'=HYPERLINK(A1),").count(), 3, "{of_ben}");
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
        let signed_in = signed_in(portal, id).await;
        let mut reader = portal.open_records(&signed_in, page.clone()).await.unwrap();
        let parts = portal.next_export_page(&signed_in, &mut reader).await.unwrap().unwrap();
        assert_eq!(portal.next_export_page(&signed_in, &mut reader).await.unwrap(), None);
        parts.into_iter().map(|part| part.client.id).collect::<Vec<_>>()
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

#[tokio::test]
async fn download_goes_on_only_for_the_session_and_role_it_was_decided_for() {
    let firm = Firm::open().await;
    let portal = &firm.portal.portal;
    let token = chancery_domain::SecretToken::parse(&firm.ben.browser.cookies["session"]).unwrap().hash();
    let request_id = RequestId::new(portal.clock.now(), portal.randomness.as_ref());
    let found =
        portal.store.sessions.active_session(token, "", portal.settings.session_times, portal.clock.now());
    let signed_in = SignedIn::new(found.await.unwrap().unwrap(), request_id, token);
    let signed_in = signed_in.refresh(portal).await.unwrap();
    portal.store.people.set_role(manage(portal), firm.ben.id, Role::Partner).await.unwrap();
    assert!(signed_in.refresh(portal).await.is_err());
}

#[tokio::test]
async fn role_change_after_the_decision_shows_no_record() {
    let firm = Firm::open().await;
    let client = firm.client(firm.ann.id, "Ann's").await.client;
    let (portal, rob) = (&firm.portal.portal, firm.rob.id);
    let signed_in = signed_in(portal, rob).await;
    let read = portal.with_client_permit::<ReadClient, _, _>(&signed_in, client, |permit| async move {
        portal.store.people.set_role(manage(portal), rob, Role::Consultant).await.unwrap();
        portal.store.clients.read_client(permit, &EntryQuery::default()).await
    });
    let error = read.await.unwrap_err();
    assert_eq!((error.status, error.code), (StatusCode::CONFLICT, "access_changed"));
}

/// 40 notes of 80 KB, so several pages.
const LONG: usize = 40;

#[tokio::test]
async fn long_record_is_sent_whole_as_json_and_export() {
    let mut firm = Firm::open().await;
    let client = firm.long_client(firm.ann.id, "Long", LONG).await;
    let short = firm.client(firm.ann.id, "Short").await.client;
    let titles = |entries: &Value| -> Vec<String> {
        let entries = entries.as_array().unwrap().iter();
        entries.map(|entry| entry["title"].as_str().unwrap().to_owned()).collect()
    };
    let mut notes: Vec<String> = (0..LONG).map(|number| format!("Note {number}")).collect();
    let lines = firm.ann.browser.get("/clients/export.jsonl").await.body;
    assert_eq!(names(&lines), ["Long", "Short"]);
    let exported: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!(titles(&exported["entries"]), [vec!["A letter".to_owned()], notes.clone()].concat());
    let csv = firm.ann.browser.get("/clients/export.csv").await.body;
    assert_eq!(csv.lines().count(), 1 + LONG + 1 + 3, "a header, and a row for each entry");

    firm.ann.browser.accept = "application/json";
    let reply = firm.ann.browser.get(&format!("/clients/{client}")).await;
    assert_eq!(reply.status, StatusCode::OK);
    assert_eq!(reply.headers["content-type"], JSON);
    let record: Value = serde_json::from_str(&reply.body).unwrap();
    notes.reverse();
    assert_eq!(titles(&record["meeting_notes"]), notes, "newest first");
    assert_eq!(titles(&record["draft_letters"]), ["A letter"]);
    assert_eq!((&record["billing_disputes"], &record["id"]), (&serde_json::json!([]), &client.0.into()));
    assert_eq!((&record["name"], &record["owner"]), (&"Long".into(), &"ann@company.com".into()));
    let fields: Vec<&str> = record.as_object().unwrap().keys().map(String::as_str).collect();
    let short = firm.ann.browser.get(&format!("/clients/{short}")).await;
    let short: Value = serde_json::from_str(&short.body).unwrap();
    assert_eq!(fields, short.as_object().unwrap().keys().collect::<Vec<_>>());
}

#[tokio::test]
async fn client_reassigned_during_download_is_aborted_or_left_out() {
    let firm = Firm::open().await;
    let (long, next) = (
        firm.long_client(firm.ann.id, "Long", LONG).await,
        firm.long_client(firm.ann.id, "Next", LONG).await,
    );
    let portal = &firm.portal.portal;
    let page: Vec<_> = [long, next].map(|client| ClientOwner { client, owner: firm.ann.id }).into();
    let (ann, ruth) = (signed_in(portal, firm.ann.id).await, signed_in(portal, firm.ruth.id).await);
    let mut anns = portal.open_records(&ann, page.clone()).await.unwrap();
    let mut unread = portal.open_records(&ann, page.clone()).await.unwrap();
    let mut ruths = portal.open_records(&ruth, page).await.unwrap();
    for (who, reader) in [(&ann, &mut anns), (&ruth, &mut ruths)] {
        let parts = portal.next_export_page(who, reader).await.unwrap().unwrap();
        assert!(parts.len() == 1 && !parts[0].is_last);
    }
    for client in [long, next] {
        let resource = ClientResource { id: client, owner: Some(firm.ann.id) };
        let permit = portal.permit::<ReassignClient>(&ruth, resource).await.unwrap();
        portal.store.clients.reassign_client(permit, firm.ben.id, None).await.unwrap();
    }
    let aborted = portal.next_export_page(&ann, &mut anns).await.unwrap_err();
    assert_eq!(aborted.status, StatusCode::FORBIDDEN, "a part of it was sent");
    assert_eq!(portal.next_export_page(&ann, &mut unread).await.unwrap(), None, "neither is hers");
    let mut entries = 0;
    while let Some(parts) = portal.next_export_page(&ruth, &mut ruths).await.unwrap() {
        entries += parts.iter().map(|part| part.entries.len()).sum::<usize>();
        assert!(parts.iter().all(|part| part.client.owner.id == firm.ben.id));
    }
    assert!(entries > LONG + 1, "the rest of one, and all of the other: {entries}");
}
