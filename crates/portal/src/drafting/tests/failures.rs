//! However the API fails, the user learns what happened, and only the log gets the details.

use super::faulty_api::{API_KEY, FaultyApi, ScriptedReply, drafter, ok_json, rejection, reply, stream};
use crate::drafting::api::{Drafter, Prompt};
use crate::drafting::error::{DraftError, DraftErrorKind};
use crate::drafting::limits::MAX_DRAFT_BYTES;
use crate::drafting::stream::{DraftEvent, DraftStream};
use crate::drafting::tuning::GenerationOptions;
use serde_json::{Value, json};
use std::sync::atomic::Ordering;
use std::time::Duration;

fn prompt() -> Prompt {
    Prompt {
        instructions: "Write.".to_owned(),
        input: "A note.".to_owned(),
        max_output_tokens: 64,
        options: GenerationOptions { seed: 7, ..GenerationOptions::default() },
    }
}

/// Requests the models, then starts a draft.
async fn start(drafter: &Drafter) -> Result<DraftStream, DraftError> {
    let model_offer = drafter.current_offer().await?;
    drafter.draft(&model_offer, &prompt()).await
}

/// Runs a draft; returns its text and its last step.
async fn outcome(drafter: &Drafter) -> (String, DraftEvent) {
    let mut draft = match start(drafter).await {
        Ok(draft) => draft,
        Err(error) => return (String::new(), DraftEvent::Failed(error)),
    };
    let mut text = String::new();
    loop {
        match draft.next().await.unwrap() {
            DraftEvent::Text(more) => text += &more,
            end => {
                assert_eq!(draft.next().await, None, "nothing comes after the end");
                return (text, end);
            }
        }
    }
}

async fn error_of(scripted: ScriptedReply) -> DraftError {
    let api = FaultyApi::drafting(scripted).await;
    match outcome(&api.drafter()).await.1 {
        DraftEvent::Failed(error) => error,
        other => panic!("{other:?}"),
    }
}

fn delta(text: &str) -> (&'static str, Value) {
    (
        "response.output_text.delta",
        json!({"type": "response.output_text.delta", "sequence_number": 1, "delta": text}),
    )
}

fn completed() -> (&'static str, Value) {
    let usage = json!({"input_tokens": 1846, "output_tokens": 412});
    (
        "response.completed",
        json!({"response": {"output_text": "Dear", "stop_reason": "complete", "usage": usage}}),
    )
}

#[tokio::test]
async fn draft_streams_deltas_and_ends_with_a_receipt() {
    let events = [("response.created", json!({})), delta("Dear "), delta("Ms Raman"), completed()];
    let api = FaultyApi::drafting(ScriptedReply::Bytes(stream(&events))).await;
    let (text, end) = outcome(&api.drafter()).await;
    assert_eq!(text, "Dear Ms Raman");
    let DraftEvent::Finished(receipt) = end else { panic!("{end:?}") };
    assert_eq!(receipt.text.cost, "$0.0003494");
}

fn field_rejection(code: &str, field: &str) -> String {
    let error = json!({"code": code, "reason": "inside", "field": field, "request_id": "req_1"});
    let body = json!({ "error": error }).to_string();
    reply("400 Bad Request", "content-type: application/json\r\n", &body)
}

#[tokio::test]
async fn older_api_gets_the_draft_again_without_optional_fields() {
    let written = ScriptedReply::Bytes(stream(&[delta("Dear"), completed()]));
    for (code, field) in [("malformed_request", "stop_on_repetition"), ("invalid_value", "top_p")] {
        let rejected = ScriptedReply::Bytes(field_rejection(code, field));
        let api = FaultyApi::drafting_in_turn([rejected, written.clone()]).await;
        let (text, end) = outcome(&api.drafter()).await;
        assert!(matches!(end, DraftEvent::Finished(_)), "{end:?}");
        assert_eq!(text, "Dear");
        let drafts = api.drafts.lock().unwrap().clone();
        let [first, second] = drafts.as_slice() else { panic!("{drafts:?}") };
        assert_eq!((&first["stop_on_repetition"], &first["seed"]), (&json!(true), &json!(7)));
        assert_eq!((&second["stop_on_repetition"], &second["seed"]), (&Value::Null, &Value::Null));
        assert_eq!(first["instructions"], second["instructions"]);
    }
}

#[tokio::test]
async fn draft_is_requested_at_most_twice_and_never_again_for_other_fields() {
    for (field, requests, kind) in [
        ("seed", 2, DraftErrorKind::UnsupportedField),
        ("instructions", 1, DraftErrorKind::InvalidReply),
        ("", 1, DraftErrorKind::InvalidReply),
    ] {
        let rejected = ScriptedReply::Bytes(field_rejection("malformed_request", field));
        let api = FaultyApi::drafting(rejected).await;
        let DraftEvent::Failed(error) = outcome(&api.drafter()).await.1 else { panic!("{field}") };
        assert_eq!((error.kind, api.drafts.lock().unwrap().len()), (kind, requests), "{field}");
        assert!(error.message().contains("Your text is untouched"));
    }
}

#[tokio::test]
async fn rejected_draft_has_a_message_and_retry_after() {
    for (scripted, message) in [
        (
            rejection("429 Too Many Requests", "retry-after: 20\r\n", "rate_limited"),
            "The model is busy. Your text is untouched and nothing was billed; try again in 20 seconds.",
        ),
        (
            rejection("503 Service Unavailable", "retry-after: 2\r\n", "overloaded"),
            "The model is busy. Your text is untouched and nothing was billed; try again in 2 seconds.",
        ),
        (
            rejection("402 Payment Required", "", "no_billing_account"),
            "No open account pays for drafts. Your text is untouched and nothing was billed; contact your administrator.",
        ),
        (
            rejection("401 Unauthorized", "", "invalid_api_key"),
            "The portal’s API key was rejected. Your text is untouched and nothing was billed; contact your administrator.",
        ),
    ] {
        let error = error_of(ScriptedReply::Bytes(scripted)).await;
        assert_eq!(error.message(), message);
        assert!(!error.detail.contains("the reason"), "{}", error.detail);
    }
}

#[tokio::test]
async fn each_failure_maps_to_its_kind_and_never_leaks_the_key() {
    let failed = |code: &str, retry: Option<u32>| {
        let error = json!({"code": code, "reason": "inside", "request_id": "req_1", "retry_after_s": retry});
        stream(&[delta("Dear"), ("response.failed", json!({"response": {"error": error}}))])
    };
    let endless = stream(&[
        delta(&"x".repeat(MAX_DRAFT_BYTES / 2)),
        delta(&"x".repeat(MAX_DRAFT_BYTES / 2)),
        delta("x"),
    ]);
    let short = ok_json("{\"output_text\": \"whole\"}");
    for (scripted, kind) in [
        (ScriptedReply::Bytes(reply("500 Oops", "", "<html>")), DraftErrorKind::BillingUnknown),
        (
            ScriptedReply::Bytes(reply("502 Bad Gateway", "", "<html>a proxy's</html>")),
            DraftErrorKind::Failed,
        ),
        (
            ScriptedReply::Bytes(reply("302 Found", "location: http://127.0.0.1:1/\r\n", "")),
            DraftErrorKind::InvalidReply,
        ),
        (ScriptedReply::Bytes(short), DraftErrorKind::InvalidReply),
        (
            ScriptedReply::Bytes(stream(&[("response.output_text.delta", json!({"delta": 5}))])),
            DraftErrorKind::InvalidReply,
        ),
        (
            ScriptedReply::Bytes(stream(&[("response.completed", json!({"response": {}}))])),
            DraftErrorKind::InvalidReply,
        ),
        (ScriptedReply::Bytes(endless), DraftErrorKind::InvalidReply),
        (ScriptedReply::Bytes(stream(&[delta("Dear")])), DraftErrorKind::StreamInterrupted),
        (ScriptedReply::Bytes("HTTP/1.1 200 OK\r\ncontent-le".to_owned()), DraftErrorKind::StreamInterrupted),
        (ScriptedReply::Bytes(String::new()), DraftErrorKind::StreamInterrupted),
        (ScriptedReply::Stall(String::new()), DraftErrorKind::TimedOut),
        (ScriptedReply::Stall(stream(&[delta("Dear")])), DraftErrorKind::TimedOut),
        (ScriptedReply::Bytes(failed("engine_failed", None)), DraftErrorKind::Failed),
        (ScriptedReply::Bytes(failed("overloaded", Some(7))), DraftErrorKind::Busy { retry_after_s: 7 }),
        (ScriptedReply::Bytes(failed("unavailable", None)), DraftErrorKind::BillingUnknown),
        (ScriptedReply::Bytes(failed("internal_error", None)), DraftErrorKind::BillingUnknown),
    ] {
        let error = error_of(scripted.clone()).await;
        assert_eq!(error.kind, kind, "{scripted:?}: {}", error.detail);
        let text = format!("{} {}", error.message(), error.detail);
        assert!(!text.contains(API_KEY) && !text.contains("127.0.0.1"), "{text}");
    }
}

#[tokio::test]
async fn unreachable_api_is_reported() {
    let gone = {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let error = drafter(&format!("http://{gone}")).model_offer().await.unwrap_err();
    assert_eq!(error.kind, DraftErrorKind::Unreachable);
    assert!(
        error
            .message()
            .starts_with("The model cannot be reached. Your text is untouched and nothing was billed")
    );
}

#[tokio::test]
async fn unanswered_count_request_is_unbilled() {
    let api =
        FaultyApi::start(ScriptedReply::Stall(String::new()), ScriptedReply::Bytes(String::new())).await;
    let error = start(&api.drafter()).await.err().unwrap();
    assert_eq!(error.kind, DraftErrorKind::NoReply);
    assert!(error.message().contains("nothing was billed"));
}

#[tokio::test]
async fn concurrent_editors_fetch_the_offer_once() {
    for models in [super::faulty_api::models(), reply("500 Oops", "", "")] {
        let api = FaultyApi::start(ScriptedReply::Bytes(models), ScriptedReply::Bytes(String::new())).await;
        let drafter = api.drafter();
        let first = drafter.model_offer().await;
        for _ in 0..5 {
            assert_eq!(drafter.model_offer().await, first);
        }
        assert_eq!(api.model_requests.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test]
async fn dropping_a_draft_closes_the_api_connection() {
    let api = FaultyApi::drafting(ScriptedReply::Stall(stream(&[delta("Dear")]))).await;
    let drafter = api.drafter();
    let mut draft = start(&drafter).await.unwrap();
    assert_eq!(draft.next().await, Some(DraftEvent::Text("Dear".to_owned())));
    drop(draft);
    tokio::time::timeout(Duration::from_secs(10), api.hung_up.notified()).await.unwrap();
}
