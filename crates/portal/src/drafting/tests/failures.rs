//! Whatever the API does, the person is told what happened, and the story with its details is the log's.

use super::faulty_api::{API_KEY, Answer, FaultyApi, drafter, ok_json, refusal, reply, stream};
use crate::drafting::api::{Drafter, Prompt};
use crate::drafting::fault::{Fault, Trouble};
use crate::drafting::limits::MAX_DRAFT_BYTES;
use crate::drafting::stream::Step;
use serde_json::{Value, json};
use std::sync::atomic::Ordering;
use std::time::Duration;

fn prompt() -> Prompt {
    Prompt { instructions: "Write.".to_owned(), input: "A note.".to_owned(), max_output_tokens: 64 }
}

/// All that comes of a draft: its text, and how it ended.
async fn outcome(drafter: &Drafter) -> (String, Step) {
    let mut draft = match drafter.draft(&prompt()).await {
        Ok(draft) => draft,
        Err(fault) => return (String::new(), Step::Failed(fault)),
    };
    let mut text = String::new();
    loop {
        match draft.next().await.unwrap() {
            Step::Text(more) => text += &more,
            end => {
                assert_eq!(draft.next().await, None, "nothing comes after the end");
                return (text, end);
            }
        }
    }
}

async fn fault_of(answer: Answer) -> Fault {
    let api = FaultyApi::drafting(answer).await;
    match outcome(&api.drafter()).await.1 {
        Step::Failed(fault) => fault,
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
async fn a_draft_comes_piece_by_piece_and_ends_with_its_receipt() {
    let events = [("response.created", json!({})), delta("Dear "), delta("Ms Raman"), completed()];
    let api = FaultyApi::drafting(Answer::Bytes(stream(&events))).await;
    let (text, end) = outcome(&api.drafter()).await;
    assert_eq!(text, "Dear Ms Raman");
    let Step::Finished(receipt) = end else { panic!("{end:?}") };
    assert_eq!(receipt.words.cost, "$0.0003494");
}

#[tokio::test]
async fn a_refusal_has_words_and_its_retry_after() {
    for (answer, words) in [
        (
            refusal("429 Too Many Requests", "retry-after: 20\r\n", "rate_limited"),
            "The model is busy. Your text is untouched and nothing was billed; try again in 20 seconds.",
        ),
        (
            refusal("503 Service Unavailable", "retry-after: 2\r\n", "overloaded"),
            "The model is busy. Your text is untouched and nothing was billed; try again in 2 seconds.",
        ),
        (
            refusal("402 Payment Required", "", "no_billing_account"),
            "There is no open account that pays for drafts. Your text is untouched and nothing was billed; tell the firm’s administrator.",
        ),
        (
            refusal("401 Unauthorized", "", "invalid_api_key"),
            "The model no longer takes the portal’s requests. Your text is untouched and nothing was billed; tell the firm’s administrator.",
        ),
    ] {
        let fault = fault_of(Answer::Bytes(answer)).await;
        assert_eq!(fault.words(), words);
        assert!(!fault.story.contains("the reason"), "{}", fault.story);
    }
}

#[tokio::test]
async fn every_failure_has_its_own_trouble_and_none_tells_the_key() {
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
    for (answer, trouble) in [
        (Answer::Bytes(reply("500 Oops", "", "<html>")), Trouble::Unclear),
        (Answer::Bytes(reply("502 Bad Gateway", "", "<html>a proxy's</html>")), Trouble::Failed),
        (Answer::Bytes(reply("302 Found", "location: http://127.0.0.1:1/\r\n", "")), Trouble::NotUnderstood),
        (Answer::Bytes(short), Trouble::NotUnderstood),
        (
            Answer::Bytes(stream(&[("response.output_text.delta", json!({"delta": 5}))])),
            Trouble::NotUnderstood,
        ),
        (Answer::Bytes(stream(&[("response.completed", json!({"response": {}}))])), Trouble::NotUnderstood),
        (Answer::Bytes(endless), Trouble::NotUnderstood),
        (Answer::Bytes(stream(&[delta("Dear")])), Trouble::CutOff),
        (Answer::Bytes("HTTP/1.1 200 OK\r\ncontent-le".to_owned()), Trouble::CutOff),
        (Answer::Bytes(String::new()), Trouble::CutOff),
        (Answer::Stall(String::new()), Trouble::TookTooLong),
        (Answer::Stall(stream(&[delta("Dear")])), Trouble::TookTooLong),
        (Answer::Bytes(failed("engine_failed", None)), Trouble::Failed),
        (Answer::Bytes(failed("overloaded", Some(7))), Trouble::Busy { retry_after_s: 7 }),
        (Answer::Bytes(failed("unavailable", None)), Trouble::Unclear),
        (Answer::Bytes(failed("internal_error", None)), Trouble::Unclear),
    ] {
        let fault = fault_of(answer.clone()).await;
        assert_eq!(fault.trouble, trouble, "{answer:?}: {}", fault.story);
        let told = format!("{} {}", fault.words(), fault.story);
        assert!(!told.contains(API_KEY) && !told.contains("127.0.0.1"), "{told}");
    }
}

#[tokio::test]
async fn an_api_that_is_not_there_is_told() {
    let gone = {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let fault = drafter(&format!("http://{gone}")).offer().await.unwrap_err();
    assert_eq!(fault.trouble, Trouble::Unreachable);
    assert!(
        fault
            .words()
            .starts_with("The model cannot be reached. Your text is untouched and nothing was billed")
    );
}

#[tokio::test]
async fn nothing_is_billed_for_a_question_that_is_not_answered() {
    let api = FaultyApi::start(Answer::Stall(String::new()), Answer::Bytes(String::new())).await;
    let fault = api.drafter().draft(&prompt()).await.err().unwrap();
    assert_eq!(fault.trouble, Trouble::Silent);
    assert!(fault.words().contains("nothing was billed"));
}

#[tokio::test]
async fn many_who_open_an_editor_ask_the_api_once() {
    for models in [super::faulty_api::models(), reply("500 Oops", "", "")] {
        let api = FaultyApi::start(Answer::Bytes(models), Answer::Bytes(String::new())).await;
        let drafter = api.drafter();
        let first = drafter.offer().await;
        for _ in 0..5 {
            assert_eq!(drafter.offer().await, first);
        }
        assert_eq!(api.asked_for_models.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test]
async fn whoever_drops_a_draft_hangs_up_on_the_api() {
    let api = FaultyApi::drafting(Answer::Stall(stream(&[delta("Dear")]))).await;
    let drafter = api.drafter();
    let mut draft = drafter.draft(&prompt()).await.unwrap();
    assert_eq!(draft.next().await, Some(Step::Text("Dear".to_owned())));
    drop(draft);
    tokio::time::timeout(Duration::from_secs(10), api.hung_up.notified()).await.unwrap();
}
