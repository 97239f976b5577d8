//! Log probabilities through the worker. The scripted model gives one token the logit 1 and the other 26 the logit 0.

use super::*;
use chancery_engine::{Penalties, TokenLogprobs};

async fn collect_logprobs(mut generation: Generation) -> (String, Vec<TokenLogprobs>, StopReason) {
    let (mut text, mut logprobs) = (String::new(), Vec::new());
    loop {
        match generation.next().await.unwrap() {
            Event::Text(more) => text += &more,
            Event::Logprobs(more) => {
                logprobs.extend(more);
                let reported: usize =
                    logprobs.iter().map(|token: &TokenLogprobs| token.token.bytes.len()).sum();
                assert!(reported <= text.len(), "log probabilities follow their text");
            }
            Event::Finished(ended) => return (text, logprobs, ended.reason),
            event @ Event::Reasoning(_) => panic!("{event:?}"),
        }
    }
}

fn letters_of(logprobs: &[TokenLogprobs]) -> String {
    logprobs.iter().flat_map(|token| &token.token.bytes).map(|byte| char::from(*byte)).collect()
}

fn is_near(logprob: f32, logit: f32) -> bool {
    let ln_total = (1_f32.exp() + (VOCABULARY - 1) as f32).ln();
    (logprob - (logit - ln_total)).abs() < 1e-5
}

#[tokio::test]
async fn chosen_and_most_likely_tokens_are_reported_with_their_log_probability() {
    let harness = Harness::start(LIMITS);
    harness.allow(100);
    let asking = Job { top_logprobs: Some(2), ..job(&[FIRST], 5) };
    let (text, logprobs, _) = collect_logprobs(harness.submit(asking)).await;
    assert_eq!((text.as_str(), letters_of(&logprobs).as_str()), ("bcdef", "bcdef"));
    for token in &logprobs {
        assert!(is_near(token.token.logprob, 1.0), "{token:?}");
        assert_eq!(token.top.len(), 2);
        assert_eq!(token.top[0], token.token);
        // The end marker, which has no bytes, has the lowest id of the others.
        assert!(token.top[1].bytes.is_empty() && is_near(token.top[1].logprob, 0.0), "{token:?}");
    }
}

#[tokio::test]
async fn log_probabilities_are_those_before_penalties_and_temperature() {
    let harness = Harness::start(LIMITS);
    harness.allow(100);
    let penalties = Penalties { repetition: 1.5, frequency: 0.1, presence: 0.1, ..Penalties::NONE };
    let sampling = Sampling { temperature: 0.01, seed: 5, penalties, ..Sampling::GREEDY };
    let asking = Job { sampling, top_logprobs: Some(0), ..job(&[FIRST, FIRST + 1, FIRST + 2, FIRST], 8) };
    let (text, logprobs, _) = collect_logprobs(harness.submit(asking)).await;
    assert_eq!((text.as_str(), letters_of(&logprobs).as_str()), ("bcdefghi", "bcdefghi"));
    assert!(logprobs.iter().all(|token| is_near(token.token.logprob, 1.0) && token.top.is_empty()));
}

#[tokio::test]
async fn end_token_and_tokens_of_a_stop_string_are_not_reported() {
    let harness = Harness::start(LIMITS);
    harness.allow(100);
    let ending = Job { top_logprobs: Some(1), ..job(&[FIRST + 21], 50) };
    let (text, logprobs, reason) = collect_logprobs(harness.submit(ending)).await;
    assert_eq!((text.as_str(), letters_of(&logprobs).as_str()), ("wxy", "wxy"));
    assert_eq!(reason, StopReason::Complete);

    let stopping = Job { top_logprobs: Some(1), stop: vec!["fg".to_owned()], ..job(&[FIRST], 50) };
    let (text, logprobs, reason) = collect_logprobs(harness.submit(stopping)).await;
    assert_eq!((text.as_str(), letters_of(&logprobs).as_str()), ("bcde", "bcde"));
    assert_eq!(reason, StopReason::StopSequence);

    // The reply ends at its limit while `f` may still become a stop string.
    let withheld = Job { top_logprobs: Some(1), stop: vec!["fg".to_owned()], ..job(&[FIRST], 5) };
    let (text, logprobs, _) = collect_logprobs(harness.submit(withheld)).await;
    assert_eq!((text.as_str(), letters_of(&logprobs).as_str()), ("bcdef", "bcdef"));
}
