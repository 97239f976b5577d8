//! Log probabilities on real weights.

use crate::generation::{collect_reply, job};
use crate::{engine, model_path, references};
use chancery_engine::{Dry, Engine, Event, Finished, Job, Penalties, Sampling, TokenLogprobs};
use chancery_engine_cpu::LogprobEvaluator;

const TOP: u8 = 20;
/// How far the engine may be from a run of the same arithmetic in steps of another size.
const MAX_ERROR: f64 = 0.05;

async fn run(job: Job) -> (String, Vec<TokenLogprobs>, Finished) {
    let mut generation = engine().start(job).unwrap();
    let (mut text, mut logprobs) = (String::new(), Vec::new());
    loop {
        match generation.next().await.unwrap() {
            Event::Text(more) => text += &more,
            Event::Logprobs(more) => logprobs.extend(more),
            Event::Finished(ended) => return (text, logprobs, ended),
            event @ Event::Reasoning(_) => panic!("{event:?}"),
        }
    }
}

/// The alternatives are in order and no likelier together than certain.
fn assert_is_distribution(token: &TokenLogprobs) {
    assert_eq!(token.top.len(), usize::from(TOP));
    assert!(token.top.is_sorted_by(|a, b| a.logprob >= b.logprob), "{token:?}");
    let sum: f64 = token.top.iter().map(|top| f64::from(top.logprob).exp()).sum();
    assert!(sum > 0.0 && sum <= 1.0 + 1e-4, "{sum}");
    assert!(token.token.logprob <= token.top[0].logprob, "{token:?}");
}

#[tokio::test]
async fn greedy_tokens_are_the_most_likely_and_their_bytes_are_the_text() {
    for reference in references() {
        let plain = job(engine(), &reference.instructions, &reference.input, 32);
        let (expected, _) = collect_reply(engine().start(plain.clone()).unwrap()).await;
        let (text, logprobs, ended) = run(Job { top_logprobs: Some(TOP), ..plain }).await;
        assert_eq!(text, expected, "asking for log probabilities changes no text");
        let bytes: Vec<u8> = logprobs.iter().flat_map(|token| token.token.bytes.clone()).collect();
        // A character that the limit cuts off is neither in the text nor reported.
        assert!(String::from_utf8_lossy(&bytes).starts_with(&text), "{text:?}");
        let unreported = ended.output_tokens as usize - logprobs.len();
        assert!(unreported < 4, "{unreported} tokens are not reported");
        for token in &logprobs {
            assert_is_distribution(token);
            assert_eq!(token.token, token.top[0]);
        }
    }
}

#[tokio::test]
async fn log_probabilities_do_not_depend_on_penalties_and_temperature() {
    let mut evaluation = LogprobEvaluator::load(&model_path(), 1_024, 2).unwrap();
    let dry = Dry { multiplier: 1.0, ..Dry::NONE };
    let penalties = Penalties { repetition: 1.3, frequency: 0.5, presence: 0.5, dry };
    for reference in references() {
        let sampling = Sampling { temperature: 1.0, top_p: 0.9, seed: 4, penalties, ..Sampling::GREEDY };
        let plain = job(engine(), &reference.instructions, &reference.input, 8);
        let (_, logprobs, _) = run(Job { sampling, top_logprobs: Some(TOP), ..plain }).await;
        logprobs.iter().for_each(assert_is_distribution);

        evaluation.restart();
        let mut expected = evaluation.extend(&reference.prompt_ids);
        expected.sort_by(|a, b| b.total_cmp(a));
        let Some(first) = logprobs.first() else { continue };
        for (top, expected) in first.top.iter().zip(expected) {
            assert!((f64::from(top.logprob) - expected).abs() < MAX_ERROR, "{top:?} instead of {expected}");
        }
    }
}
