//! What a key may do, and how quickly changes take effect.

use crate::server::{Firm, Server, client, eventually, request};
use std::io::{BufRead, BufReader, Write};
use std::time::Duration;

/// The guarantee. The tests request the list of models, which costs next to nothing.
const WITHIN: Duration = Duration::from_secs(1);

async fn status(server: &Server, key: &str) -> u16 {
    server.get("/v1/models", key).await.status
}

#[tokio::test]
async fn revoked_key_is_rejected_within_one_second() {
    let firm = Firm::new();
    let key = firm.account_with_key("Hale & Ward");
    let server = firm.start();
    let body = request("", "Say hello.", 1);
    assert_eq!(server.generate(&key, &body).await.status, 200);
    firm.run(&["key", "revoke", &key[..11]]);
    eventually("the key is refused", WITHIN, async || status(&server, &key).await == 401).await;
    assert_eq!(server.generate(&key, &body).await.status, 401);
}

#[tokio::test]
async fn key_is_rejected_without_an_account_or_with_a_closed_one() {
    let firm = Firm::new();
    let key = firm.run(&["key", "create"]).trim().to_owned();
    let server = firm.start();
    let body = request("", "Say hello.", 1);
    let rejected = server.generate(&key, &body).await;
    assert_eq!((rejected.status, rejected.code()), (402, "no_billing_account"));

    firm.run(&["account", "create", "Hale & Ward"]);
    firm.run(&["key", "attach", &key[..11], "--account", "Hale & Ward"]);
    eventually("the key works", WITHIN, async || status(&server, &key).await == 200).await;
    assert_eq!(server.generate(&key, &body).await.status, 200);

    firm.run(&["account", "close", "Hale & Ward"]);
    eventually("the key is refused", WITHIN, async || status(&server, &key).await == 402).await;
    assert_eq!(server.generate(&key, &body).await.code(), "no_billing_account");
}

#[tokio::test]
async fn every_invalid_key_gets_the_same_error() {
    let firm = Firm::new();
    let good = firm.account_with_key("Hale & Ward");
    let revoked = firm.run(&["key", "create", "--account", "Hale & Ward"]).trim().to_owned();
    firm.run(&["key", "revoke", &revoked]);
    let server = firm.start();
    let mut changed = good.clone();
    changed.replace_range(53..54, if &good[53..54] == "A" { "B" } else { "A" });
    let unknown = "ck_aaaaaaaa_".to_owned() + &"A".repeat(43);
    let headers: Vec<Vec<String>> = vec![
        vec![],
        vec!["".to_owned()],
        vec!["Bearer".to_owned()],
        vec!["Bearer ".to_owned()],
        vec![format!("Basic {good}")],
        vec![format!("Bearer {good}x")],
        vec![format!("Bearer {changed}")],
        vec![format!("Bearer {unknown}")],
        vec![format!("Bearer {revoked}")],
        vec![format!("Bearer {good}"), format!("Bearer {good}")],
    ];
    let mut reasons = Vec::new();
    for values in headers {
        let mut call = client().post(format!("{}/v1/generate", server.api)).json(&request("", "x", 1));
        for value in &values {
            call = call.header("authorization", value);
        }
        let reply = crate::server::Reply::read(call.send().await.unwrap()).await;
        assert_eq!((reply.status, reply.code()), (401, "invalid_api_key"), "{values:?}");
        assert_eq!(reply.header("www-authenticate"), "Bearer");
        reasons.push(reply.body["error"]["reason"].clone());
    }
    assert!(reasons.iter().all(|reason| *reason == reasons[0]), "{reasons:?}");
}

#[tokio::test]
async fn requests_without_a_valid_key_write_nothing_to_the_database() {
    let firm = Firm::new();
    firm.account_with_key("Hale & Ward");
    let server = firm.start();
    // There is no write-ahead log before the first write.
    let contents = || {
        ["chancery.db", "chancery.db-wal"]
            .map(|name| std::fs::read(firm.data().join(name)).unwrap_or_default())
    };
    // The server itself writes every few seconds, so that a run of requests may fall together with one of its writes.
    let mut is_unchanged = false;
    for run in 0..5 {
        let before = contents();
        for attempt in 0..50 {
            let key = format!("ck_{run}{attempt:07}_{}", "A".repeat(43));
            assert_eq!(server.generate(&key, &request("", "x", 1)).await.status, 401);
        }
        is_unchanged = contents() == before;
        if is_unchanged {
            break;
        }
    }
    assert!(is_unchanged, "the database's files changed");
}

/// Sends all but the last byte of a request, makes a change, sends the rest, and returns the reply's status line.
fn changed_while_the_body_comes(server: &Server, key: &str, change: impl FnOnce()) -> String {
    let body = request("", "Say hello.", 2).to_string();
    let (head, last) = body.split_at(body.len() - 1);
    let mut stream = std::net::TcpStream::connect(server.api_address()).unwrap();
    write!(
        stream,
        "POST /v1/generate HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{head}",
        body.len()
    )
    .unwrap();
    change();
    // Changes take effect within one second.
    std::thread::sleep(Duration::from_secs(1));
    stream.write_all(last.as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line
}

#[tokio::test]
async fn changes_during_the_body_upload_apply_to_the_request() {
    let firm = Firm::new();
    let (revoked, capped) = (firm.account_with_key("Revoked"), firm.account_with_key("Capped"));
    let server = firm.start();
    let line = changed_while_the_body_comes(&server, &revoked, || {
        firm.run(&["key", "revoke", &revoked[..11]]);
    });
    assert!(line.starts_with("HTTP/1.1 401"), "{line}");
    let line = changed_while_the_body_comes(&server, &capped, || {
        firm.run(&["account", "limits", "Capped", "--spend-per-month", "0"]);
    });
    assert!(line.starts_with("HTTP/1.1 402"), "{line}");
    assert_eq!(firm.json(&["usage", "--json"])["total"]["requests"], 0);
}
