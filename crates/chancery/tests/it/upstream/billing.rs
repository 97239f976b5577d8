//! Billing when upstream servers fail: a caller gets and pays for a complete reply once, or nothing.

use super::{UpstreamModel, endpoints, firm_with};
use crate::event_stream::EventStream;
use crate::faults::ledger;
use crate::server::{Firm, Server, eventually, request};
use chancery_domain::UsageRow;
use chancery_test_support::faulty_chat_server::{FaultyServer, Step, counted_text, reply, text};
use std::time::Duration;

/// The servers need no key and are not asked for their context length.
fn front(servers: &[&FaultyServer]) -> (Firm, String, Server) {
    let endpoints: Vec<&str> = servers.iter().map(|server| server.url.as_str()).collect();
    front_with(&endpoints, "context_tokens = 4096")
}

fn front_with(endpoints: &[&str], more: &str) -> (Firm, String, Server) {
    let firm = firm_with(&UpstreamModel { endpoints, api_key: None, tokenizer: None, more });
    let key = firm.account_with_key("Caller");
    let server = firm.start();
    (firm, key, server)
}

async fn rows(firm: &Firm) -> Vec<UsageRow> {
    ledger::rows(&firm.database_url()).await.into_values().collect()
}

#[tokio::test]
async fn upstream_failure_has_its_error_code_and_bills_nothing() {
    let unfinished = "HTTP/1.1 503 X\r\nretry-after: 3\r\ncontent-length: 900\r\n\r\nhalf";
    let error_response = |status| vec![Step::Answer(status, "retry-after: 3\r\n", "no".to_owned())];
    let cases = [
        (error_response(500), 502, "engine_failed"),
        (error_response(503), 503, "overloaded"),
        (error_response(429), 503, "overloaded"),
        (error_response(400), 400, "invalid_value"),
        (error_response(422), 400, "invalid_value"),
        (error_response(402), 502, "engine_failed"),
        (vec![Step::Bytes(unfinished.as_bytes().to_vec()), Step::Hang], 503, "overloaded"),
        (vec![Step::Hang], 504, "engine_timeout"),
        (vec![Step::Stream, text("half"), Step::Cut], 502, "engine_failed"),
        (vec![Step::Stream, text("half"), Step::Hang], 504, "engine_timeout"),
        (vec![Step::Stream, text("half"), Step::Event("{".to_owned())], 502, "engine_failed"),
        (
            vec![Step::Stream, text("half"), Step::Raw(vec![b'x'; 2_000_000]), Step::Hang],
            502,
            "engine_failed",
        ),
        (
            vec![Step::Stream, Step::Pause(Duration::from_secs(3)), text("late"), Step::Hang],
            504,
            "engine_timeout",
        ),
    ];
    // A model for each case, on one server. Upstream servers that hang have short time-outs.
    let (mut models, mut upstreams) = (String::new(), Vec::new());
    for (number, (steps, _, code)) in cases.iter().enumerate() {
        let upstream = FaultyServer::always(steps.clone()).await;
        let timeouts = match *code {
            "engine_timeout" => "first_token_timeout_s = 1\nidle_timeout_s = 1\n",
            _ => "",
        };
        models += &format!(
            "[[models]]\nname = \"case-{number}\"\nengine = \"upstream\"\nendpoints = [{:?}]\n\
             context_tokens = 4096\n{timeouts}input_per_million = \"0.10\"\noutput_per_million = \"0.40\"\n",
            upstream.url
        );
        upstreams.push(upstream);
    }
    let firm = Firm::without_a_model();
    std::fs::write(firm.folder.path().join("chancery.toml"), models).unwrap();
    let key = firm.account_with_key("Caller");
    let server = firm.start();
    for (number, (_, status, code)) in cases.into_iter().enumerate() {
        let mut body = request("Answer.", "Now.", 8);
        body["model"] = format!("case-{number}").into();
        let reply = server.generate(&key, &body).await;
        assert_eq!((reply.status, reply.code()), (status, code), "case {number}: {}", reply.body);
        assert!(!reply.body.to_string().contains("half"), "nothing of the upstream's reaches a caller");
        assert_eq!(reply.header("retry-after"), if status == 503 { "3" } else { "" });
        assert_eq!(rows(&firm).await, []);
        let left = server.get("/v1/models", &key).await;
        assert_eq!(left.header("x-ratelimit-remaining-tokens"), "1000000000", "nothing stays reserved");
    }
}

#[tokio::test]
async fn reply_after_failover_is_billed_once() {
    let bad = FaultyServer::always(vec![Step::Answer(500, "", String::new())]).await;
    let good = FaultyServer::always(reply(&["all", " is", " well"], 9)).await;
    let (firm, key, server) = front(&[&bad, &good]);
    for number in 0..8 {
        let reply = server.generate(&key, &request("", &format!("Number {number}, please."), 8)).await;
        assert_eq!((reply.text(), reply.tokens()), ("all is well", (9, 3)));
    }
    let rows = rows(&firm).await;
    assert_eq!(rows.len(), 8);
    assert!(
        rows.iter().all(|row| (row.input_tokens, row.output_tokens, row.cost.0) == (9, 3, 9 * 100 + 3 * 400))
    );
    assert_eq!(good.jobs().len(), 8);
    assert!(!bad.jobs().is_empty(), "it was asked, and did no harm");
    ledger::assert_verified(&firm, &[]);
}

#[tokio::test]
async fn reported_usage_never_bills_more_than_reserved() {
    let mut steps = vec![Step::Stream, text("short")];
    steps.extend(chancery_test_support::faulty_chat_server::well_ended("stop", 4_000_000_000, 4_000_000_000));
    let upstream = FaultyServer::always(steps).await;
    let (firm, key, server) = front(&[&upstream]);
    let reply = server.generate(&key, &request("", "Now.", 8)).await;
    assert_eq!(reply.tokens(), (5, 8), "a token has a byte or more, and the cap is the cap");
    assert_eq!(rows(&firm).await.len(), 1);
}

#[tokio::test]
async fn text_is_streamed_as_generated_and_a_hang_up_reaches_the_upstream() {
    let upstream = FaultyServer::always(vec![Step::Stream, text("one"), text(" two"), Step::Hang]).await;
    let more = "context_tokens = 4096\nidle_timeout_s = 60";
    let firm = firm_with(&UpstreamModel {
        endpoints: &[upstream.url.as_str()],
        api_key: None,
        tokenizer: None,
        more,
    });
    let key = firm.account_with_key("Caller");
    let server = firm.start();
    let mut stream = EventStream::open(&server, &key, &request("", "Now.", 8)).await;
    let mut received = String::new();
    while received != "one two" {
        let event = stream.next().await.unwrap();
        if event.name == "response.output_text.delta" {
            received += event.data["delta"].as_str().unwrap();
        }
    }
    drop(stream);
    upstream.until_hang_ups(1).await;
    eventually("the hang-up is billed", Duration::from_secs(10), async || !rows(&firm).await.is_empty())
        .await;
    let rows = rows(&firm).await;
    assert_eq!(
        (rows[0].input_tokens, rows[0].output_tokens, rows[0].stop_reason.as_str()),
        (0, 2, "cancelled")
    );
    assert_eq!(endpoints(&server).await[0].1, "up");
}

#[tokio::test]
async fn hang_up_bills_the_prompt_counted_by_the_upstream() {
    let steps = vec![Step::Stream, counted_text("one", 4, 1), counted_text(" two", 4, 2), Step::Hang];
    let upstream = FaultyServer::always(steps).await;
    let (firm, key, server) = front(&[&upstream]);
    let mut stream = EventStream::open(&server, &key, &request("", "Now.", 8)).await;
    let mut received = String::new();
    while received != "one two" {
        let event = stream.next().await.unwrap();
        if event.name == "response.output_text.delta" {
            received += event.data["delta"].as_str().unwrap();
        }
    }
    drop(stream);
    eventually("the hang-up is billed", Duration::from_secs(20), async || !rows(&firm).await.is_empty())
        .await;
    let rows = rows(&firm).await;
    assert_eq!(
        (rows[0].input_tokens, rows[0].output_tokens, rows[0].stop_reason.as_str()),
        (4, 2, "cancelled")
    );
}

#[tokio::test]
async fn proxy_variables_are_ignored_and_plain_http_needs_no_certificates() {
    let upstream = FaultyServer::always(reply(&["direct"], 1)).await;
    let proxy = FaultyServer::always(reply(&["through a proxy"], 1)).await;
    let model =
        |endpoints| UpstreamModel { endpoints, api_key: None, tokenizer: None, more: "context_tokens = 64" };
    let plain = [upstream.url.as_str()];
    let bare = |firm: Firm| {
        let address = proxy.url.trim_end_matches("/v1");
        let firm = firm.with("HTTP_PROXY", address).with("http_proxy", address).with("ALL_PROXY", address);
        firm.with("SSL_CERT_FILE", "/nowhere/certificates").with("SSL_CERT_DIR", "/nowhere")
    };
    let firm = bare(firm_with(&model(&plain)));
    let key = firm.account_with_key("Caller");
    let server = firm.start_with(&["--only", "api"]);
    assert_eq!(server.generate(&key, &request("", "Now.", 8)).await.text(), "direct");
    assert_eq!(proxy.jobs().len(), 0);
    let with_tls = bare(firm_with(&model(&["https://127.0.0.1:9/v1"])));
    assert!(with_tls.fail(&["serve", "--only", "api"]).contains("smollm2-135m"));
}
