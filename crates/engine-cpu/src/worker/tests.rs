//! The worker with a scripted model: after token `n` it always says `n + 1`, and the end marker after the last.

use super::supervisor::SupervisorMetrics;
use super::*;
use crate::error::LoadError;
use crate::forward::Logits;
use crate::gguf::Gguf;
use crate::gguf::writer::GgufWriter;
use crate::kernels::Kernels;
use chancery_domain::AccountId;
use chancery_domain::ManualClock;
use chancery_domain::UnixMillis;
use chancery_engine::{Event, Prompt, PromptForm, Sampling};
use std::io::Cursor;
use std::sync::{OnceLock, mpsc};
use std::thread::{self, JoinHandle};

const END: u32 = 0;
const FIRST: u32 = 1;
/// The letters a to z, one token each.
const VOCABULARY: usize = 27;
/// A prompt that holds this letter makes the model panic.
const POISON: u32 = FIRST + 25;

/// Steps that a test allows, shared by a model and those that are built after it.
type Permits = Arc<Mutex<mpsc::Receiver<()>>>;

/// Makes a step for every permit it is given, so that a test decides how far things go.
struct ScriptedModel {
    permits: Permits,
    logits: Vec<f32>,
}

impl StepModel for ScriptedModel {
    fn step(&mut self, segments: &[Segment<'_>]) -> Logits<'_> {
        self.permits.lock().unwrap().recv().unwrap();
        self.logits.clear();
        for segment in segments {
            assert!(segment.first_position + segment.tokens.len() <= segment.pages.len() * 64);
            assert!(!segment.tokens.contains(&POISON), "poisoned");
            for token in &segment.tokens[segment.tokens.len() - segment.logits_rows..] {
                let next = (token + 1) % POISON;
                self.logits.extend((0..VOCABULARY).map(|id| f32::from(id == next as usize)));
            }
        }
        logits_of(&mut self.logits)
    }

    fn free_rows(&self) -> usize {
        1
    }
}

fn logits_of(values: &mut [f32]) -> Logits<'_> {
    static KERNELS: OnceLock<Kernels> = OnceLock::new();
    let kernels = KERNELS.get_or_init(|| Kernels::start(1).unwrap());
    Logits { values, stride: VOCABULARY, vocabulary: VOCABULARY, kernels }
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

struct Bench {
    clock: Arc<ManualClock>,
    requests: Arc<Requests>,
    permits: mpsc::Sender<()>,
    worker: Option<JoinHandle<()>>,
}

impl Bench {
    fn start(bounds: Bounds) -> Self {
        Self::with(bounds, |permits| ScriptedModel { permits, logits: Vec::new() })
    }

    fn with<M: StepModel>(bounds: Bounds, model: impl Fn(Permits) -> M + Send + 'static) -> Self {
        Self::rebuilt_by(bounds, move |permits| Ok(model(permits)))
    }

    /// `build` makes the first model too.
    fn rebuilt_by<M: StepModel>(
        bounds: Bounds,
        build: impl Fn(Permits) -> Result<M, LoadError> + Send + 'static,
    ) -> Self {
        let (permits, receiver) = mpsc::channel();
        let receiver = Arc::new(Mutex::new(receiver));
        let clock = Arc::new(ManualClock::at(UnixMillis(0)));
        let handed_in: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
        let requests = Arc::new(Requests::new(bounds, VOCABULARY, Arc::clone(&handed_in), Gauge::noop()));
        let supervisor = Supervisor {
            tokenizer: Arc::new(tokenizer()),
            requests: Arc::clone(&requests),
            clock: handed_in,
            build_time: BUILD_TIME,
            metrics: SupervisorMetrics {
                model: "scripted".to_owned(),
                worker: worker_metrics(),
                serving: Gauge::noop(),
                panics: Counter::noop(),
            },
        };
        let first = build(Arc::clone(&receiver)).unwrap();
        let worker = thread::spawn(move || supervisor.run(first, || build(Arc::clone(&receiver))));
        Self { clock, requests, permits, worker: Some(worker) }
    }

    fn allow(&self, steps: usize) {
        for _ in 0..steps {
            self.permits.send(()).unwrap();
        }
    }

    fn submit(&self, job: Job) -> Generation {
        self.requests.submit(job).unwrap()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.requests.stop();
        let _ = self.permits.send(());
        self.worker.take().unwrap().join().unwrap();
    }
}

mod allocations;
mod prefix_cache;
mod recovery;
mod speculation;

/// What the first model took to build, as its supervisor was told.
const BUILD_TIME: Duration = Duration::from_millis(2_500);

const BOUNDS: Bounds = Bounds { context_tokens: 64, slots: 2, queue: 4, pages: 8 };

fn job(prompt: &[u32], max_output_tokens: u32) -> Job {
    Job {
        account: AccountId(1),
        prompt: Prompt { form: PromptForm::Tokens(prompt.into()), input_tokens: 0 },
        max_output_tokens,
        sampling: Sampling::GREEDY,
        stop: Vec::new(),
    }
}

async fn all(mut generation: Generation) -> (String, Ended) {
    let mut text = String::new();
    loop {
        match generation.next().await.unwrap() {
            Event::Text(more) => text += &more,
            Event::Ended(ended) => return (text, ended),
        }
    }
}

#[tokio::test]
async fn a_reply_ends_at_its_limit_with_the_exact_count() {
    let bench = Bench::start(BOUNDS);
    bench.allow(100);
    let (text, ended) = all(bench.submit(job(&[FIRST], 5))).await;
    assert_eq!((text.as_str(), ended.reason, ended.output_tokens), ("bcdef", StopReason::MaxOutputTokens, 5));
}

#[tokio::test]
async fn the_end_marker_ends_the_reply_and_is_not_counted() {
    let bench = Bench::start(BOUNDS);
    bench.allow(100);
    let (text, ended) = all(bench.submit(job(&[FIRST + 21], 50))).await;
    assert_eq!((text.as_str(), ended.reason, ended.output_tokens), ("wxy", StopReason::Complete, 3));
}

#[tokio::test]
async fn the_contexts_end_ends_the_reply() {
    let bench = Bench::start(Bounds { context_tokens: 10, ..BOUNDS });
    bench.allow(100);
    let (text, ended) = all(bench.submit(job(&[FIRST; 6], 50))).await;
    assert_eq!((text.as_str(), ended.reason, ended.output_tokens), ("bcde", StopReason::ContextLength, 4));
    let too_long = bench.requests.submit(job(&[FIRST; 10], 1)).unwrap_err();
    assert_eq!(too_long, EngineError::InputTooLong { prompt_tokens: Some(10), context_tokens: 10 });
}

#[tokio::test]
async fn a_stop_string_ends_the_reply_and_its_tokens_are_counted() {
    let bench = Bench::start(BOUNDS);
    bench.allow(100);
    let stopping = Job { stop: vec!["fg".to_owned()], ..job(&[FIRST], 50) };
    let (text, ended) = all(bench.submit(stopping)).await;
    assert_eq!((text.as_str(), ended.reason, ended.output_tokens), ("bcde", StopReason::StopSequence, 6));
}

#[tokio::test]
async fn a_cancelled_reply_ends_at_the_next_step_with_what_was_generated() {
    let bench = Bench::start(BOUNDS);
    let mut generation = bench.submit(job(&[FIRST], 50));
    for wanted in ["b", "c"] {
        bench.allow(1);
        assert_eq!(generation.next().await.unwrap(), Event::Text(wanted.to_owned()));
    }
    generation.cancel();
    // The step that may already be waiting for its permit is the last.
    bench.allow(1);
    let (_, ended) = all(generation).await;
    assert_eq!(ended.reason, StopReason::Cancelled);
    assert!((2..=3).contains(&ended.output_tokens));
}

#[tokio::test]
async fn a_job_cancelled_while_it_waits_ends_with_nothing_generated() {
    let bench = Bench::start(Bounds { slots: 1, ..BOUNDS });
    let first = bench.submit(job(&[FIRST], 3));
    let waiting = bench.submit(job(&[FIRST], 3));
    waiting.cancel();
    bench.allow(2);
    let (text, ended) = all(waiting).await;
    assert_eq!((text.as_str(), ended.reason, ended.output_tokens), ("", StopReason::Cancelled, 0));
    bench.allow(10);
    assert_eq!(all(first).await.0, "bcd");
}

#[tokio::test]
async fn a_full_queue_refuses_at_once_and_says_when_to_come_back() {
    let bench = Bench::start(Bounds { slots: 1, queue: 1, ..BOUNDS });
    let mut accepted = Vec::new();
    let refusal = loop {
        match bench.requests.submit(job(&[FIRST], 2)) {
            Ok(generation) => accepted.push(generation),
            Err(error) => break error,
        }
    };
    // One waits in the queue, and one more may have been let into the slot.
    assert!((1..=2).contains(&accepted.len()));
    assert!(matches!(refusal, EngineError::Overloaded { retry_after_s: 1..=60 }));
    bench.allow(100);
    for generation in accepted {
        assert_eq!(all(generation).await.0, "bc");
    }
}

#[tokio::test]
async fn a_job_waits_until_the_pages_it_may_need_are_free() {
    let bench = Bench::start(Bounds { context_tokens: 2_048, slots: 3, pages: 160, ..BOUNDS });
    bench.allow(1_000);
    // Each of these may need eighty pages, and there are 160.
    let jobs: Vec<_> = (0..3).map(|_| bench.submit(job(&[FIRST; 1_200], 20))).collect();
    for generation in jobs {
        assert_eq!(all(generation).await.1.output_tokens, 20);
    }
}

#[tokio::test]
async fn a_short_job_passes_a_long_one_that_waits_for_room() {
    let bench = Bench::start(Bounds { context_tokens: 4_096, slots: 4, queue: 8, pages: 256 });
    let long = || job(&[FIRST; 3_900], 100);
    let first = bench.submit(long());
    bench.allow(1);
    let waiting = bench.submit(long());
    let short = bench.submit(Job { account: AccountId(2), ..job(&[FIRST], 2) });
    // Too few steps for a long job's prompt, and enough for the short one.
    bench.allow(6);
    let soon = tokio::time::timeout(Duration::from_secs(10), all(short)).await;
    assert_eq!(soon.expect("the short job waits behind the long one").0, "bc");
    bench.allow(1_000);
    assert_eq!(all(first).await.1.reason, StopReason::Complete);
    assert_eq!(all(waiting).await.1.reason, StopReason::Complete);
}

#[tokio::test]
async fn a_job_that_waited_too_long_is_refused_and_what_runs_goes_on() {
    let bench = Bench::start(Bounds { slots: 1, ..BOUNDS });
    let mut running = bench.submit(job(&[FIRST], 3));
    bench.allow(1);
    assert_eq!(running.next().await, Ok(Event::Text("b".to_owned())));
    let mut waiting = bench.submit(job(&[FIRST], 3));
    bench.clock.advance(MAX_WAIT - Duration::from_millis(1));
    let later = bench.submit(job(&[FIRST], 3));
    bench.allow(1);
    assert_eq!(running.next().await, Ok(Event::Text("c".to_owned())));
    bench.clock.advance(Duration::from_millis(1));
    bench.allow(100);
    assert!(matches!(waiting.next().await, Err(EngineError::Overloaded { retry_after_s: 1..=60 })));
    assert_eq!(all(running).await.0, "d");
    assert_eq!(all(later).await.0, "bcd", "it has waited a millisecond");
}

/// Writes down the first token of every prompt that it begins.
struct LoggingModel {
    begun: Arc<Mutex<Vec<u32>>>,
    scripted: ScriptedModel,
}

impl StepModel for LoggingModel {
    fn step(&mut self, segments: &[Segment<'_>]) -> Logits<'_> {
        let begun = segments.iter().filter(|segment| segment.first_position == 0);
        self.begun.lock().unwrap().extend(begun.map(|segment| segment.tokens[0]));
        self.scripted.step(segments)
    }

    fn free_rows(&self) -> usize {
        self.scripted.free_rows()
    }
}

#[tokio::test]
async fn accounts_take_turns_by_tokens_and_not_by_who_came_first() {
    let begun: Arc<Mutex<Vec<u32>>> = Arc::default();
    let log = Arc::clone(&begun);
    let bench =
        Bench::with(Bounds { context_tokens: 2_048, slots: 1, queue: 64, pages: 128 }, move |permits| {
            LoggingModel { begun: Arc::clone(&log), scripted: ScriptedModel { permits, logits: Vec::new() } }
        });
    // It keeps the slot until all the others wait.
    let mut first = bench.submit(job(&[FIRST], 2));
    bench.allow(1);
    first.next().await.unwrap();
    let quantum = FAIR_QUANTUM_TOKENS as usize;
    let mut generations = Vec::new();
    for (account, tokens, jobs) in [(2, 2 * quantum, 6), (3, quantum, 6)] {
        for number in 0..jobs {
            let mut prompt = vec![FIRST + account; tokens - 1];
            // No two begin alike, so that none comes from the prefix cache.
            prompt[1] = FIRST + number;
            let job = job(&prompt, 1);
            generations.push(bench.submit(Job { account: AccountId(i64::from(account)), ..job }));
        }
    }
    bench.allow(1_000);
    for generation in generations {
        all(generation).await;
    }
    let order: String =
        begun.lock().unwrap().iter().map(|token| (b'0' + (token - FIRST) as u8) as char).collect();
    assert_eq!(order, "0233233233222", "account 2's jobs are twice as large, so account 3 gets two for each");
}

#[tokio::test]
async fn a_closed_engine_refuses_new_jobs_and_serves_those_it_has() {
    let bench = Bench::start(BOUNDS);
    let accepted = bench.submit(job(&[FIRST], 4));
    bench.requests.close();
    assert_eq!(bench.requests.submit(job(&[FIRST], 1)).unwrap_err(), EngineError::ShuttingDown);
    bench.allow(100);
    assert_eq!(all(accepted).await.0, "bcde");
}

#[tokio::test]
async fn a_stopped_engine_fails_what_it_still_had() {
    let bench = Bench::start(BOUNDS);
    let mut generation = bench.submit(job(&[FIRST], 40));
    drop(bench);
    loop {
        match generation.next().await {
            Ok(Event::Text(_)) => {}
            other => break assert_eq!(other, Err(EngineError::ShuttingDown)),
        }
    }
}

#[test]
fn a_prompt_of_another_engine_is_refused() {
    let bench = Bench::start(BOUNDS);
    for wrong in [job(&[VOCABULARY as u32], 1), job(&[], 1), job(&[FIRST], 0)] {
        assert!(matches!(bench.requests.submit(wrong), Err(EngineError::Failed(_))));
    }
}
