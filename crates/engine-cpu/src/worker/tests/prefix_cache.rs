//! The worker with its prefix cache, on a model whose every token depends on all that its pages hold: a page of the
//! wrong tokens, in the wrong place or not yet written, changes the text.

use super::*;
use crate::kv::PageId;
use crate::limits::PAGE_TOKENS;
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Writes down what it did as it goes.
#[derive(Default)]
pub(super) struct Record {
    pub(super) steps: AtomicUsize,
    /// Tokens computed.
    pub(super) computed: AtomicUsize,
    /// The most tokens that a sequence past its prompt had in one step.
    pub(super) most_at_once: AtomicUsize,
}

pub(super) struct RememberingModel {
    pub(super) pages: HashMap<PageId, [u32; PAGE_TOKENS]>,
    pub(super) logits: Vec<f32>,
    pub(super) free_rows: usize,
    pub(super) record: Arc<Record>,
}

/// What comes after these tokens: what came nine tokens ago, and at one place in four any letter but the poison. All
/// tokens before decide which of them it is.
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

impl StepModel for RememberingModel {
    fn step(&mut self, segments: &[Segment<'_>]) -> Logits<'_> {
        self.logits.clear();
        self.record.steps.fetch_add(1, Ordering::Relaxed);
        let rows: usize = segments.iter().map(|segment| segment.tokens.len()).sum();
        let drafts = segments.iter().any(|segment| segment.logits_rows > 1);
        assert!(!drafts || rows <= self.free_rows, "drafts in a step of {rows} rows");
        for segment in segments {
            self.record.computed.fetch_add(segment.tokens.len(), Ordering::Relaxed);
            if segment.logits_rows > 1 {
                self.record.most_at_once.fetch_max(segment.logits_rows, Ordering::Relaxed);
            }
            let poisoned = segment.tokens.contains(&POISON);
            for (position, token) in (segment.first_position..).zip(segment.tokens) {
                let page =
                    self.pages.entry(segment.pages[position / PAGE_TOKENS]).or_insert([0; PAGE_TOKENS]);
                page[position % PAGE_TOKENS] = if poisoned { END } else { *token };
            }
            assert!(!poisoned, "poisoned, with half a page written");
            let end = segment.first_position + segment.tokens.len();
            for end in end + 1 - segment.logits_rows..=end {
                let read = (0..end).map(|at| self.pages[&segment.pages[at / PAGE_TOKENS]][at % PAGE_TOKENS]);
                let next = next(&read.collect::<Vec<_>>()) as usize;
                self.logits.extend((0..VOCABULARY).map(|id| f32::from(id == next)));
            }
        }
        logits_of(&mut self.logits)
    }

    fn free_rows(&self) -> usize {
        self.free_rows
    }
}

/// A worker that drafts where a step has fewer than `free_rows`.
pub(super) fn drafting(bounds: Bounds, free_rows: usize) -> (Bench, Arc<Record>) {
    let record = Arc::<Record>::default();
    let kept = Arc::clone(&record);
    let model = move |_| RememberingModel {
        pages: HashMap::new(),
        logits: Vec::new(),
        free_rows,
        record: Arc::clone(&kept),
    };
    (Bench::with(bounds, model), record)
}

fn remembering(bounds: Bounds) -> (Bench, Arc<Record>) {
    drafting(bounds, 1)
}

const BOUNDS: Bounds = Bounds { context_tokens: 1_024, slots: 4, queue: 64, pages: 128 };

pub(super) fn of(account: i64, job: Job) -> Job {
    Job { account: AccountId(account), ..job }
}

#[tokio::test]
async fn a_prompt_seen_before_is_not_computed_again_and_other_accounts_gain_nothing() {
    let (bench, record) = remembering(BOUNDS);
    let computed = &record.computed;
    let prompt: Vec<u32> = (0..200).map(|at| FIRST + at % 20).collect();
    let wanted = letters(&expected(&prompt, 10));
    let hit = 12 * PAGE_TOKENS as u32;
    for (account, cached_tokens) in [(1, 0), (1, hit), (2, 0), (2, hit), (1, hit)] {
        let before = computed.load(Ordering::Relaxed);
        let (text, ended) = all(bench.submit(of(account, job(&prompt, 10)))).await;
        assert_eq!((text.as_str(), ended.cached_tokens), (wanted.as_str(), cached_tokens));
        // The tenth token is said and never fed back.
        assert_eq!(computed.load(Ordering::Relaxed) - before, 200 - cached_tokens as usize + 9);
    }
}

#[tokio::test]
async fn sequences_that_begin_alike_and_run_together_compute_each_page_once() {
    let (bench, record) = remembering(BOUNDS);
    let prompt: Vec<u32> = (0..200).map(|at| FIRST + at % 20).collect();
    let together: Vec<_> = (0..4).map(|_| bench.submit(job(&prompt, 10))).collect();
    let mut cached_tokens = 0;
    for generation in together {
        let (text, ended) = all(generation).await;
        assert_eq!(text, letters(&expected(&prompt, 10)));
        cached_tokens += ended.cached_tokens as usize;
    }
    assert_eq!(cached_tokens, 3 * 12 * PAGE_TOKENS);
    assert_eq!(record.computed.load(Ordering::Relaxed), 12 * PAGE_TOKENS + 4 * (200 - 12 * PAGE_TOKENS + 9));
}

#[tokio::test]
async fn a_follow_up_finds_the_pages_of_the_reply_too() {
    let (bench, _) = remembering(BOUNDS);
    let prompt = vec![FIRST; 100];
    all(bench.submit(job(&prompt, 100))).await;
    let mut follow_up = prompt.clone();
    follow_up.extend(expected(&prompt, 100));
    let (text, ended) = all(bench.submit(job(&follow_up, 5))).await;
    assert_eq!((text, ended.cached_tokens), (letters(&expected(&follow_up, 5)), 192));
}

#[tokio::test]
async fn what_a_panicking_step_wrote_is_never_served() {
    let (bench, _) = remembering(BOUNDS);
    let prompt = vec![FIRST + 3; 150];
    all(bench.submit(job(&prompt, 4))).await;
    let mut poisoned = prompt.clone();
    poisoned.push(POISON);
    poisoned.extend([FIRST; 100]);
    assert!(bench.submit(job(&poisoned, 4)).next().await.is_err());
    recovery::served_again(&bench).await;
    for cached_tokens in [0, 144] {
        let (text, ended) = all(bench.submit(job(&prompt, 4))).await;
        assert_eq!((text, ended.cached_tokens), (letters(&expected(&prompt, 4)), cached_tokens));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Few pages, so that they are evicted all the time; few prompts, so that they are found all the time.
    #[test]
    fn no_mix_of_hits_evictions_and_cancels_changes_a_text(
        jobs in proptest::collection::vec((0_i64..3, 0_usize..3, 1_usize..700, 1_u32..120, 0_u8..4), 1..60)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (bench, _) = remembering(Bounds { context_tokens: 1_024, slots: 3, queue: 256, pages: 64 });
        let mut running = Vec::new();
        for (account, family, prompt_tokens, output_tokens, cancel) in jobs {
            let prompt: Vec<u32> =
                (0..prompt_tokens).map(|at| FIRST + if at < 130 { 0 } else { (family * at % 5) as u32 }).collect();
            let generation = bench.submit(of(account, job(&prompt, output_tokens)));
            if cancel == 0 {
                generation.cancel();
            }
            running.push((prompt, output_tokens, cancel == 0, generation));
        }
        for (prompt, output_tokens, cancelled, generation) in running {
            let (text, ended) = runtime.block_on(all(generation));
            prop_assert!(cancelled || ended.output_tokens == output_tokens);
            prop_assert_eq!(text, letters(&expected(&prompt, ended.output_tokens)));
        }
    }
}
