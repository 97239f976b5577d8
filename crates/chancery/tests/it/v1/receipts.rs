//! `GET /v1/receipts/{request_id}`, the `receipt` field of replies, and `chancery receipt verify`.

use crate::event_stream::EventStream;
use crate::server::{Firm, Reply, Server, eventually, request};
use serde_json::{Value, json};
use std::time::Duration;

async fn receipt(server: &Server, key: &str, id: &str) -> Reply {
    server.get(&format!("/v1/receipts/{id}"), key).await
}

fn with_receipt(mut body: Value) -> Value {
    body["receipt"] = json!(true);
    body
}

/// Stops the server, which signs a checkpoint, and starts it again.
fn restarted(firm: &Firm, mut server: Server) -> Server {
    server.end();
    firm.start()
}

#[tokio::test]
async fn receipt_proves_a_bill_offline_after_the_next_checkpoint() {
    let firm = Firm::new();
    let key = firm.account_with_key("Hale & Ward");
    let other = firm.account_with_key("Calder & Sons");
    let server = firm.start();
    // The first run is over, so that the next checkpoint of the ledger is the one at shutdown.
    eventually("the audit log has a checkpoint", Duration::from_secs(30), async || {
        std::fs::read_dir(firm.data().join("checkpoints")).unwrap().next().is_some()
    })
    .await;
    let reply = server.generate(&key, &with_receipt(request("", "Say hello.", 2))).await;
    let id = reply.body["id"].as_str().unwrap().to_owned();
    let pending = &reply.body["receipt"];
    assert_eq!(pending["url"], format!("/v1/receipts/{id}"));
    assert_eq!(pending["row"]["output_tokens"], reply.body["usage"]["output_tokens"]);
    let early = receipt(&server, &key, &id).await;
    assert_eq!((early.status, early.code()), (404, "not_yet_logged"));
    assert_eq!(early.header("retry-after"), "60");

    let server = restarted(&firm, server);
    let found = receipt(&server, &key, &id).await;
    assert_eq!(found.status, 200, "{}", found.body);
    assert_eq!(found.body["row"], pending["row"], "the row is the one that the reply showed");
    assert_eq!((&found.body["leaf_index"], &found.body["tree_size"]), (&json!(0), &json!(1)));
    for (key, id) in [(&other, id.as_str()), (&key, "req_none"), (&key, "%00"), (&key, "a%20b")] {
        let missing = receipt(&server, key, id).await;
        assert_eq!((missing.status, missing.code()), (404, "not_found"), "{id}");
    }

    let verify = |receipt: &Value| {
        let file = firm.folder.path().join("receipt.json");
        std::fs::write(&file, receipt.to_string()).unwrap();
        firm.output(&["receipt", "verify", "receipt.json", "--checkpoint", "data/checkpoints"])
    };
    let output = verify(&found.body);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains(&format!("OK: {id} is row 0 of the 1 rows in the checkpoint")), "{text}");
    assert!(text.contains("2 output tokens, cost 0.0000011"), "{text}");
    for (field, expected) in [
        ("/row/output_tokens", "the row is not in the checkpoint"),
        (
            "/tree_size",
            "`tree_size` is not that of its checkpoint: 7 rows, and the checkpoint is signed for 1",
        ),
    ] {
        let mut forged = found.body.clone();
        *forged.pointer_mut(field).unwrap() = json!(7);
        let output = verify(&forged);
        assert_eq!(output.status.code(), Some(1));
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(expected), "{error}");
    }
}

#[tokio::test]
async fn receipt_is_in_replies_and_last_events_only_on_request() {
    let firm = Firm::new();
    let key = firm.account_with_key("Hale & Ward");
    let server = firm.start();
    let body = request("", "Say hello.", 2);
    assert!(server.generate(&key, &body).await.body.get("receipt").is_none());
    for (body, has_receipt) in [(body.clone(), false), (with_receipt(body), true)] {
        let events = EventStream::open(&server, &key, &body).await.rest().await;
        let last = &events.last().unwrap().data["response"];
        assert_eq!(last.get("receipt").is_some(), has_receipt, "{last}");
        if has_receipt {
            assert_eq!(last["receipt"]["row"]["request_id"], last["id"]);
        }
    }
}
