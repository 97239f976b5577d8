//! Calls from our processes to our own listeners, whose certificate no authority has signed and which has other names.

use super::{TestCertificate, https, secured};
use crate::event_stream::EventStream;
use crate::office::sign_in_with;
use crate::server::{Firm, MODEL, eventually};
use serde_json::Value;
use std::time::Duration;

/// Trusts every certificate, because this one has none of the server's names.
fn trusting_client() -> reqwest::Client {
    let builder = chancery_http_client::client_builder().no_proxy().timeout(Duration::from_secs(60));
    builder.tls_danger_accept_invalid_certs(true).build().unwrap()
}

#[tokio::test]
async fn portal_provider_and_api_reach_each_other_over_tls() {
    let firm = secured(Firm::new(), &TestCertificate::named(&["portal.example.com"]));
    let server = firm.start_with(&["--demo", "--minimal"]);
    let (portal, auth, api) = (https(&server.portal), https(&server.auth), https(&server.api));
    let demo: Value = serde_json::from_slice(&std::fs::read(firm.data().join("demo.json")).unwrap()).unwrap();
    assert_eq!(demo["portal_url"], portal);
    assert_eq!(demo["auth_url"], auth);
    assert_eq!(demo["api_url"], api.replace("127.0.0.1", "localhost"));

    let http = trusting_client();
    let home = http.get(&portal).send().await.unwrap();
    assert!(home.headers().contains_key("strict-transport-security"));

    // The portal exchanges the code at the provider.
    let maya = sign_in_with(http.clone(), &firm, &portal, "maya").await;
    let client = maya.clients().await[0]["id"].as_i64().unwrap();

    // The portal asks the API for a draft.
    let draft = http
        .post(format!("{portal}/clients/{client}/letters/draft"))
        .header("cookie", format!("session={}", maya.session))
        .header("accept", "text/event-stream, application/json")
        .header("content-type", "application/x-www-form-urlencoded")
        .body("purpose=Thank+them+for+their+time.&max_output_tokens=16&text=");
    let events = EventStream::send(draft).await.rest().await;
    assert_ne!(events.last().unwrap().name, "failed", "{events:?}");

    // The provider tells the portal that the session there has ended.
    let sign_out = http
        .post(format!("{portal}/auth/sign-out"))
        .header("cookie", format!("session={}", maya.session))
        .header("accept", "application/json");
    let reply: Value = serde_json::from_str(&sign_out.send().await.unwrap().text().await.unwrap()).unwrap();
    http.get(reply["provider_sign_out_url"].as_str().unwrap()).send().await.unwrap();
    eventually("the portal gets a logout token", Duration::from_secs(30), async || {
        let requests = server.logged_requests();
        requests.iter().any(|line| line["path"] == "/auth/backchannel-logout" && line["status"] == 200)
    })
    .await;
}

#[tokio::test]
async fn command_line_client_trusts_the_configured_certificate() {
    let firm = secured(Firm::new(), &TestCertificate::named(&["api.example.com"]));
    let key = firm.account_with_key("Hale & Ward");
    let server = firm.start();
    let firm = firm.with("CHANCERY_URL", &https(&server.api)).with("CHANCERY_API_KEY", &key);
    let generate = ["generate", "--model", MODEL, "--max-output-tokens", "4", "Say hello."];
    assert!(!firm.run(&generate).trim().is_empty());
    let stranger = TestCertificate::named(&["api.example.com"]);
    std::fs::write(firm.folder.path().join(super::CERTIFICATE_FILE), &stranger.certificate_pem).unwrap();
    let error = firm.fail(&generate);
    assert!(error.contains("no response from https://"), "{error}");
}
