//! The operations listener.

use crate::server::{Firm, client, request};

#[tokio::test]
async fn the_operations_listener_tells_alive_ready_and_counts() {
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
    assert_eq!(server.get("/metrics", &key).await.status, 404, "metrics are not on the API's listener");
}
