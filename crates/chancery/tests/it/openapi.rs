//! `GET /openapi.json`: the API description for programs, and a program that tests the API against it.

use crate::event_stream::EventStream;
use crate::server::{Firm, MODEL, Reply, Server, clean_command, client, request, schemathesis};
use serde_json::Value;
use std::path::Path;

async fn document(server: &Server) -> Value {
    Reply::read(client().get(format!("{}/openapi.json", server.api)).send().await.unwrap()).await.body
}

#[tokio::test]
async fn openapi_document_is_public_checked_in_and_true_of_stream_events() {
    let firm = Firm::new();
    let key = firm.account_with_key("Hale & Ward");
    let server = firm.start();
    openapi_document_is_public_and_matches_the_checked_in_file(&server).await;
    browsers_may_only_read_public_paths(&server).await;
    every_stream_event_matches_the_openapi_document(&key, &server).await;
}

async fn openapi_document_is_public_and_matches_the_checked_in_file(server: &Server) {
    let address = format!("{}/openapi.json", server.api);
    let checked_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let checked_in: Value = serde_json::from_str(&std::fs::read_to_string(checked_in).unwrap()).unwrap();
    for browser in [None, Some("https://example.com")] {
        let request = client().get(&address);
        let request = match browser {
            Some(origin) => request.header("origin", origin).header("sec-fetch-mode", "cors"),
            None => request,
        };
        let reply = Reply::read(request.send().await.unwrap()).await;
        assert_eq!((reply.status, reply.header("content-type")), (200, "application/json"));
        assert_eq!(reply.header("x-content-type-options"), "nosniff");
        assert!(!reply.headers.keys().any(|name| name.as_str().starts_with("access-control-")));
        assert!(reply.body["openapi"].as_str().unwrap().starts_with("3.1"));
        assert!(reply.body == checked_in, "docs/openapi.json differs; run `make openapi`");
    }
    let head = client().head(&address).send().await.unwrap();
    assert_eq!(
        (head.status().as_u16(), head.headers()["content-type"].to_str().unwrap()),
        (200, "application/json")
    );
}

async fn browsers_may_only_read_public_paths(server: &Server) {
    for (method, path) in [
        ("POST", "/openapi.json"),
        ("OPTIONS", "/openapi.json"),
        ("POST", "/docs"),
        ("GET", "/docs/"),
        ("GET", "/v1/models"),
    ] {
        let request = client().request(method.parse().unwrap(), format!("{}{path}", server.api));
        let reply = Reply::read(request.header("origin", "https://example.com").send().await.unwrap()).await;
        assert_eq!((reply.status, reply.code()), (403, "browser_request"), "{method} {path}");
    }
}

/// Checks the subset of JSON Schema that the document uses for replies. Returns the first mismatch.
fn difference(document: &Value, schema: &Value, value: &Value) -> Option<String> {
    if let Some(reference) = schema["$ref"].as_str() {
        let described = document.pointer(reference.trim_start_matches('#')).unwrap();
        return difference(document, described, value);
    }
    let is_of = |kind: &str| match kind {
        "object" => value.is_object(),
        "string" => value.is_string(),
        "integer" => value.is_u64(),
        "number" => value.is_number(),
        "array" => value.is_array(),
        other => panic!("teach this test {other}"),
    };
    if schema["type"].as_str().is_some_and(|kind| !is_of(kind)) {
        return Some(format!("{value} is not of type {}", schema["type"]));
    }
    if schema["enum"].as_array().is_some_and(|values| !values.contains(value)) {
        return Some(format!("{value} is none of {}", schema["enum"]));
    }
    if let Some(items) = value.as_array() {
        return items.iter().find_map(|item| difference(document, &schema["items"], item));
    }
    let fields = value.as_object()?;
    let properties = schema["properties"].as_object().unwrap();
    let missing = schema["required"]
        .as_array()
        .unwrap()
        .iter()
        .find(|name| !fields.contains_key(name.as_str().unwrap()));
    if let Some(missing) = missing {
        return Some(format!("{value} has no {missing}"));
    }
    fields.iter().find_map(|(name, field)| match properties.get(name) {
        Some(described) => difference(document, described, field),
        None => Some(format!("{name} is not described")),
    })
}

async fn every_stream_event_matches_the_openapi_document(key: &str, server: &Server) {
    let document = document(server).await;
    let pointer = "/paths/~1v1~1generate/post/responses/200/content/text~1event-stream/schema/$ref";
    let described = document.pointer(pointer).unwrap().as_str().unwrap().trim_start_matches('#');
    let described = document.pointer(described).unwrap()["oneOf"].as_array().unwrap();
    let data_of = |name: &str| {
        let named = described.iter().find(|event| event["properties"]["event"]["enum"][0] == name);
        &named.unwrap_or_else(|| panic!("{name} is not described"))["properties"]["data"]["contentSchema"]
    };
    let mut names = Vec::new();
    for (input, cap) in [("Say hello.", 3), ("What is the capital of France? One word.", 64)] {
        let mut body = request("", input, cap);
        body["logprobs"] = true.into();
        body["top_logprobs"] = 2.into();
        for event in EventStream::open(server, key, &body).await.rest().await {
            let is_whole = !["response.created", "response.output_text.delta"].contains(&event.name.as_str());
            assert!(!is_whole || event.data.to_string().contains("top_logprobs"), "{event:?}");
            assert_eq!(difference(&document, data_of(&event.name), &event.data), None, "{}", event.name);
            names.push(event.name);
        }
    }
    for name in [
        "response.created",
        "response.output_text.delta",
        "response.output_text.done",
        "response.incomplete",
        "response.completed",
    ] {
        assert!(names.iter().any(|seen| seen == name), "{name} did not come: {names:?}");
    }
}

/// Runs all of its checks on every operation. `tests/schemathesis/hooks.py` adds what the document cannot express.
#[tokio::test]
async fn schemathesis_finds_no_undocumented_behavior() {
    const SEED: &str = "20261115";
    const EXAMPLES_PER_OPERATION: &str = "5";
    // Takes less than a minute on two cores; the rest is headroom for a busy machine.
    const TIMEOUT_S: &str = "480";
    const REQUEST_TIMEOUT_S: &str = "60";

    let firm = Firm::new();
    // The same limits as the demo account's.
    let key = firm.limited_account_with_key("Hale & Ward", 6_000, 10_000_000);
    // A request has a receipt once a checkpoint covers it, and a server signs one when it stops.
    let mut server = firm.start();
    let billed = server.generate(&key, &request("", "Say hello.", 1)).await;
    server.end();
    let server = firm.start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("openapi.json");
    std::fs::write(&file, document(&server).await.to_string()).unwrap();

    let mut command = clean_command("timeout");
    command.arg(TIMEOUT_S).arg(schemathesis()).arg("run").arg(&file);
    command.args([
        "--url",
        &server.api,
        "--seed",
        SEED,
        "--max-examples",
        EXAMPLES_PER_OPERATION,
        // Python 3.11 cannot parse in two threads at once ("AST constructor recursion depth mismatch"), and Hypothesis parses.
        "--workers",
        "1",
        "--request-timeout",
        REQUEST_TIMEOUT_S,
    ]);
    command.args([
        "--header",
        &format!("Authorization: Bearer {key}"),
        "--continue-on-failure",
        "--no-color",
    ]);
    command
        .env("SCHEMATHESIS_HOOKS", Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/schemathesis/hooks.py"));
    command.env("CHANCERY_TEST_REQUEST_ID", billed.body["id"].as_str().unwrap());
    command.env("CHANCERY_TEST_MODEL_NAME", MODEL).env("PYTHONDONTWRITEBYTECODE", "1");
    let output = command.current_dir(folder.path()).output().unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {report}\n{errors}\nseed {SEED}", output.status);
    assert!(!report.contains("WARNINGS"), "it could not test all of the document: {report}");

    // Proves that it sent requests: finding nothing must not mean asking nothing.
    let answered = |path: &str, status: u64| {
        let logged = server.logged_requests();
        logged.iter().filter(|line| line["path"] == path && line["status"] == status).count()
    };
    for path in ["/v1/generate", "/v1/tokens", "/v1/usage", "/v1/responses", "/v1/chat/completions"] {
        assert!(answered(path, 200) >= 10 && answered(path, 400) >= 10, "{path}: {report}");
    }
}
