//! What the worker's thread allocates while it generates. The model here allocates nothing of its own, so all that is
//! counted is planning, drafting, choosing tokens, turning them into text and handing that over.

use super::*;
use crate::limits::PAGE_TOKENS;
use std::num::NonZeroU32;

/// Says the alphabet over and over.
struct SteadyModel {
    logits: Vec<f32>,
    free_rows: usize,
}

impl StepModel for SteadyModel {
    fn step(&mut self, segments: &[Segment<'_>]) -> Logits<'_> {
        self.logits.clear();
        for segment in segments {
            for token in &segment.tokens[segment.tokens.len() - segment.logits_rows..] {
                let next = FIRST + token % 24;
                let logit = |id: usize| if id == next as usize { 9.0 } else { -(id as f32) };
                self.logits.extend((0..VOCABULARY).map(logit));
            }
        }
        logits_of(&mut self.logits)
    }

    fn free_rows(&self) -> usize {
        self.free_rows
    }
}

/// A worker without a thread of its own, so that its allocations are this thread's.
fn worker(free_rows: usize) -> Worker<SteadyModel> {
    let bounds = Bounds { context_tokens: 2_048, slots: 8, queue: 8, pages: 512 };
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(UnixMillis(0)));
    let requests = Arc::new(Requests::new(bounds, VOCABULARY, Arc::clone(&clock), Gauge::noop()));
    let model = SteadyModel { logits: Vec::with_capacity(64 * VOCABULARY), free_rows };
    Worker::new(model, Arc::new(tokenizer()), requests, clock, worker_metrics())
}

const PROMPT_TOKENS: usize = 8;

/// Greedy, with stop strings that never quite come, and drawn from all and from a few.
fn jobs(output_tokens: u32) -> [Job; 4] {
    let plain = job(&[FIRST; PROMPT_TOKENS], output_tokens);
    let drawn = Sampling { temperature: 0.7, seed: 3, ..Sampling::GREEDY };
    let few = Sampling { top_k: NonZeroU32::new(5), top_p: 0.99, min_p: 0.01, ..drawn };
    [
        plain.clone(),
        Job { stop: vec!["xya".to_owned(), "abd".to_owned()], ..plain.clone() },
        Job { sampling: drawn, ..plain.clone() },
        Job { sampling: few, ..plain },
    ]
}

/// Makes one step; returns what it allocated.
fn allocations_of_a_step(worker: &mut Worker<SteadyModel>) -> u64 {
    allocation_counter::measure(|| assert!(worker.turn())).count_total
}

/// How many pages each sequence has, and how many of them are complete.
fn pages(worker: &Worker<SteadyModel>) -> Vec<(usize, usize)> {
    let pages = |sequence: &Sequence| (sequence.pages.pages().len(), sequence.computed / PAGE_TOKENS);
    worker.running.iter().map(pages).collect()
}

/// Takes what is there, as a caller does who keeps up.
async fn take_texts(generations: &mut [Generation]) {
    for generation in generations {
        tokio::select! {
            biased;
            event = generation.next() => assert!(matches!(event, Ok(Event::Text(_)))),
            () = std::future::ready(()) => {}
        }
    }
}

#[tokio::test]
async fn a_token_costs_the_worker_no_allocation() {
    for free_rows in [1, 16] {
        let mut worker = worker(free_rows);
        let mut generations: Vec<_> =
            jobs(1_500).into_iter().map(|job| worker.requests.submit(job).unwrap()).collect();
        // The prompts, and tokens until every buffer has grown to its size.
        for _ in 0..60 {
            allocations_of_a_step(&mut worker);
            take_texts(&mut generations).await;
        }
        let (mut steps, mut at_ends_of_pages) = (0, 0);
        for _ in 0..60 {
            let before = pages(&worker);
            let allocations = allocations_of_a_step(&mut worker);
            if pages(&worker) == before {
                assert_eq!(allocations, 0, "{before:?} with {free_rows} free rows");
                steps += 1;
            } else {
                at_ends_of_pages += allocations;
            }
            take_texts(&mut generations).await;
        }
        println!("{free_rows} free rows: {at_ends_of_pages} allocations where pages began or ended");
        assert!(steps > 20, "only {steps} steps were counted");
        // The cache's tables grow when they are full, ever more rarely.
        assert!(at_ends_of_pages <= 8, "{at_ends_of_pages} allocations where pages began or ended");
    }
}

#[tokio::test]
async fn a_caller_who_takes_nothing_costs_ever_fewer_allocations() {
    let mut worker = worker(1);
    let generation = worker.requests.submit(job(&[FIRST; PROMPT_TOKENS], 2_000)).unwrap();
    let allocations: u64 = (0..2_000).map(|_| allocations_of_a_step(&mut worker)).sum();
    assert_eq!(all(generation).await.1.output_tokens, 2_000);
    println!("{allocations} allocations for 2,000 tokens");
    assert!(allocations < 60, "{allocations}");
}
