//! The worker with a scripted model: after token `n` it always predicts `n + 1`, and the end marker after `y`.

use super::supervisor::SupervisorMetrics;
use super::*;
use crate::error::LoadError;
use crate::forward::Logits;
use crate::gguf::Gguf;
use crate::gguf::writer::GgufWriter;
use crate::kernels::Kernels;
use crate::limits::{PAGE_TOKENS, PREFILL_ONLY_TOKENS};
use chancery_domain::AccountId;
use chancery_domain::ManualClock;
use chancery_domain::UnixMillis;
use chancery_engine::{Event, Prompt, PromptContent, Sampling};
use std::io::Cursor;
use std::sync::{OnceLock, mpsc};
use std::thread::{self, JoinHandle};

const END: u32 = 0;
const FIRST: u32 = 1;
/// The end marker and the letters a to z, one token each.
const VOCABULARY: usize = 27;
/// A prompt that contains this letter makes the model panic.
const POISON: u32 = FIRST + 25;

/// Permits for steps, shared by a model and its rebuilds.
type Permits = Arc<Mutex<mpsc::Receiver<()>>>;

/// Runs one step per permit, so that a test controls progress.
struct ScriptedModel {
    permits: Permits,
    logits: Vec<f32>,
}

impl ForwardModel for ScriptedModel {
    fn step(&mut self, batch: &[BatchEntry<'_>]) -> Logits<'_> {
        self.permits.lock().unwrap().recv().unwrap();
        self.logits.clear();
        for entry in batch {
            assert!(entry.first_position + entry.tokens.len() <= entry.pages.len() * 64);
            assert!(!entry.tokens.contains(&POISON), "poisoned");
            for token in &entry.tokens[entry.tokens.len() - entry.logits_rows..] {
                let next = (token + 1) % POISON;
                self.logits.extend((0..VOCABULARY).map(|id| f32::from(id == next as usize)));
            }
        }
        logits_of(&mut self.logits)
    }

    fn draft_rows(&self) -> usize {
        1
    }
}

fn logits_of(values: &mut [f32]) -> Logits<'_> {
    static KERNELS: OnceLock<Kernels> = OnceLock::new();
    let kernels = KERNELS.get_or_init(|| Kernels::start(1).unwrap());
    Logits { values, stride: VOCABULARY, vocab_size: VOCABULARY, kernels }
}

fn tokenizer() -> Tokenizer {
    let mut tokens = vec!["<end>".to_owned()];
    tokens.extend(('a'..='z').map(String::from));
    let mut types = [1; VOCABULARY];
    types[END as usize] = 3;
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    let bytes = GgufWriter::new()
        .string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", "gpt-2")
        .strings("tokenizer.ggml.tokens", &tokens)
        .strings("tokenizer.ggml.merges", &[])
        .i32s("tokenizer.ggml.token_type", &types)
        .u32("tokenizer.ggml.eos_token_id", END)
        .finish();
    let len = bytes.len() as u64;
    Tokenizer::from_metadata(Gguf::read(Cursor::new(bytes), len).unwrap().metadata()).unwrap()
}

fn worker_metrics() -> WorkerMetrics {
    WorkerMetrics {
        running: Gauge::noop(),
        steps: Counter::noop(),
        cached_tokens: Counter::noop(),
        drafted_tokens: Counter::noop(),
        accepted_tokens: Counter::noop(),
    }
}

struct Harness {
    clock: Arc<ManualClock>,
    job_queue: Arc<JobQueue>,
    permits: mpsc::Sender<()>,
    worker: Option<JoinHandle<()>>,
}

impl Harness {
    fn start(worker_limits: WorkerLimits) -> Self {
        Self::with(worker_limits, |permits| ScriptedModel { permits, logits: Vec::new() })
    }

    fn with<M: ForwardModel>(
        worker_limits: WorkerLimits,
        model: impl Fn(Permits) -> M + Send + 'static,
    ) -> Self {
        Self::rebuilt_by(worker_limits, move |permits| Ok(model(permits)))
    }

    /// `build` creates the first model too.
    fn rebuilt_by<M: ForwardModel>(
        worker_limits: WorkerLimits,
        build: impl Fn(Permits) -> Result<M, LoadError> + Send + 'static,
    ) -> Self {
        let (permits, receiver) = mpsc::channel();
        let receiver = Arc::new(Mutex::new(receiver));
        let clock = Arc::new(ManualClock::at(UnixMillis(0)));
        let shared_clock: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
        let job_queue =
            Arc::new(JobQueue::new(worker_limits, VOCABULARY, Arc::clone(&shared_clock), Gauge::noop()));
        let supervisor = Supervisor {
            tokenizer: Arc::new(tokenizer()),
            job_queue: Arc::clone(&job_queue),
            clock: shared_clock,
            load_time: BUILD_TIME,
            metrics: SupervisorMetrics {
                model: "scripted".to_owned(),
                worker: worker_metrics(),
                serving: Gauge::noop(),
                panics: Counter::noop(),
            },
        };
        let first = build(Arc::clone(&receiver)).unwrap();
        let worker = thread::spawn(move || supervisor.run(first, || build(Arc::clone(&receiver))));
        Self { clock, job_queue, permits, worker: Some(worker) }
    }

    fn allow(&self, steps: usize) {
        for _ in 0..steps {
            self.permits.send(()).unwrap();
        }
    }

    fn submit(&self, job: Job) -> Generation {
        self.job_queue.submit(job).unwrap()
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        self.job_queue.stop();
        let _ = self.permits.send(());
        self.worker.take().unwrap().join().unwrap();
    }
}

mod allocations;
mod chunked_prefill;
mod logprobs;
mod penalties;
mod prefix_cache;
mod recovery;
mod speculation;

/// Build time of the first model, as given to the supervisor.
const BUILD_TIME: Duration = Duration::from_millis(2_500);

const LIMITS: WorkerLimits = WorkerLimits { context_tokens: 64, slots: 2, queue: 4, pages: 8 };

fn job(prompt: &[u32], max_output_tokens: u32) -> Job {
    Job {
        account: AccountId(1),
        prompt: Prompt { content: PromptContent::Tokens(prompt.into()), input_tokens: 0 },
        max_output_tokens,
        sampling: Sampling::GREEDY,
        stop: Vec::new(),
        stop_on_repetition: false,
        top_logprobs: None,
        needs_partial_text: true,
    }
}

async fn collect_reply(mut generation: Generation) -> (String, Finished) {
    let mut text = String::new();
    loop {
        match generation.next().await.unwrap() {
            Event::Text(more) => text += &more,
            Event::Finished(ended) => return (text, ended),
            event @ (Event::Reasoning(_) | Event::Logprobs(_)) => panic!("{event:?}"),
        }
    }
}

#[tokio::test]
async fn reply_ends_at_max_output_tokens_with_the_exact_count() {
    let harness = Harness::start(LIMITS);
    harness.allow(100);
    let (text, ended) = collect_reply(harness.submit(job(&[FIRST], 5))).await;
    assert_eq!((text.as_str(), ended.reason, ended.output_tokens), ("bcdef", StopReason::MaxOutputTokens, 5));
}

#[tokio::test]
async fn end_token_ends_the_reply_and_is_not_counted() {
    let harness = Harness::start(LIMITS);
    harness.allow(100);
    let (text, ended) = collect_reply(harness.submit(job(&[FIRST + 21], 50))).await;
    assert_eq!((text.as_str(), ended.reason, ended.output_tokens), ("wxy", StopReason::Complete, 3));
}

#[tokio::test]
async fn full_context_ends_the_reply() {
    let harness = Harness::start(WorkerLimits { context_tokens: 10, ..LIMITS });
    harness.allow(100);
    let (text, ended) = collect_reply(harness.submit(job(&[FIRST; 6], 50))).await;
    assert_eq!((text.as_str(), ended.reason, ended.output_tokens), ("bcde", StopReason::ContextLength, 4));
    let too_long = harness.job_queue.submit(job(&[FIRST; 10], 1)).unwrap_err();
    assert_eq!(too_long, EngineError::InputTooLong { prompt_tokens: Some(10), context_tokens: 10 });
}

#[tokio::test]
async fn stop_string_ends_the_reply_and_its_tokens_are_counted() {
    let harness = Harness::start(LIMITS);
    harness.allow(100);
    let with_stop = Job { stop: vec!["fg".to_owned()], ..job(&[FIRST], 50) };
    let (text, ended) = collect_reply(harness.submit(with_stop)).await;
    assert_eq!((text.as_str(), ended.reason, ended.output_tokens), ("bcde", StopReason::StopSequence, 6));
}

#[tokio::test]
async fn cancelled_reply_ends_at_the_next_step_with_its_text() {
    let harness = Harness::start(LIMITS);
    let mut generation = harness.submit(job(&[FIRST], 50));
    for expected in ["b", "c"] {
        harness.allow(1);
        assert_eq!(generation.next().await.unwrap(), Event::Text(expected.to_owned()));
    }
    generation.cancel();
    // A step that may already be waiting for its permit is the last one.
    harness.allow(1);
    let (_, ended) = collect_reply(generation).await;
    assert_eq!(ended.reason, StopReason::Cancelled);
    assert!((2..=3).contains(&ended.output_tokens));
}

#[tokio::test]
async fn reply_cancelled_during_prefill_reports_the_computed_prompt_tokens() {
    let prompt_tokens = 3 * PREFILL_ONLY_TOKENS;
    let worker_limits =
        WorkerLimits { context_tokens: 2 * prompt_tokens, pages: 4 * prompt_tokens / PAGE_TOKENS, ..LIMITS };
    let harness = Harness::start(worker_limits);
    let generation = harness.submit(job(&vec![FIRST; prompt_tokens], 5));
    harness.allow(1);
    // The first step has filled pages. The second may already wait for its permit.
    while harness.job_queue.kv_pages().cached == 0 {
        tokio::task::yield_now().await;
    }
    generation.cancel();
    harness.allow(1);
    let (text, ended) = collect_reply(generation).await;
    assert_eq!((text.as_str(), ended.reason, ended.output_tokens), ("", StopReason::Cancelled, 0));
    let steps = ended.prefilled_tokens as usize / PREFILL_ONLY_TOKENS;
    assert_eq!(ended.prefilled_tokens as usize, steps * PREFILL_ONLY_TOKENS);
    assert!((1..=2).contains(&steps), "{ended:?}");
}

#[tokio::test]
async fn queued_job_that_is_cancelled_generates_nothing() {
    let harness = Harness::start(WorkerLimits { slots: 1, ..LIMITS });
    let first = harness.submit(job(&[FIRST], 3));
    let queued = harness.submit(job(&[FIRST], 3));
    queued.cancel();
    harness.allow(2);
    let (text, ended) = collect_reply(queued).await;
    assert_eq!((text.as_str(), ended.reason, ended.output_tokens), ("", StopReason::Cancelled, 0));
    harness.allow(10);
    assert_eq!(collect_reply(first).await.0, "bcd");
}

#[tokio::test]
async fn full_queue_rejects_immediately_with_retry_after() {
    let harness = Harness::start(WorkerLimits { slots: 1, queue: 1, ..LIMITS });
    let mut accepted = Vec::new();
    let rejection = loop {
        match harness.job_queue.submit(job(&[FIRST], 2)) {
            Ok(generation) => accepted.push(generation),
            Err(error) => break error,
        }
    };
    // One job waits in the queue, and one more may have taken the slot.
    assert!((1..=2).contains(&accepted.len()));
    assert!(matches!(rejection, EngineError::Overloaded { retry_after_s: 1..=60 }));
    harness.allow(100);
    for generation in accepted {
        assert_eq!(collect_reply(generation).await.0, "bc");
    }
}

#[tokio::test]
async fn job_waits_until_its_pages_are_free() {
    let harness = Harness::start(WorkerLimits { context_tokens: 2_048, slots: 3, pages: 160, ..LIMITS });
    harness.allow(1_000);
    // Each of these may need 77 pages, and there are 160.
    let jobs: Vec<_> = (0..3).map(|_| harness.submit(job(&[FIRST; 1_200], 20))).collect();
    for generation in jobs {
        assert_eq!(collect_reply(generation).await.1.output_tokens, 20);
    }
}

#[tokio::test]
async fn short_job_overtakes_a_long_one_waiting_for_pages() {
    let harness = Harness::start(WorkerLimits { context_tokens: 4_096, slots: 4, queue: 8, pages: 256 });
    let long = || job(&[FIRST; 3_900], 100);
    let first = harness.submit(long());
    harness.allow(1);
    let queued = harness.submit(long());
    let short = harness.submit(Job { account: AccountId(2), ..job(&[FIRST], 2) });
    // Too few steps for a long job's prompt, but enough for the short job.
    harness.allow(6);
    let soon = tokio::time::timeout(Duration::from_secs(10), collect_reply(short)).await;
    assert_eq!(soon.expect("the short job waits behind the long one").0, "bc");
    harness.allow(1_000);
    assert_eq!(collect_reply(first).await.1.reason, StopReason::Complete);
    assert_eq!(collect_reply(queued).await.1.reason, StopReason::Complete);
}

#[tokio::test]
async fn job_that_waits_too_long_is_rejected_and_running_jobs_continue() {
    let harness = Harness::start(WorkerLimits { slots: 1, ..LIMITS });
    let mut running = harness.submit(job(&[FIRST], 3));
    harness.allow(1);
    assert_eq!(running.next().await, Ok(Event::Text("b".to_owned())));
    let mut queued = harness.submit(job(&[FIRST], 3));
    harness.clock.advance(MAX_QUEUE_WAIT - Duration::from_millis(1));
    let later = harness.submit(job(&[FIRST], 3));
    harness.allow(1);
    assert_eq!(running.next().await, Ok(Event::Text("c".to_owned())));
    harness.clock.advance(Duration::from_millis(1));
    harness.allow(100);
    assert!(matches!(queued.next().await, Err(EngineError::Overloaded { retry_after_s: 1..=60 })));
    assert_eq!(collect_reply(running).await.0, "d");
    assert_eq!(collect_reply(later).await.0, "bcd", "it has waited a millisecond");
}

/// Records the first token of every prompt that starts.
struct LoggingModel {
    started_prompts: Arc<Mutex<Vec<u32>>>,
    scripted: ScriptedModel,
}

impl ForwardModel for LoggingModel {
    fn step(&mut self, batch: &[BatchEntry<'_>]) -> Logits<'_> {
        let started_prompts = batch.iter().filter(|entry| entry.first_position == 0);
        self.started_prompts.lock().unwrap().extend(started_prompts.map(|entry| entry.tokens[0]));
        self.scripted.step(batch)
    }

    fn draft_rows(&self) -> usize {
        self.scripted.draft_rows()
    }
}

#[tokio::test]
async fn accounts_share_by_tokens_not_by_arrival_order() {
    let started_prompts: Arc<Mutex<Vec<u32>>> = Arc::default();
    let log = Arc::clone(&started_prompts);
    let harness = Harness::with(
        WorkerLimits { context_tokens: 2_048, slots: 1, queue: 64, pages: 128 },
        move |permits| LoggingModel {
            started_prompts: Arc::clone(&log),
            scripted: ScriptedModel { permits, logits: Vec::new() },
        },
    );
    // This job keeps the slot until all the others wait.
    let mut first = harness.submit(job(&[FIRST], 2));
    harness.allow(1);
    first.next().await.unwrap();
    let quantum = FAIR_QUANTUM_TOKENS as usize;
    let mut generations = Vec::new();
    for (account, tokens, jobs) in [(2, 2 * quantum, 6), (3, quantum, 6)] {
        for number in 0..jobs {
            let mut prompt = vec![FIRST + account; tokens - 1];
            // All prefixes differ, so that none comes from the prefix cache.
            prompt[1] = FIRST + number;
            let job = job(&prompt, 1);
            generations.push(harness.submit(Job { account: AccountId(i64::from(account)), ..job }));
        }
    }
    harness.allow(1_000);
    for generation in generations {
        collect_reply(generation).await;
    }
    let order: String =
        started_prompts.lock().unwrap().iter().map(|token| (b'0' + (token - FIRST) as u8) as char).collect();
    assert_eq!(order, "0233233233222", "account 2's jobs are twice as large, so account 3 gets two for each");
}

#[tokio::test]
async fn closed_engine_rejects_new_jobs_and_finishes_accepted_ones() {
    let harness = Harness::start(LIMITS);
    let accepted = harness.submit(job(&[FIRST], 4));
    harness.job_queue.close();
    assert_eq!(harness.job_queue.submit(job(&[FIRST], 1)).unwrap_err(), EngineError::ShuttingDown);
    harness.allow(100);
    assert_eq!(collect_reply(accepted).await.0, "bcde");
}

#[tokio::test]
async fn stopped_engine_fails_its_running_jobs() {
    let harness = Harness::start(LIMITS);
    let mut generation = harness.submit(job(&[FIRST], 40));
    drop(harness);
    loop {
        match generation.next().await {
            Ok(Event::Text(_)) => {}
            other => break assert_eq!(other, Err(EngineError::ShuttingDown)),
        }
    }
}

#[test]
fn invalid_prompt_is_rejected() {
    let harness = Harness::start(LIMITS);
    for wrong in [job(&[VOCABULARY as u32], 1), job(&[], 1), job(&[FIRST], 0)] {
        assert!(matches!(harness.job_queue.submit(wrong), Err(EngineError::Failed(_))));
    }
}
