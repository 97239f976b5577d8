//! `kill -9`: every reply that a client received is in the ledger, once, and the ledger is sound.

use crate::postgres::PostgresDatabase;
use crate::server::{Firm, client, eventually, request};
use chancery_domain::{Randomness, SeededRandomness};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const KILLS: u64 = 4;
const CLIENTS: usize = 6;
/// Decides when each kill comes. To try other moments, change it.
const SEED: u64 = 20_261_115;

#[tokio::test]
async fn a_killed_server_has_billed_every_delivered_reply_once() {
    on_database(Firm::new()).await;
}

#[tokio::test]
async fn a_killed_server_has_billed_every_delivered_reply_once_on_postgresql() {
    let database = PostgresDatabase::create("crash");
    on_database(Firm::new().with("CHANCERY_DATABASE__URL", &database.url())).await;
}

async fn on_database(firm: Firm) {
    let key = firm.account_with_key("Hale & Ward");
    let randomness = SeededRandomness::new(SEED);
    println!("seed {SEED}");
    let mut delivered: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let mut undelivered = 0;
    for kill in 1..=KILLS {
        let mut server = firm.start();
        let arrived = Arc::new(AtomicUsize::new(0));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| tokio::spawn(load(server.api.clone(), key.clone(), number, Arc::clone(&arrived))))
            .collect();
        let enough = 3 + (randomness.next_u64() % 30) as usize;
        eventually("replies arrive", Duration::from_secs(60), async || {
            arrived.load(Ordering::SeqCst) >= enough
        })
        .await;
        tokio::time::sleep(Duration::from_micros(randomness.next_u64() % 20_000)).await;
        server.signal(rustix::process::Signal::KILL);
        server.wait();
        for client in clients {
            for (id, tokens) in client.await.unwrap() {
                assert_eq!(delivered.insert(id, tokens), None, "two replies with one id");
            }
        }
        assert!(firm.run(&["verify"]).contains("all agree"), "after kill {kill}");
        let billed = ledger(&firm).await;
        for (id, tokens) in &delivered {
            assert_eq!(billed.get(id), Some(tokens), "{id} was delivered before kill {kill}");
        }
        // A reply may be on its way at the moment of a kill: billed, and not arrived. That is one per client at most.
        let now_undelivered = billed.len() - delivered.len();
        assert!(
            now_undelivered - undelivered <= CLIENTS,
            "{now_undelivered} rows without a reply after kill {kill}"
        );
        undelivered = now_undelivered;
    }
}

/// Every row, by request.
async fn ledger(firm: &Firm) -> BTreeMap<String, (u64, u64)> {
    let store = chancery_store::open(&firm.database_url().parse().unwrap()).await.unwrap();
    let rows = store.ledger_rows(None, 100_000).await.unwrap();
    store.close().await;
    let count = rows.len();
    let by_request: BTreeMap<_, _> = rows
        .into_iter()
        .map(|row| (row.request_id.to_string(), (u64::from(row.input_tokens), u64::from(row.output_tokens))))
        .collect();
    assert_eq!(by_request.len(), count, "a request is billed twice");
    by_request
}

/// Sends requests one after another until the server is gone; gives what arrived whole.
async fn load(
    api: String,
    key: String,
    number: usize,
    arrived: Arc<AtomicUsize>,
) -> Vec<(String, (u64, u64))> {
    let mut replies = Vec::new();
    let client = client();
    for turn in 0..1_000 {
        let body = request("", &format!("Say hello to client {number}."), 1 + turn % 5);
        let call = client.post(format!("{api}/v1/generate")).bearer_auth(&key).json(&body);
        let Ok(response) = call.send().await else { break };
        let Ok(text) = response.text().await else { break };
        let body: Value = serde_json::from_str(&text).unwrap();
        let tokens = |name: &str| body["usage"][name].as_u64().unwrap_or_else(|| panic!("{body}"));
        replies.push((
            body["id"].as_str().unwrap().to_owned(),
            (tokens("input_tokens"), tokens("output_tokens")),
        ));
        arrived.fetch_add(1, Ordering::SeqCst);
    }
    replies
}
