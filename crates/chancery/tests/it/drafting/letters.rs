//! Drafts by the real model from the demo firm's records, over the portal's own HTTP.

use crate::event_stream::EventStream;
use crate::server::{Firm, Server, client, eventually};
use chancery_domain::{Clock, EventOrigin, OsRandomness, SecretToken, StopReason, SystemClock, UsageRow};
use chancery_store::{NewSession, SessionAuthentication, Store};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// Maya is signed in and has a client with notes.
struct Scene {
    firm: Firm,
    server: Server,
    cookie: String,
    client: i64,
    notes: Vec<i64>,
}

impl Scene {
    async fn open() -> Self {
        let firm = Firm::new();
        let server = firm.start_with(&["--demo", "--minimal"]);
        Self::of(firm, server).await
    }

    async fn of(firm: Firm, server: Server) -> Self {
        let cookie = sign_in(&firm, "maya@example.com").await;
        let list = get_json(&server, &cookie, "/clients").await;
        let client = list["clients"][0]["id"].as_i64().unwrap();
        let record = get_json(&server, &cookie, &format!("/clients/{client}")).await;
        let notes = record["meeting_notes"].as_array().unwrap();
        let notes = notes.iter().map(|note| note["id"].as_i64().unwrap()).collect();
        Self { firm, server, cookie, client, notes }
    }

    fn request(&self, max_output_tokens: u32) -> reqwest::RequestBuilder {
        let note = self.notes.first().map_or_else(String::new, |note| format!("&entries={note}"));
        let body = format!(
            "purpose=Thank+them+for+their+time.&max_output_tokens={max_output_tokens}&text=My+own+words.{note}"
        );
        client()
            .post(format!("{}/clients/{}/letters/draft", self.server.portal, self.client))
            .header("cookie", &self.cookie)
            .header("content-type", "application/x-www-form-urlencoded")
            .body(body)
    }

    async fn events(&self, max_output_tokens: u32) -> EventStream {
        let request = self.request(max_output_tokens).header("accept", "text/event-stream, application/json");
        EventStream::send(request).await
    }

    /// Returns the message of a failed draft; empty if it succeeded.
    async fn failure(&self) -> String {
        let events = self.events(16).await.rest().await;
        let end = events.last().unwrap();
        let message = if end.name == "failed" { end.data["words"].as_str() } else { None };
        message.unwrap_or_default().to_owned()
    }

    async fn billed(&self) -> Vec<UsageRow> {
        let store = Arc::new(Store::open(&self.firm.database_url().parse().unwrap()).await.unwrap());
        let rows = store.ledger_chains.ledger_rows(None, 1_000).await.unwrap();
        store.close().await;
        rows
    }

    fn own_key(&self) -> String {
        let keys = self.firm.json(&["key", "list", "--json"]);
        let own = |key: &&Value| key["account"] == "portal-drafting";
        keys.as_array().unwrap().iter().find(own).unwrap()["prefix"].as_str().unwrap().to_owned()
    }
}

async fn sign_in(firm: &Firm, email: &str) -> String {
    let store = Arc::new(Store::open(&firm.database_url().parse().unwrap()).await.unwrap());
    let people = store.people.people_by_email(&email.parse().unwrap()).await.unwrap();
    let token = SecretToken::generate(&OsRandomness);
    let new = NewSession {
        token: token.hash(),
        binding: None,
        person: people[0].id,
        authentication: SessionAuthentication::at(SystemClock.now()),
        origin: EventOrigin::local(SystemClock.now(), &OsRandomness),
        ip_address: "127.0.0.1".to_owned(),
        user_agent: "Firefox".to_owned(),
        replaces: None,
    };
    store.sessions.start_session(new).await.unwrap();
    store.close().await;
    format!("session={}", token.reveal())
}

async fn get_json(server: &Server, cookie: &str, path: &str) -> Value {
    let request = client().get(format!("{}{path}", server.portal)).header("cookie", cookie);
    request.header("accept", "application/json").send().await.unwrap().json().await.unwrap()
}

#[tokio::test]
async fn real_model_drafts_a_letter_and_the_receipt_matches_the_ledger() {
    let scene = Scene::open().await;
    let events = scene.events(64).await.rest().await;
    let (last, texts) = events.split_last().unwrap();
    assert_eq!(last.name, "finished", "{events:?}");
    assert!(!texts.is_empty() && texts.iter().all(|event| event.name == "delta"), "{events:?}");
    let letter = last.data["text"].as_str().unwrap();
    assert!(letter.starts_with("Dear "), "{letter}");
    for part in ["=====", "\nNotes:", "\nPurpose:", "Lindqvist", "What the letter is for", "[Your Name]"] {
        assert!(!letter.contains(part), "{part}: {letter}");
    }
    let is_cut = !["complete", "stop_sequence"].contains(&last.data["stop_reason"].as_str().unwrap());
    assert!(last.data["is_unfinished"] == true || !is_cut || letter.contains("Kind regards,"), "{events:?}");
    let key = scene.own_key();
    let rows = scene.billed().await;
    let [row] = rows.as_slice() else { panic!("{rows:?}") };
    assert_eq!(last.data["input_tokens"], row.input_tokens);
    assert_eq!(last.data["output_tokens"], row.output_tokens);
    assert_eq!(last.data["cost"], row.cost.to_string());
    let usage = scene.firm.json(&["usage", "--account", "portal-drafting", "--json"]);
    assert!(usage.to_string().contains(&row.cost.to_string()), "{usage}");

    // Without scripts: the same text in a page's editor, beside the user's own text.
    let page = scene.request(64).header("accept", "text/html").send().await.unwrap();
    assert_eq!(page.status(), 200);
    let page = page.text().await.unwrap();
    assert!(page.contains("Restore this text") && page.contains("My own words."), "{page}");
    for secret in [key.as_str(), scene.server.api_address()] {
        assert!(!page.contains(secret) && !format!("{events:?}").contains(secret), "{secret} is in a reply");
    }
    assert!(!scene.server.log().contains("My own words."));
}

#[tokio::test]
async fn demo_without_network_drafts_with_its_small_model_and_says_so() {
    let firm = Firm::new();
    let (programs, cache) = (firm.folder.path().join("programs"), firm.folder.path().join("cache"));
    std::fs::create_dir(&programs).unwrap();
    // pip reaches no registry, and nothing listens on the discard port.
    std::os::unix::fs::symlink("/bin/false", programs.join("python3")).unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let firm = firm.with("PATH", &path).with("HF_ENDPOINT", "http://127.0.0.1:9");
    let firm = firm.with("XDG_CACHE_HOME", cache.to_str().unwrap());
    let server = firm.start_demo_that_fetches();
    let scene = Scene::of(firm, server).await;
    eventually("the failure is logged", Duration::from_secs(30), async || {
        scene.server.log().contains("no better model for letters")
    })
    .await;
    let page = scene.request(16).header("accept", "text/html").send().await.unwrap();
    assert_eq!(page.status(), 200);
    let page = page.text().await.unwrap();
    assert!(page.contains("A better model is not available: qwen2.5-coder-0.5b"), "{page}");
    assert!(page.contains("Model: smollm2-135m"), "{page}");
}

#[tokio::test]
async fn browser_hang_up_stops_the_model() {
    let scene = Scene::open().await;
    let mut events = scene.events(2_000).await;
    // The salutation comes from the record, and what the model wrote after it.
    for _ in 0..2 {
        let event = events.next().await.unwrap();
        assert_eq!(event.name, "delta", "{event:?}");
    }
    drop(events);
    eventually("what was written until then is billed as cancelled", Duration::from_secs(30), async || {
        let rows = scene.billed().await;
        rows.iter().any(|row| row.stop_reason == StopReason::Cancelled && row.output_tokens < 1_000)
    })
    .await;
    // Also a request for a page.
    let request = scene.request(2_000).header("accept", "text/html");
    let waiting = tokio::spawn(async move { request.send().await });
    scene.server.generating().await;
    scene.server.generating().await;
    waiting.abort();
    eventually("the other is too", Duration::from_secs(30), async || {
        let rows = scene.billed().await;
        rows.iter().filter(|row| row.stop_reason == StopReason::Cancelled).count() == 2
    })
    .await;
}

#[tokio::test]
async fn rate_limit_revoked_key_and_closed_account_have_clear_errors() {
    let scene = Scene::open().await;
    scene.firm.run(&["account", "limits", "portal-drafting", "--rpm", "1"]);
    scene.events(16).await.rest().await;
    eventually("the rate limit is reported", Duration::from_secs(5), async || {
        let message = scene.failure().await;
        message.starts_with("The model is busy. Your text is untouched and nothing was billed; try again in ")
    })
    .await;
    scene.firm.run(&["account", "limits", "portal-drafting", "--rpm", "1000"]);
    scene.firm.run(&["account", "limits", "portal-drafting", "--spend-per-month", "0.000000001"]);
    // Running servers cache account details for a moment.
    eventually("the spending cap is reported", Duration::from_secs(5), async || {
        scene.failure().await.starts_with("This month’s spending cap for drafts is reached.")
    })
    .await;
    scene.firm.run(&["account", "close", "portal-drafting"]);
    eventually("the closed account is reported", Duration::from_secs(5), async || {
        scene.failure().await.starts_with("No open account pays for drafts.")
    })
    .await;
    scene.firm.run(&["key", "revoke", &scene.own_key()]);
    eventually("the revoked key is reported", Duration::from_secs(5), async || {
        scene.failure().await.starts_with("The portal’s API key was rejected.")
    })
    .await;
    scene.server.wait_for_log("draft rejected by the generation api");
}
