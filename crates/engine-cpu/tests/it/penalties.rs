//! Penalties and the end of loops on real weights.

use crate::generation::{ENDLESS, collect_reply, job};
use crate::{engine, references};
use chancery_domain::AccountId;
use chancery_engine::{Dry, Engine, Finished, Generation, Job, Penalties, Sampling, StopReason};

/// Long enough for a loop to be found.
const OUTPUT_TOKENS: u32 = 400;

const REPETITION: Penalties = Penalties { repetition: 1.3, ..Penalties::NONE };
const FREQUENCY: Penalties = Penalties { frequency: 1.0, ..Penalties::NONE };
const PRESENCE: Penalties = Penalties { presence: 1.5, ..Penalties::NONE };
const DRY: Penalties =
    Penalties { dry: Dry { multiplier: 1.0, base: 1.75, allowed_length: 2 }, ..Penalties::NONE };

fn endless(penalties: Penalties) -> Job {
    let sampling = Sampling { penalties, ..Sampling::GREEDY };
    Job { sampling, ..job(engine(), ENDLESS, "", OUTPUT_TOKENS) }
}

async fn run(job: Job) -> (String, Finished) {
    collect_reply(engine().start(job).unwrap()).await
}

#[tokio::test]
async fn endless_reply_ends_when_it_loops() {
    let (whole, ended) = run(endless(Penalties::NONE)).await;
    assert_eq!((ended.reason, ended.output_tokens), (StopReason::MaxOutputTokens, OUTPUT_TOKENS));
    let (text, ended) = run(Job { stop_on_repetition: true, ..endless(Penalties::NONE) }).await;
    assert_eq!(ended.reason, StopReason::Repetition, "{whole}");
    assert!(ended.output_tokens < OUTPUT_TOKENS, "{ended:?}");
    assert!(!text.is_empty() && whole.starts_with(&text), "{text:?}");
}

#[tokio::test]
async fn every_penalty_changes_an_endless_reply_and_strong_ones_break_its_loop() {
    let (plain, _) = run(endless(Penalties::NONE)).await;
    for (penalties, breaks_loop) in [(REPETITION, true), (FREQUENCY, true), (DRY, true), (PRESENCE, false)] {
        let (text, ended) = run(Job { stop_on_repetition: true, ..endless(penalties) }).await;
        println!("{penalties:?}: {:?} after {} tokens: {text:?}", ended.reason, ended.output_tokens);
        let is_changed = ended.reason == StopReason::Complete || !plain.starts_with(&text);
        assert!(is_changed, "{penalties:?}: {text:?}");
        if breaks_loop {
            assert_ne!(ended.reason, StopReason::Repetition, "{penalties:?}: {text:?}");
        }
    }
}

/// Loop detection, disabled penalties and log probabilities leave the text bit for bit the same.
#[tokio::test]
async fn reference_texts_are_unchanged_without_penalties() {
    let disabled =
        Penalties { dry: Dry { multiplier: 0.0, base: 3.0, allowed_length: 9 }, ..Penalties::NONE };
    for reference in references() {
        let plain = job(engine(), &reference.instructions, &reference.input, 32);
        let (text, ended) = run(plain.clone()).await;
        let sampling = Sampling { penalties: disabled, ..Sampling::GREEDY };
        let (same, same_ended) = run(Job { sampling, stop_on_repetition: true, ..plain }).await;
        assert_eq!(
            (same, same_ended.reason, same_ended.output_tokens),
            (text, ended.reason, ended.output_tokens)
        );
    }
}

#[tokio::test]
async fn same_penalised_request_gives_the_same_text_alone_and_in_a_full_batch() {
    let all = Penalties { repetition: 1.1, frequency: 0.3, presence: 0.2, dry: DRY.dry };
    let penalties = [REPETITION, FREQUENCY, PRESENCE, DRY, all, Penalties::NONE];
    let jobs: Vec<Job> = references()
        .iter()
        .cycle()
        .zip(penalties.into_iter().cycle())
        .zip(0..20)
        .map(|((reference, penalties), index)| Job {
            account: AccountId(index % 3),
            sampling: Sampling {
                temperature: (index % 2) as f32,
                top_p: 0.9,
                seed: index as u64,
                penalties,
                ..Sampling::GREEDY
            },
            stop_on_repetition: index % 4 == 0,
            ..job(engine(), &reference.instructions, &reference.input, 12 + index as u32 % 5)
        })
        .collect();
    let mut alone = Vec::new();
    for job in &jobs {
        alone.push(run(job.clone()).await);
    }
    let together: Vec<Generation> = jobs.into_iter().map(|job| engine().start(job).unwrap()).collect();
    for (generation, alone) in together.into_iter().zip(alone) {
        let (text, ended) = collect_reply(generation).await;
        assert_eq!(
            (text, ended.reason, ended.output_tokens),
            (alone.0, alone.1.reason, alone.1.output_tokens)
        );
    }
}

#[tokio::test]
async fn seed_determines_penalised_text_at_nonzero_temperature() {
    let draw = |seed| Job {
        sampling: Sampling { temperature: 1.0, top_p: 0.95, seed, penalties: REPETITION, ..Sampling::GREEDY },
        ..job(engine(), "Write a story.", "It is about a ledger.", 24)
    };
    let (first, _) = run(draw(7)).await;
    assert_eq!(run(draw(7)).await.0, first);
    assert_ne!(run(draw(8)).await.0, first);
}

/// The published figure of SmolLM2-135M, whose embedding is also its output matrix.
#[test]
fn engine_counts_the_parameters_of_its_model() {
    assert_eq!(engine().parameters(), Some(134_515_008));
}
