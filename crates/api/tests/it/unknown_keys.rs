//! Guesses at keys.

use crate::test_server::TestServer;
use chancery_domain::{ApiKey, OsRandomness};
use chancery_engine::ScriptedEngine;
use chancery_metering::limits::{FAILED_KEY_BURST, FAILED_KEY_INTERVAL};
use reqwest::header::HeaderMap;
use serde_json::Value;
use std::sync::Arc;

/// Status, headers and body of the reply, without what differs in every reply.
async fn reply_to(server: &TestServer, client: &reqwest::Client, key: &ApiKey) -> (u16, HeaderMap, Value) {
    let request = client.get(format!("{}/v1/models", server.url)).bearer_auth(key.reveal());
    let reply = request.send().await.unwrap();
    let (status, mut headers) = (reply.status().as_u16(), reply.headers().clone());
    headers.remove("date");
    headers.remove("x-request-id");
    let mut body: Value = reply.json().await.unwrap();
    body["error"]["request_id"].take();
    (status, headers, body)
}

#[tokio::test]
async fn throttled_peer_gets_the_same_401_and_its_known_key_still_works() {
    let server = TestServer::start(Arc::new(ScriptedEngine::new(100, |_, _| {}))).await;
    let client = server.client();
    let guess = async || reply_to(&server, &client, &ApiKey::generate(&OsRandomness)).await;
    assert_eq!(server.get("/v1/models").send().await.unwrap().status(), 200);
    let looked_up = guess().await;
    assert_eq!(looked_up.0, 401);
    let mut unseen = None;
    for _ in 0..20 {
        // Far more than are looked up in the time that they take.
        for _ in 0..FAILED_KEY_BURST {
            assert_eq!(guess().await, looked_up);
        }
        let key = ApiKey::generate(&OsRandomness);
        server.store_key(&key).await;
        let reply = reply_to(&server, &client, &key).await;
        if reply.0 == 401 {
            unseen = Some((key, reply));
            break;
        }
    }
    let (key, reply) = unseen.expect("a lookup was rejected unseen");
    assert_eq!(reply, looked_up);
    assert_eq!(server.get("/v1/models").send().await.unwrap().status(), 200);
    tokio::time::sleep(2 * FAILED_KEY_INTERVAL).await;
    assert_eq!(reply_to(&server, &client, &key).await.0, 402, "the key exists, and has no account");
}
