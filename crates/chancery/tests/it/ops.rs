//! The operations listener.

use crate::server::{Firm, client, eventually, request};
use std::net::TcpStream;
use std::time::Duration;

#[tokio::test]
async fn ops_listener_reports_liveness_readiness_and_metrics() {
    let firm = Firm::new();
    let key = firm.account_with_key("Hale & Ward");
    let server = firm.start();
    let status = async |path: &str| {
        client().get(format!("{}{path}", server.ops)).send().await.unwrap().status().as_u16()
    };
    assert_eq!(status("/livez").await, 200);
    assert_eq!(status("/readyz").await, 200);
    server.generate(&key, &request("", "Say hello.", 2)).await;
    assert_eq!(server.metric("chancery_output_tokens_total").await, 2);
    assert_eq!(server.metric("chancery_input_tokens_total").await, 3);
    assert_eq!(server.metric("chancery_ledger_rows_total").await, 1);
    assert_eq!(server.metric("chancery_ledger_batch_seconds_count").await, 1);
    assert_eq!(server.metric("chancery_unrecorded_requests").await, 0);
    assert_eq!(server.get("/metrics", &key).await.status, 404, "metrics are not on the API's listener");
}

#[tokio::test]
async fn ops_listener_responds_when_api_connections_are_exhausted() {
    let firm = Firm::new();
    let server = firm.start_limited("ulimit -n 400");
    let connections: Vec<_> =
        (0..150).filter_map(|_| TcpStream::connect(server.api_address()).ok()).collect();
    let alive =
        client().get(format!("{}/livez", server.ops)).timeout(Duration::from_secs(5)).send().await.unwrap();
    assert_eq!(alive.status().as_u16(), 200);
    drop(connections);
    eventually("callers get through again", Duration::from_secs(5), async || {
        server.get("/v1/models", "nobody").await.status == 401
    })
    .await;
}

#[tokio::test]
async fn unread_log_pipe_blocks_no_reply() {
    let firm = Firm::new();
    let key = firm.account_with_key("Hale & Ward");
    let mut server = firm.start();
    server.stop_reading_the_log();
    for _ in 0..3 {
        assert_eq!(server.generate(&key, &request("", "Say hello.", 2)).await.status, 200);
    }
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.wait(), Some(0));
}
