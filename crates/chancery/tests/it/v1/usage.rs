//! `GET /v1/usage`.

use crate::server::{Firm, request};

#[tokio::test]
async fn usage_is_scoped_to_the_account_and_matches_the_command() {
    let firm = Firm::new();
    let (one, two) = (firm.account_with_key("One"), firm.account_with_key("Two"));
    let server = firm.start();
    server.generate(&one, &request("", "Say hello.", 2)).await;
    server.generate(&one, &request("", "Say hello.", 3)).await;
    server.generate(&two, &request("", "Say hello.", 1)).await;

    for by in ["day", "model", "key"] {
        let reply = server.get(&format!("/v1/usage?by={by}"), &one).await;
        assert_eq!(reply.body["total"]["requests"], 2, "{}", reply.body);
        assert_eq!(reply.body["total"]["output_tokens"], 5);
        assert_eq!(reply.body["total"]["cost_nanos"], 6 * 100 + 5 * 400);
        assert_eq!(reply.body["data"].as_array().unwrap().len(), 1);
        let command = firm.json(&["usage", "--account", "One", "--by", by, "--json"]);
        assert_eq!(command["total"]["cost_nanos"], reply.body["total"]["cost_nanos"]);
        assert_eq!(command["data"][0]["group"], reply.body["data"][0][by]);
    }
    let past = server.get("/v1/usage?from=2020-01-01&to=2020-12-31", &one).await;
    assert_eq!(past.body["total"]["requests"], 0);
    let bad = server.get("/v1/usage?by=week", &one).await;
    assert_eq!((bad.status, bad.code()), (400, "invalid_value"));
}
