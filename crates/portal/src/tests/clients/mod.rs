//! Client records, as seen by browsers and programs.

mod access;
mod changes;
mod conflicts;
mod creation;
mod disputes;
mod forms;
mod html_escaping;
mod list;
mod record;
mod scripts;
mod search;
mod undo;
mod unsaved;
mod versions;

use super::TestPortal;
use super::browser::{Browser, Reply};
use super::firm::sign_in;
use axum::http::StatusCode;
use serde_json::Value;

/// Two consultants and a partner, each with their own browser.
struct Firm {
    portal: TestPortal,
    ann: Browser,
    ben: Browser,
    ruth: Browser,
}

impl Firm {
    async fn open() -> Self {
        let portal = TestPortal::open().await;
        let ann = sign_in(&portal, "ann").await;
        let ben = sign_in(&portal, "ben").await;
        let ruth = sign_in(&portal, "ruth").await;
        Self { portal, ann, ben, ruth }
    }

    async fn number_of(&self, email: &str) -> i64 {
        let people = self.portal.portal.store.people.list_people().await.unwrap();
        people.iter().find(|person| person.email.as_str() == email).unwrap().id.0
    }
}

fn form(fields: &[(&str, &str)]) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish()
}

/// Creates a client and returns its number.
async fn new_client(browser: &mut Browser, name: &str) -> i64 {
    let reply = browser.post("/clients", &form(&[("name", name)])).await;
    assert_eq!(reply.status, StatusCode::SEE_OTHER, "{}", reply.body);
    let rest = reply.location().strip_prefix("/clients/").unwrap();
    rest.split('?').next().unwrap().parse().unwrap()
}

/// Creates an entry and returns its number.
async fn new_entry(browser: &mut Browser, client: i64, kind: &str, title: &str, text: &str) -> i64 {
    let fields = form(&[("kind", kind), ("title", title), ("text", text), ("is_open", "1")]);
    let reply = browser.post(&format!("/clients/{client}/entries"), &fields).await;
    assert_eq!(reply.status, StatusCode::SEE_OTHER, "{}", reply.body);
    reply.location().rsplit("#entry-").next().unwrap().parse().unwrap()
}

async fn json(browser: &mut Browser, path: &str) -> Value {
    let reply = get_json(browser, path).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    serde_json::from_str(&reply.body).unwrap()
}

async fn get_json(browser: &mut Browser, path: &str) -> Reply {
    let accept = std::mem::replace(&mut browser.accept, "application/json");
    let reply = browser.get(path).await;
    browser.accept = accept;
    reply
}

fn assert_has(reply: &Reply, parts: &[&str]) {
    for part in parts {
        assert!(reply.body.contains(part), "no {part:?} in {}", reply.body);
    }
}
