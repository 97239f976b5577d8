//! Allocations of the worker's thread while it generates. The model here allocates nothing, so the count covers
//! planning, drafting, penalties, sampling, loop detection, detokenization and handing over the text.

use super::*;
use crate::limits::PAGE_TOKENS;
use chancery_engine::{Dry, Penalties};
use std::num::NonZeroU32;

/// Generates the letters a to x over and over.
pub(super) struct SteadyModel {
    pub(super) logits: Vec<f32>,
    pub(super) draft_rows: usize,
}

impl ForwardModel for SteadyModel {
    fn step(&mut self, batch: &[BatchEntry<'_>]) -> Logits<'_> {
        self.logits.clear();
        for entry in batch {
            for token in &entry.tokens[entry.tokens.len() - entry.logits_rows..] {
                let next = FIRST + token % 24;
                let logit = |id: usize| if id == next as usize { 9.0 } else { -(id as f32) };
                self.logits.extend((0..VOCABULARY).map(logit));
            }
        }
        logits_of(&mut self.logits)
    }

    fn draft_rows(&self) -> usize {
        self.draft_rows
    }
}

/// A worker without its own thread, so that its allocations are counted on this one.
fn worker(draft_rows: usize) -> Worker<SteadyModel> {
    let worker_limits = WorkerLimits { context_tokens: 2_048, slots: 8, queue: 8, pages: 512 };
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(UnixMillis(0)));
    let job_queue = Arc::new(JobQueue::new(worker_limits, VOCABULARY, Arc::clone(&clock), Gauge::noop()));
    let model = SteadyModel { logits: Vec::with_capacity(64 * VOCABULARY), draft_rows };
    Worker::new(model, Arc::new(tokenizer()), job_queue, clock, worker_metrics())
}

const PROMPT_TOKENS: usize = 8;

/// Greedy; greedy with stop strings that almost match; sampled from all tokens; sampled from a few.
fn jobs(output_tokens: u32) -> [Job; 4] {
    let plain = job(&[FIRST; PROMPT_TOKENS], output_tokens);
    let sampled = Sampling { temperature: 0.7, seed: 3, ..Sampling::GREEDY };
    let few = Sampling { top_k: NonZeroU32::new(5), top_p: 0.99, min_p: 0.01, ..sampled };
    [
        plain.clone(),
        Job { stop: vec!["xya".to_owned(), "abd".to_owned()], ..plain.clone() },
        Job { sampling: sampled, ..plain.clone() },
        Job { sampling: few, ..plain },
    ]
}

/// Runs one step; returns its number of allocations.
fn allocations_of_a_step(worker: &mut Worker<SteadyModel>) -> u64 {
    allocation_counter::measure(|| assert!(worker.run_once())).count_total
}

/// Each sequence's pages, and how many of them are complete.
fn pages(worker: &Worker<SteadyModel>) -> Vec<(usize, usize)> {
    let pages = |sequence: &Sequence| (sequence.pages.pages().len(), sequence.computed / PAGE_TOKENS);
    worker.running.iter().map(pages).collect()
}

/// Takes the pending text, like a caller that keeps up.
async fn take_texts(generations: &mut [Generation]) {
    for generation in generations {
        tokio::select! {
            biased;
            event = generation.next() => assert!(matches!(event, Ok(Event::Text(_)))),
            () = std::future::ready(()) => {}
        }
    }
}

/// Runs the jobs together, and checks every step in which no page begins or ends.
async fn assert_decode_steps_allocate_nothing(jobs: impl IntoIterator<Item = Job>, draft_rows: usize) {
    let mut worker = worker(draft_rows);
    let mut generations: Vec<_> = jobs.into_iter().map(|job| worker.job_queue.submit(job).unwrap()).collect();
    // Prefill, then decode until every buffer has reached its final size.
    for _ in 0..60 {
        allocations_of_a_step(&mut worker);
        take_texts(&mut generations).await;
    }
    let (mut steps, mut at_ends_of_pages) = (0, 0);
    for _ in 0..60 {
        let before = pages(&worker);
        let allocations = allocations_of_a_step(&mut worker);
        if pages(&worker) == before {
            assert_eq!(allocations, 0, "{before:?} with {draft_rows} free rows");
            steps += 1;
        } else {
            at_ends_of_pages += allocations;
        }
        take_texts(&mut generations).await;
    }
    println!("{draft_rows} free rows: {at_ends_of_pages} allocations where pages began or ended");
    assert_eq!(worker.running.len(), generations.len(), "every reply is still running");
    assert!(steps > 20, "only {steps} steps were counted");
    // The cache's hash tables grow when they are full, ever more rarely.
    assert!(at_ends_of_pages <= 8, "{at_ends_of_pages} allocations where pages began or ended");
}

#[tokio::test]
async fn decode_step_allocates_nothing() {
    for draft_rows in [1, 16] {
        assert_decode_steps_allocate_nothing(jobs(1_500), draft_rows).await;
    }
}

/// Small penalties, so that the letters stay far likelier than the end marker.
#[tokio::test]
async fn decode_step_with_penalties_and_loop_detection_allocates_nothing() {
    let dry = Dry { multiplier: 0.1, base: 1.01, allowed_length: 2 };
    let penalties = Penalties { repetition: 1.1, frequency: 0.05, presence: 0.2, dry };
    let plain = job(&[FIRST; PROMPT_TOKENS], 1_500);
    let greedy = Sampling { penalties, ..Sampling::GREEDY };
    let sampled = Sampling { temperature: 0.7, min_p: 0.05, seed: 3, ..greedy };
    let jobs = [
        Job { sampling: greedy, ..plain.clone() },
        Job { sampling: sampled, ..plain.clone() },
        Job { stop_on_repetition: true, ..plain },
    ];
    // Without drafts, which would reach the end of the loop before the last step.
    assert_decode_steps_allocate_nothing(jobs, 1).await;
}

#[tokio::test]
async fn unread_text_costs_amortized_allocations() {
    let mut worker = worker(1);
    let generation = worker.job_queue.submit(job(&[FIRST; PROMPT_TOKENS], 2_000)).unwrap();
    let allocations: u64 = (0..2_000).map(|_| allocations_of_a_step(&mut worker)).sum();
    assert_eq!(collect_reply(generation).await.1.output_tokens, 2_000);
    println!("{allocations} allocations for 2,000 tokens");
    assert!(allocations < 60, "{allocations}");
}
