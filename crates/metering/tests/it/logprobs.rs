//! Log probabilities on their way from the engine to the caller: only where asked for, never ahead of their text, and
//! the same in a replay.

use crate::protocol::end;
use crate::{Fixture, call};
use chancery_domain::{Fingerprint, StopReason};
use chancery_engine::{GenerationSink, TokenLogprob, TokenLogprobs};
use chancery_metering::limits::EVENT_LOGPROB_TOKENS;
use chancery_metering::{Call, GenerateRequest, Idempotency, Reply, StreamEvent};

const WORDS: [&str; 5] = ["A", " ledger", " is", " a", " book."];

fn logprobs_of(word: &str) -> TokenLogprobs {
    let token = |text: &str, logprob| TokenLogprob { bytes: text.as_bytes().to_vec(), logprob };
    TokenLogprobs { token: token(word, -0.5), top: vec![token(word, -0.5), token(" x", -1.25)] }
}

fn send_words(sink: GenerationSink) {
    for word in WORDS {
        sink.text(word);
        sink.logprobs([logprobs_of(word)]);
    }
    end(sink, StopReason::Complete, 5);
}

fn asking_for(fixture: &Fixture, top_logprobs: Option<u8>) -> Call {
    let (id, request) = fixture.new_request();
    call(&fixture.caller, id, GenerateRequest { top_logprobs, ..request })
}

fn keyed(fixture: &Fixture) -> Call {
    let fingerprint = Fingerprint::of("/v1/generate", b"{}");
    let idempotency = Some(Idempotency { key: "order-17".parse().unwrap(), fingerprint });
    Call { idempotency, ..asking_for(fixture, Some(2)) }
}

/// All events of a stream: its text, its log probabilities and its end.
async fn read_stream(fixture: &Fixture, call: Call) -> (String, Vec<TokenLogprobs>, Reply) {
    let mut running = fixture.meter.stream(call).await.unwrap();
    let (mut text, mut logprobs) = (String::new(), Vec::new());
    loop {
        match running.next().await {
            StreamEvent::Reasoning(_) => {}
            StreamEvent::Text { text: more, logprobs: more_logprobs } => {
                text += &more;
                logprobs.extend(more_logprobs);
                let tokens: Vec<u8> = logprobs.iter().flat_map(|one| one.token.bytes.clone()).collect();
                assert!(text.as_bytes().starts_with(&tokens), "{text}: {logprobs:?}");
            }
            StreamEvent::Ended(outcome) => return (text, logprobs, outcome.unwrap()),
        }
    }
}

#[tokio::test]
async fn reply_has_logprobs_only_if_the_request_asked_for_them() {
    let fixture = Fixture::with(|_, sink| send_words(sink)).await;
    let all: Vec<TokenLogprobs> = WORDS.map(logprobs_of).to_vec();
    let without_top: Vec<TokenLogprobs> =
        all.iter().map(|one| TokenLogprobs { top: Vec::new(), ..one.clone() }).collect();
    for (asked, expected) in [(None, None), (Some(0), Some(without_top)), (Some(2), Some(all))] {
        let reply = fixture.meter.generate(asking_for(&fixture, asked)).await.unwrap();
        assert_eq!((reply.output_text.as_str(), reply.logprobs), ("A ledger is a book.", expected));
    }
}

#[tokio::test]
async fn streamed_logprobs_follow_their_text_and_equal_the_whole_reply() {
    let fixture = Fixture::with(|_, sink| send_words(sink)).await;
    let (text, logprobs, reply) = read_stream(&fixture, asking_for(&fixture, Some(2))).await;
    assert_eq!((text.as_str(), &logprobs), ("A ledger is a book.", &WORDS.map(logprobs_of).to_vec()));
    assert_eq!(reply.logprobs, Some(logprobs));
    let (_, none, reply) = read_stream(&fixture, asking_for(&fixture, None)).await;
    assert_eq!((none, reply.logprobs), (Vec::new(), None));
}

#[tokio::test]
async fn replay_has_the_same_logprobs_whole_and_streamed() {
    let fixture = Fixture::with(|_, sink| send_words(sink)).await;
    let first = fixture.meter.generate(keyed(&fixture)).await.unwrap();
    let again = fixture.meter.generate(keyed(&fixture)).await.unwrap();
    assert_eq!(again, Reply { is_replay: true, rate_limit_status: None, ..first.clone() });
    let (text, logprobs, reply) = read_stream(&fixture, keyed(&fixture)).await;
    assert!(reply.is_replay);
    assert_eq!((text, Some(logprobs)), (first.output_text, first.logprobs));
    assert_eq!(fixture.rows().await.len(), 1);
}

#[tokio::test]
async fn events_of_a_slow_reader_and_of_a_replay_have_few_logprobs_each() {
    let fixture = Fixture::with(|job, sink| {
        for _ in 0..job.max_output_tokens {
            sink.text("A");
            sink.logprobs([logprobs_of("A")]);
        }
        end(sink, StopReason::MaxOutputTokens, job.max_output_tokens);
    })
    .await;
    for is_replay in [false, true] {
        let mut long = keyed(&fixture);
        long.request.max_output_tokens = Some(90);
        let mut running = fixture.meter.stream(long).await.unwrap();
        assert_eq!(running.start().is_replay, is_replay);
        while !running.work().is_finished() {
            tokio::task::yield_now().await;
        }
        let mut tokens = 0;
        let reply = loop {
            match running.next().await {
                StreamEvent::Reasoning(_) => {}
                StreamEvent::Text { logprobs, .. } => {
                    assert!(logprobs.len() < 2 * EVENT_LOGPROB_TOKENS, "{}", logprobs.len());
                    tokens += logprobs.len();
                }
                StreamEvent::Ended(outcome) => break outcome.unwrap(),
            }
        };
        assert_eq!((tokens, reply.logprobs.map(|all| all.len())), (90, Some(90)));
    }
}

#[tokio::test]
async fn no_more_logprobs_are_passed_on_than_the_reply_may_have_tokens() {
    let fixture = Fixture::with(|job, sink| {
        for _ in 0..job.max_output_tokens + 10 {
            sink.logprobs([logprobs_of("A")]);
        }
        sink.text("A");
        end(sink, StopReason::MaxOutputTokens, job.max_output_tokens);
    })
    .await;
    let reply = fixture.meter.generate(asking_for(&fixture, Some(1))).await.unwrap();
    assert_eq!(reply.logprobs.unwrap().len(), reply.output_tokens as usize);
}
