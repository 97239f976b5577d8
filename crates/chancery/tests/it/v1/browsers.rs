//! Requests from browsers are rejected: keys do not belong there.

use crate::server::{Firm, Reply, client, request};

#[tokio::test]
async fn browser_request_is_rejected_even_with_a_valid_key() {
    let firm = Firm::new();
    let key = firm.account_with_key("Hale & Ward");
    let server = firm.start();
    for (name, value) in [
        ("origin", "https://example.com"),
        ("origin", "null"),
        ("sec-fetch-site", "same-origin"),
        ("sec-fetch-mode", "cors"),
    ] {
        for path in ["/v1/generate", "/v1/tokens", "/nowhere"] {
            let call = client().post(format!("{}{path}", server.api)).bearer_auth(&key).header(name, value);
            let reply = Reply::read(call.json(&request("", "x", 1)).send().await.unwrap()).await;
            assert_eq!((reply.status, reply.code()), (403, "browser_request"), "{path} with {name}: {value}");
            let cors = reply.headers.keys().find(|name| name.as_str().starts_with("access-control-"));
            assert_eq!(cors, None);
        }
    }
    // Node's `fetch` sends these two headers by default, and runs on servers.
    let node = client().get(format!("{}/v1/models", server.api)).bearer_auth(&key);
    let node = node.header("sec-fetch-mode", "cors").header("accept-language", "*");
    assert_eq!(node.try_clone().unwrap().send().await.unwrap().status(), 200);
    for (name, value) in
        [("sec-fetch-site", "cross-site"), ("sec-fetch-dest", "empty"), ("origin", "https://example.com")]
    {
        let browser = node.try_clone().unwrap().header(name, value);
        assert_eq!(browser.send().await.unwrap().status(), 403, "{name}");
    }
    let preflight = client()
        .request(reqwest::Method::OPTIONS, format!("{}/v1/generate", server.api))
        .header("origin", "https://example.com")
        .header("access-control-request-method", "POST");
    assert_eq!(Reply::read(preflight.send().await.unwrap()).await.status, 403);
}
