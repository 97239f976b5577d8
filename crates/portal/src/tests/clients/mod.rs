//! Client records as browsers and programs meet them.

mod access;
mod conflicts;
mod deeds;
mod forms;
mod hostile_texts;
mod list;
mod record;
mod scripts;
mod versions;

use super::Desk;
use super::browser::{Browser, Reply};
use super::firm::sign_in;
use axum::http::StatusCode;
use openidconnect::url::form_urlencoded;
use serde_json::Value;

/// Two consultants and a partner, each in a browser of their own.
struct Firm {
    desk: Desk,
    ann: Browser,
    ben: Browser,
    ruth: Browser,
}

impl Firm {
    async fn open() -> Self {
        let desk = Desk::open().await;
        let ann = sign_in(&desk, "ann").await;
        let ben = sign_in(&desk, "ben").await;
        let ruth = sign_in(&desk, "ruth").await;
        Self { desk, ann, ben, ruth }
    }

    async fn number_of(&self, email: &str) -> i64 {
        let people = self.desk.portal.store.people.list_people().await.unwrap();
        people.iter().find(|person| person.email.as_str() == email).unwrap().id.0
    }
}

fn form(fields: &[(&str, &str)]) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish()
}

/// The number that a new client got.
async fn new_client(browser: &mut Browser, name: &str) -> i64 {
    let reply = browser.post("/clients", &form(&[("name", name)])).await;
    assert_eq!(reply.status, StatusCode::SEE_OTHER, "{}", reply.body);
    let rest = reply.location().strip_prefix("/clients/").unwrap();
    rest.split('?').next().unwrap().parse().unwrap()
}

/// The number that a new entry got.
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
