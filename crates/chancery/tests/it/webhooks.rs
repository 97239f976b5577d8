//! `chancery webhook`. `faults::outbox` sends alerts, over kills of the server.

use crate::server::Firm;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use serde_json::Value;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// An alert takes a flush of the counts and a check; a claim of a killed server ends after a minute.
pub const ALERT_TIMEOUT: Duration = Duration::from_secs(120);

/// Records the events that it receives, and replies with a status of choice.
#[derive(Clone)]
pub struct Receiver {
    pub url: String,
    status: Arc<AtomicU16>,
    received: Arc<Mutex<Vec<Event>>>,
}

#[derive(Clone, Debug)]
pub struct Event {
    pub id: String,
    signature: String,
    timestamp: i64,
    pub body: Value,
}

impl Receiver {
    pub async fn start(status: u16) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let receiver = Self {
            url: format!("http://{}/hooks", listener.local_addr().unwrap()),
            status: Arc::new(AtomicU16::new(status)),
            received: Arc::default(),
        };
        let router = Router::new().route("/hooks", post(receive)).with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        receiver
    }

    pub fn events(&self) -> Vec<Event> {
        self.received.lock().unwrap().clone()
    }

    pub fn reply_with(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }
}

async fn receive(State(receiver): State<Receiver>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let header = |name: &str| headers[name].to_str().unwrap().to_owned();
    receiver.received.lock().unwrap().push(Event {
        id: header("webhook-id"),
        signature: header("webhook-signature"),
        timestamp: header("webhook-timestamp").parse().unwrap(),
        body: serde_json::from_slice(&body).unwrap(),
    });
    StatusCode::from_u16(receiver.status.load(Ordering::SeqCst)).unwrap()
}

/// Returns the id.
pub fn add_webhook(firm: &Firm, url: &str) -> String {
    let printed = firm.run(&["webhook", "add", url]);
    let mut lines = printed.lines();
    let (id, secret) = (lines.next().unwrap(), lines.next().unwrap());
    assert!(id.starts_with("wh_") && secret.starts_with("whsec_"), "{printed}");
    assert_eq!(lines.next(), None);
    id.to_owned()
}

// The command blocks this thread while the receiver replies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_are_added_tested_listed_and_removed() {
    let firm = Firm::new().with("CHANCERY_WEBHOOKS__ALLOW_PRIVATE", "127.0.0.1");
    let receiver = Receiver::start(204).await;
    let id = add_webhook(&firm, &receiver.url);
    let listed = firm.json(&["webhook", "list", "--json"]);
    assert_eq!((&listed[0]["id"], &listed[0]["state"]), (&Value::from(id.as_str()), &Value::from("active")));
    assert!(!listed.to_string().contains("whsec_"), "{listed}");
    assert!(firm.run(&["webhook", "test", &id]).contains("delivered: HTTP 204"));
    let event = receiver.events().remove(0);
    assert_eq!(event.body["type"], "webhook.test");
    assert!(event.id.starts_with("evt_") && event.signature.starts_with("v1,"), "{event:?}");
    assert!(event.timestamp > 1_700_000_000, "{event:?}");
    assert_eq!(listed[0]["last_error"], Value::Null);
    let added = firm.json(&["webhook", "add", "https://localhost/hooks", "--json"]);
    assert!(added["secret"].as_str().unwrap().starts_with("whsec_"), "{added}");
    firm.run(&["webhook", "remove", added["id"].as_str().unwrap()]);
    receiver.reply_with(500);
    assert!(firm.fail(&["webhook", "test", &id]).contains("not delivered: HTTP 500"));
    firm.run(&["webhook", "remove", &id]);
    assert!(firm.fail(&["webhook", "test", &id]).contains("no webhook wh_"));
    assert!(firm.fail(&["webhook", "remove", &id]).contains("chancery webhook list"));
    assert!(firm.run(&["verify"]).contains(": OK"), "each change is in the audit log");
}

#[test]
fn webhook_list_masks_the_query_of_urls() {
    let firm = Firm::new();
    add_webhook(&firm, "https://receiver.example/hooks?token=hunter2&b=hunter2");
    for options in [&[][..], &["--json"]] {
        let listed = firm.run(&[&["webhook", "list"], options].concat());
        assert!(listed.contains("https://receiver.example/hooks?token=***&b=***"), "{listed}");
        assert!(!listed.contains("hunter2"), "{listed}");
    }
    let error = firm.fail(&["webhook", "add", "http://receiver.example/?token=hunter2"]);
    assert!(error.contains("cannot add http://receiver.example/?token=***"), "{error}");
}

#[test]
fn webhook_to_a_private_address_is_rejected() {
    let firm = Firm::new();
    for url in ["http://127.0.0.1:9000/", "https://127.0.0.1/", "https://169.254.169.254/", "https://[::1]/"]
    {
        let error = firm.fail(&["webhook", "add", url]);
        assert!(error.contains("webhooks.allow_private"), "{error}");
    }
    assert!(firm.fail(&["webhook", "add", "http://example.com/"]).contains("use https://"));
    assert!(firm.fail(&["webhook", "add", "example.com"]).contains("invalid URL"));
}
