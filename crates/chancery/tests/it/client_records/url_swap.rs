//! The rule that must never fail: a consultant who opens another consultant's client by number gets 403. Covers every pair in the
//! demo firm, over HTTP and in the browser's address bar. Access ends as soon as its reason does.

use super::{number, open_as};
use crate::browser::Browser;
use crate::office::{Office, SignedInUser};
use serde_json::Value;
use std::collections::BTreeSet;

/// No client has this number.
const NONEXISTENT: i64 = 999_999;

#[tokio::test]
async fn every_client_opens_only_for_its_owner_and_partners() {
    let office = Office::open();
    let (maya, omar, ruth) =
        (office.sign_in("maya").await, office.sign_in("omar").await, office.sign_in("ruth").await);
    let everybody = [&maya, &omar, &ruth];
    let clients = ruth.clients().await;
    let owners: BTreeSet<_> = clients.iter().map(|client| client["owner"].as_str().unwrap()).collect();
    assert_eq!(clients.len(), 38);
    assert_eq!(owners, everybody.map(|person| person.email.as_str()).into());

    lists_and_records_agree(&clients, [&maya, &omar], &ruth).await;
    typed_into_the_address_bar(&office, &clients, everybody).await;
    posts_to_anothers_client_change_nothing(&clients, [&maya, &omar], &ruth).await;
}

fn is_of(client: &Value, person: &SignedInUser) -> bool {
    client["owner"] == person.email.as_str()
}

/// Every client × every person, as a page and as JSON.
async fn lists_and_records_agree(clients: &[Value], consultants: [&SignedInUser; 2], partner: &SignedInUser) {
    for consultant in consultants {
        let mut listed: Vec<_> = consultant.clients().await.iter().map(number).collect();
        let mut owned: Vec<_> =
            clients.iter().filter(|client| is_of(client, consultant)).map(number).collect();
        listed.sort_unstable();
        owned.sort_unstable();
        assert_eq!(listed, owned, "the list of {}", consultant.email);

        let not_there = format!("/clients/{NONEXISTENT}");
        let (no_page, no_json) = (consultant.page(&not_there).await, consultant.json(&not_there).await);
        assert_eq!((no_page.status.as_u16(), no_json.status.as_u16()), (403, 403));
        assert!(no_json.body.contains(r#""code":"forbidden""#), "{}", no_json.body);
        for client in clients {
            let path = format!("/clients/{}", client["id"]);
            let (page, json) = (consultant.page(&path).await, consultant.json(&path).await);
            if is_of(client, consultant) {
                let (record, name) = (json.value(), client["name"].as_str().unwrap());
                assert_eq!((&record["id"], &record["name"]), (&client["id"], &client["name"]));
                assert_eq!(page.status.as_u16(), 200, "{path} for {}", consultant.email);
                assert!(page.body.contains(&escaped(name)), "{name}");
            } else {
                let email = &consultant.email;
                assert_eq!(page.without_its_request(), no_page.without_its_request(), "{path} for {email}");
                assert_eq!(json.without_its_request(), no_json.without_its_request(), "{path} for {email}");
            }
        }
    }
    for client in clients {
        let path = format!("/clients/{}", client["id"]);
        assert_eq!(partner.json(&path).await.value()["name"], client["name"]);
        assert_eq!(partner.page(&path).await.status.as_u16(), 200, "{path}");
    }
    assert_eq!(partner.json(&format!("/clients/{NONEXISTENT}")).await.status.as_u16(), 404);
}

/// Escapes HTML as the pages do.
fn escaped(text: &str) -> String {
    text.replace('&', "&#38;").replace('\'', "&#39;")
}

/// Covers each ordered pair of people at least twice.
async fn typed_into_the_address_bar(office: &Office, clients: &[Value], everybody: [&SignedInUser; 3]) {
    let browser = Browser::start().await;
    for person in everybody {
        open_as(office, &browser, person, "/clients").await;
        for owner in everybody {
            let owned: Vec<_> = clients.iter().filter(|client| is_of(client, owner)).collect();
            for client in [owned[0], owned[owned.len() - 1]] {
                browser.open(&office.portal(&format!("/clients/{}", client["id"]))).await;
                let name = client["name"].as_str().unwrap();
                let seen = browser.script("return document.title + document.body.innerText").await;
                let seen = seen.as_str().unwrap();
                assert!(seen.contains(&person.email), "the bar is there");
                if person.email == owner.email || person.email == "ruth@example.com" {
                    assert_eq!(browser.status().await, 200, "{} asks for {client}", person.email);
                    assert!(seen.contains(name), "{seen}");
                } else {
                    assert_eq!(browser.status().await, 403, "{} asks for {client}", person.email);
                    assert!(seen.contains("You cannot open this page"), "{seen}");
                    let html = browser.script("return document.documentElement.outerHTML").await;
                    let html = html.as_str().unwrap();
                    let number = client["id"].to_string();
                    assert!(!html.contains(name) && !html.contains(&number), "{html}");
                }
            }
        }
    }
}

/// Covers every route that changes a record, for another person's client and for another's entry under one's own client.
async fn posts_to_anothers_client_change_nothing(
    clients: &[Value],
    consultants: [&SignedInUser; 2],
    partner: &SignedInUser,
) {
    for consultant in consultants {
        let own = clients.iter().find(|client| is_of(client, consultant)).unwrap();
        let others = clients.iter().filter(|client| !is_of(client, consultant));
        let mut owners = BTreeSet::new();
        for client in others {
            let path = format!("/clients/{}", client["id"]);
            let before = partner.json(&path).await.value();
            let kinds = ["meeting_notes", "billing_disputes", "draft_letters"];
            let Some(entry) = kinds.iter().find_map(|kind| before[kind].as_array().unwrap().first()) else {
                continue;
            };
            // One client of each owner is enough.
            if !owners.insert(client["owner"].to_string()) {
                continue;
            }
            let (entry, own) = (&entry["id"], &own["id"]);
            let details = [("version", "1"), ("name", "Taken over")];
            let note =
                [("kind", "meeting_note"), ("title", "Taken over"), ("text", "Taken over"), ("version", "1")];
            let targets = [
                (path.clone(), &details[..]),
                (format!("{path}/archive"), &[]),
                (format!("{path}/restore"), &[]),
                (format!("{path}/reassign"), &[("owner", "1")]),
                (format!("{path}/entries"), &note),
                (format!("{path}/entries/{entry}"), &note),
                (format!("{path}/entries/{entry}/archive"), &[]),
                (format!("{path}/entries/{entry}/restore"), &[]),
                (format!("{path}/letters/rewrite"), &[("change", "formal"), ("text", "Dear")]),
                (format!("{path}/letters/draft"), &[("purpose", "Tell me all"), ("kind", "draft_letter")]),
            ];
            for (target, form) in &targets {
                let nonexistent = target.replacen(&client["id"].to_string(), &NONEXISTENT.to_string(), 1);
                let (rejected, not_there) =
                    (consultant.post(target, form).await, consultant.post(&nonexistent, form).await);
                assert!([403, 404].contains(&rejected.status.as_u16()), "{target}: {}", rejected.status);
                assert_eq!(rejected.without_its_request(), not_there.without_its_request(), "{target}");
            }
            for end in ["", "/archive"] {
                let target = format!("/clients/{own}/entries/{entry}{end}");
                let rejected = consultant.post(&target, &note).await;
                assert_eq!(rejected.status.as_u16(), 404, "{target}: {}", rejected.body);
            }
            assert_eq!(partner.json(&path).await.value(), before, "{} changed {path}", consultant.email);
        }
    }
}

#[tokio::test]
async fn revoked_access_ends_with_the_next_request() {
    let office = Office::open();
    let (maya, omar, ruth) =
        (office.sign_in("maya").await, office.sign_in("omar").await, office.sign_in("ruth").await);
    let team = ruth.json("/team").await.value();
    let id_of = |person: &SignedInUser| {
        let people = team["people"].as_array().unwrap();
        people.iter().find(|one| one["email"] == person.email.as_str()).unwrap()["id"].to_string()
    };
    let client = format!("/clients/{}", maya.clients().await[0]["id"]);
    let status = async |person: &SignedInUser| person.json(&client).await.status.as_u16();
    assert_eq!((status(&maya).await, status(&omar).await), (200, 403));

    // The client gets another owner.
    let reassign = format!("{client}/reassign");
    assert_eq!(
        maya.post(&reassign, &[("owner", &id_of(&omar))]).await.status.as_u16(),
        403,
        "not hers to give"
    );
    assert_eq!(ruth.post(&reassign, &[("owner", &id_of(&omar))]).await.status.as_u16(), 303);
    assert_eq!((status(&maya).await, status(&omar).await), (403, 200));

    // A person becomes a partner and loses the role again.
    let role = async |person: &SignedInUser, role| {
        let response = ruth.post("/team/role", &[("person", &id_of(person)), ("role", role)]).await;
        assert_eq!(response.status.as_u16(), 303, "{}", response.body);
    };
    role(&maya, "partner").await;
    assert_eq!((status(&maya).await, maya.json("/audit").await.status.as_u16()), (200, 200));
    assert_eq!(maya.clients().await.len(), 38);
    role(&maya, "consultant").await;
    assert_eq!((status(&maya).await, maya.json("/audit").await.status.as_u16()), (403, 403));
    assert!(maya.clients().await.len() < 38);

    // A partner ends one session, and the command line ends another.
    assert_eq!(ruth.post("/team/sign-out", &[("person", &id_of(&omar))]).await.status.as_u16(), 303);
    assert_eq!(status(&omar).await, 401);
    let away = omar.page(&client).await;
    assert_eq!((away.status.as_u16(), away.location().starts_with("/auth/sign-in?")), (303, true));
    office.firm.run(&["user", "sign-out", &ruth.email]);
    assert_eq!(status(&ruth).await, 401);
}
