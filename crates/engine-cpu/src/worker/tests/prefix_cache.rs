//! The worker with its prefix cache, on a model whose every token depends on all that its pages contain: a page with
//! the wrong tokens, at the wrong position or not yet written, changes the text.

use super::*;
use crate::limits::PAGE_TOKENS;
use crate::paging::PageId;
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counters of what the model did.
#[derive(Default)]
pub(super) struct Record {
    pub(super) steps: AtomicUsize,
    /// Tokens computed.
    pub(super) computed: AtomicUsize,
    /// Maximum tokens of a decoding sequence in one step.
    pub(super) max_logits_rows: AtomicUsize,
}

pub(super) struct RecordingModel {
    pub(super) pages: HashMap<PageId, [u32; PAGE_TOKENS]>,
    pub(super) logits: Vec<f32>,
    pub(super) draft_rows: usize,
    pub(super) record: Arc<Record>,
}

/// The token after these: the one nine tokens back, or about one time in four any letter but the poison. All earlier
/// tokens determine which.
fn next(tokens: &[u32]) -> u32 {
    let sum = tokens.iter().fold(7_u32, |sum, token| sum.wrapping_mul(31).wrapping_add(*token));
    match tokens.len().checked_sub(9) {
        Some(before) if !(sum / 25).is_multiple_of(4) => tokens[before],
        _ => FIRST + sum % 25,
    }
}

pub(super) fn expected(prompt: &[u32], output_tokens: u32) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..output_tokens {
        tokens.push(next(&tokens));
    }
    tokens.split_off(prompt.len())
}

pub(super) fn letters(tokens: &[u32]) -> String {
    tokens.iter().map(|token| char::from(b'a' + (token - FIRST) as u8)).collect()
}

impl ForwardModel for RecordingModel {
    fn step(&mut self, batch: &[BatchEntry<'_>]) -> Logits<'_> {
        self.logits.clear();
        self.record.steps.fetch_add(1, Ordering::Relaxed);
        let rows: usize = batch.iter().map(|entry| entry.tokens.len()).sum();
        let drafts = batch.iter().any(|entry| entry.logits_rows > 1);
        assert!(!drafts || rows <= self.draft_rows, "drafts in a step of {rows} rows");
        for entry in batch {
            self.record.computed.fetch_add(entry.tokens.len(), Ordering::Relaxed);
            if entry.logits_rows > 1 {
                self.record.max_logits_rows.fetch_max(entry.logits_rows, Ordering::Relaxed);
            }
            let poisoned = entry.tokens.contains(&POISON);
            for (position, token) in (entry.first_position..).zip(entry.tokens) {
                let page = self.pages.entry(entry.pages[position / PAGE_TOKENS]).or_insert([0; PAGE_TOKENS]);
                page[position % PAGE_TOKENS] = if poisoned { END } else { *token };
            }
            assert!(!poisoned, "poisoned, with half a page written");
            let end = entry.first_position + entry.tokens.len();
            for end in end + 1 - entry.logits_rows..=end {
                let read = (0..end).map(|at| self.pages[&entry.pages[at / PAGE_TOKENS]][at % PAGE_TOKENS]);
                let next = next(&read.collect::<Vec<_>>()) as usize;
                self.logits.extend((0..VOCABULARY).map(|id| f32::from(id == next)));
            }
        }
        logits_of(&mut self.logits)
    }

    fn draft_rows(&self) -> usize {
        self.draft_rows
    }
}

/// A worker that drafts in steps of fewer than `draft_rows` rows.
pub(super) fn with_drafting_model(worker_limits: WorkerLimits, draft_rows: usize) -> (Harness, Arc<Record>) {
    let record = Arc::<Record>::default();
    let shared_record = Arc::clone(&record);
    let model = move |_| RecordingModel {
        pages: HashMap::new(),
        logits: Vec::new(),
        draft_rows,
        record: Arc::clone(&shared_record),
    };
    (Harness::with(worker_limits, model), record)
}

fn with_recording_model(worker_limits: WorkerLimits) -> (Harness, Arc<Record>) {
    with_drafting_model(worker_limits, 1)
}

const LIMITS: WorkerLimits = WorkerLimits { context_tokens: 1_024, slots: 4, queue: 64, pages: 128 };

pub(super) fn for_account(account: i64, job: Job) -> Job {
    Job { account: AccountId(account), ..job }
}

#[tokio::test]
async fn cached_prompt_is_reused_only_by_its_own_account() {
    let (harness, record) = with_recording_model(LIMITS);
    let computed = &record.computed;
    let prompt: Vec<u32> = (0..200).map(|at| FIRST + at % 20).collect();
    let expected = letters(&expected(&prompt, 10));
    let hit = 12 * PAGE_TOKENS as u32;
    // Each reply is billed, so what it computed may be discounted from then on.
    for (account, cached_tokens) in [(1, 0), (1, hit), (2, 0), (2, hit), (1, hit)] {
        let before = computed.load(Ordering::Relaxed);
        let (text, ended) = collect_reply(harness.submit(for_account(account, job(&prompt, 10)))).await;
        assert_eq!((text.as_str(), ended.cached_tokens), (expected.as_str(), cached_tokens));
        assert_eq!(ended.billed_cached_tokens, cached_tokens);
        // The tenth token is emitted but never fed back.
        assert_eq!(computed.load(Ordering::Relaxed) - before, 200 - cached_tokens as usize + 9);
    }
}

#[tokio::test]
async fn parallel_sequences_with_one_prefix_compute_each_page_once() {
    let (harness, record) = with_recording_model(LIMITS);
    let prompt: Vec<u32> = (0..200).map(|at| FIRST + at % 20).collect();
    let together: Vec<_> = (0..4).map(|_| harness.submit(job(&prompt, 10))).collect();
    let mut cached_tokens = 0;
    for generation in together {
        let (text, ended) = collect_reply(generation).await;
        assert_eq!(text, letters(&expected(&prompt, 10)));
        cached_tokens += ended.cached_tokens as usize;
    }
    assert_eq!(cached_tokens, 3 * 12 * PAGE_TOKENS);
    assert_eq!(record.computed.load(Ordering::Relaxed), 12 * PAGE_TOKENS + 4 * (200 - 12 * PAGE_TOKENS + 9));
}

#[tokio::test]
async fn follow_up_reuses_the_pages_of_the_reply() {
    let (harness, _) = with_recording_model(LIMITS);
    let prompt = vec![FIRST; 100];
    collect_reply(harness.submit(job(&prompt, 100))).await;
    let mut follow_up = prompt.clone();
    follow_up.extend(expected(&prompt, 100));
    let (text, ended) = collect_reply(harness.submit(job(&follow_up, 5))).await;
    assert_eq!((text, ended.cached_tokens), (letters(&expected(&follow_up, 5)), 192));
    assert_eq!(ended.billed_cached_tokens, 192, "the pages of a billed reply are billed with it");
}

/// A caller who hangs up during prefill pays nothing, so the pages are faster for the next request but not cheaper.
#[tokio::test]
async fn pages_of_an_unbilled_request_are_reused_without_discount() {
    let prompt_tokens = 3 * PREFILL_ONLY_TOKENS;
    let worker_limits = WorkerLimits {
        context_tokens: 2 * prompt_tokens,
        pages: 4 * prompt_tokens / PAGE_TOKENS,
        ..super::LIMITS
    };
    let harness = Harness::start(worker_limits);
    let prompt = vec![FIRST; prompt_tokens];
    let generation = harness.submit(job(&prompt, 5));
    harness.allow(1);
    // The first step has filled pages. The second may already wait for its permit.
    while harness.job_queue.kv_pages().cached == 0 {
        tokio::task::yield_now().await;
    }
    generation.cancel();
    harness.allow(1);
    let (_, unbilled) = collect_reply(generation).await;
    assert_eq!((unbilled.reason, unbilled.output_tokens), (StopReason::Cancelled, 0));
    harness.allow(100);
    let (_, first) = collect_reply(harness.submit(job(&prompt, 5))).await;
    assert_eq!((first.cached_tokens, first.billed_cached_tokens), (unbilled.prefilled_tokens, 0));
    let (_, second) = collect_reply(harness.submit(job(&prompt, 5))).await;
    let all_but_the_last_page = (prompt_tokens - PAGE_TOKENS) as u32;
    assert_eq!(second.cached_tokens, all_but_the_last_page);
    assert_eq!(second.billed_cached_tokens, all_but_the_last_page, "the first reply has paid for them");
}

#[tokio::test]
async fn pages_of_a_panicked_step_are_never_reused() {
    let (harness, _) = with_recording_model(LIMITS);
    let prompt = vec![FIRST + 3; 150];
    collect_reply(harness.submit(job(&prompt, 4))).await;
    let mut poisoned = prompt.clone();
    poisoned.push(POISON);
    poisoned.extend([FIRST; 100]);
    assert!(harness.submit(job(&poisoned, 4)).next().await.is_err());
    recovery::served_again(&harness).await;
    for cached_tokens in [0, 144] {
        let (text, ended) = collect_reply(harness.submit(job(&prompt, 4))).await;
        assert_eq!((text, ended.cached_tokens), (letters(&expected(&prompt, 4)), cached_tokens));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Few pages, so that evictions are frequent; few distinct prompts, so that hits are frequent.
    #[test]
    fn cache_hits_evictions_and_cancels_never_change_a_text(
        jobs in proptest::collection::vec((0_i64..3, 0_usize..3, 1_usize..700, 1_u32..120, 0_u8..4), 1..60)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (harness, _) = with_recording_model(WorkerLimits { context_tokens: 1_024, slots: 3, queue: 256, pages: 64 });
        let mut running = Vec::new();
        for (account, family, prompt_tokens, output_tokens, cancel) in jobs {
            let prompt: Vec<u32> =
                (0..prompt_tokens).map(|at| FIRST + if at < 130 { 0 } else { (family * at % 5) as u32 }).collect();
            let generation = harness.submit(for_account(account, job(&prompt, output_tokens)));
            if cancel == 0 {
                generation.cancel();
            }
            running.push((prompt, output_tokens, cancel == 0, generation));
        }
        for (prompt, output_tokens, cancelled, generation) in running {
            let (text, ended) = runtime.block_on(collect_reply(generation));
            prop_assert!(cancelled || ended.output_tokens == output_tokens);
            prop_assert_eq!(text, letters(&expected(&prompt, ended.output_tokens)));
        }
    }
}
