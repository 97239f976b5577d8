//! The worker with drafts, on the model whose every token depends on all that its pages contain: a wrong draft token
//! that is accepted, or whose keys and values remain in the cache, changes the text.

use super::prefix_cache::{expected, for_account, letters, with_drafting_model};
use super::*;
use proptest::prelude::*;
use std::sync::atomic::Ordering;

const LIMITS: WorkerLimits = WorkerLimits { context_tokens: 1_024, slots: 4, queue: 64, pages: 256 };
const DRAFT_ROWS: usize = 16;

/// The complete expected reply, computed without an engine.
fn reply(
    prompt: &[u32],
    max_output_tokens: u32,
    context_tokens: usize,
    stop: &[String],
) -> (String, Finished) {
    let remaining = (context_tokens - prompt.len()) as u32;
    let tokens = expected(prompt, max_output_tokens.min(remaining));
    let text = letters(&tokens);
    let ended = |reason, output_tokens| Finished {
        reason,
        output_tokens,
        cached_tokens: 0,
        billed_cached_tokens: 0,
        reasoning_tokens: 0,
        prefilled_tokens: prompt.len() as u32,
        input_tokens: None,
    };
    // A letter is a token, and the stop string that is complete first counts.
    let complete = |len: &usize| stop.iter().any(|stop| text[..*len].ends_with(stop.as_str()));
    if let Some(len) = (1..=text.len()).find(complete) {
        let longest = stop.iter().filter(|stop| text[..len].ends_with(stop.as_str())).map(String::len).max();
        let shown = text[..len - longest.unwrap()].to_owned();
        return (shown, ended(StopReason::StopSequence, len as u32));
    }
    let reason =
        if max_output_tokens <= remaining { StopReason::MaxOutputTokens } else { StopReason::ContextLength };
    (text, ended(reason, tokens.len() as u32))
}

#[tokio::test]
async fn repetitive_text_takes_fewer_steps_than_tokens() {
    let (harness, record) = with_drafting_model(LIMITS, DRAFT_ROWS);
    let prompt: Vec<u32> = (0..60).map(|at| FIRST + at % 9).collect();
    let (text, ended) = collect_reply(harness.submit(job(&prompt, 300))).await;
    assert_eq!((text, ended), reply(&prompt, 300, 1_024, &[]));
    let steps = record.steps.load(Ordering::Relaxed);
    assert!(steps < 200, "{steps} steps for 300 tokens");
    assert!(record.max_logits_rows.load(Ordering::Relaxed) > 4);
}

#[tokio::test]
async fn no_drafts_without_free_rows_or_with_sampling() {
    let prompt: Vec<u32> = (0..60).map(|at| FIRST + at % 9).collect();
    let (harness, record) = with_drafting_model(LIMITS, 1);
    collect_reply(harness.submit(job(&prompt, 100))).await;
    assert_eq!(record.max_logits_rows.load(Ordering::Relaxed), 0);

    let (harness, record) = with_drafting_model(LIMITS, DRAFT_ROWS);
    let sampling = Sampling { temperature: 1.0, top_p: 0.9, ..Sampling::GREEDY };
    collect_reply(harness.submit(Job { sampling, ..job(&prompt, 100) })).await;
    assert_eq!(record.max_logits_rows.load(Ordering::Relaxed), 0);
}

/// The model panics if a step with drafts has more rows than are free.
#[tokio::test]
async fn drafts_never_exceed_the_free_rows_of_a_step() {
    let prompt: Vec<u32> = (0..60).map(|at| FIRST + at % 9).collect();
    for jobs in [1, 2, 4, 8] {
        let (harness, record) = with_drafting_model(WorkerLimits { slots: 8, ..LIMITS }, 8);
        let together: Vec<_> = (0..jobs).map(|_| harness.submit(job(&prompt, 100))).collect();
        for generation in together {
            assert_eq!(collect_reply(generation).await.0, letters(&expected(&prompt, 100)));
        }
        assert!(record.max_logits_rows.load(Ordering::Relaxed) <= 8);
    }
}

#[tokio::test]
async fn end_token_within_a_draft_ends_the_reply() {
    struct DraftingModel(ScriptedModel);
    impl ForwardModel for DraftingModel {
        fn step(&mut self, batch: &[BatchEntry<'_>]) -> Logits<'_> {
            self.0.step(batch)
        }

        fn draft_rows(&self) -> usize {
            DRAFT_ROWS
        }
    }
    let harness =
        Harness::with(LIMITS, |permits| DraftingModel(ScriptedModel { permits, logits: Vec::new() }));
    let letter = |letter: u8| FIRST + u32::from(letter - b'a');
    // After `vw` comes `xy`, then the end marker, and both have occurred before.
    let prompt = [b'v', b'w', b'x', b'y'].map(letter).into_iter().chain([END, 7, letter(b'u')]);
    harness.allow(100);
    let (text, ended) = collect_reply(harness.submit(job(&prompt.collect::<Vec<_>>(), 50))).await;
    assert_eq!((text.as_str(), ended.reason, ended.output_tokens), ("vwxy", StopReason::Complete, 4));
}

#[tokio::test]
async fn pages_with_rejected_drafts_are_never_cached() {
    let (harness, record) = with_drafting_model(LIMITS, DRAFT_ROWS);
    // Enough replies that drafts are wrong at every position of a page, its boundaries included.
    for start in 0..40 {
        let prompt: Vec<u32> = (0..60 + start).map(|at| FIRST + (at + start) % 9).collect();
        let (text, _) = collect_reply(harness.submit(job(&prompt, 150))).await;
        let tokens = expected(&prompt, 150);
        assert_eq!(text, letters(&tokens));
        let follow_up: Vec<u32> = prompt.iter().chain(&tokens).copied().chain([FIRST]).collect();
        let (text, ended) = collect_reply(harness.submit(job(&follow_up, 20))).await;
        assert_eq!(text, letters(&expected(&follow_up, 20)));
        assert!(ended.cached_tokens >= 192, "{ended:?}");
    }
    assert!(record.max_logits_rows.load(Ordering::Relaxed) > 4);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Text, stop reason and token count of every reply are the same as without drafts, whatever runs beside it:
    /// prompts that share pages, stop strings, limits, the context's end, cancelled jobs, few pages.
    #[test]
    fn replies_are_identical_with_and_without_drafts(
        jobs in proptest::collection::vec(
            (0_i64..3, 0_u32..3, 1_usize..300, 1_u32..250, 0_u8..6, proptest::collection::vec("[a-i]{1,3}", 0..2)),
            1..30,
        ),
        draft_rows in 1_usize..20,
        slots in 1_usize..6,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let worker_limits = WorkerLimits { context_tokens: 400, slots, queue: 256, pages: 64 };
        let (harness, _) = with_drafting_model(worker_limits, draft_rows);
        let mut running = Vec::new();
        for (account, family, prompt_tokens, output_tokens, cancel, stop) in jobs {
            let prompt: Vec<u32> =
                (0..prompt_tokens as u32).map(|at| FIRST + if at < 70 { at % 9 } else { (family + at) % 7 }).collect();
            let submitted = Job { stop: stop.clone(), ..job(&prompt, output_tokens) };
            let generation = harness.submit(for_account(account, submitted));
            if cancel == 0 {
                generation.cancel();
            }
            running.push((prompt, output_tokens, stop, cancel == 0, generation));
        }
        for (prompt, output_tokens, stop, cancelled, generation) in running {
            let (text, ended) = runtime.block_on(collect_reply(generation));
            let prefilled_tokens = ended.prefilled_tokens + ended.cached_tokens;
            let ended = Finished { cached_tokens: 0, billed_cached_tokens: 0, prefilled_tokens, ..ended };
            if cancelled && ended.reason == StopReason::Cancelled {
                prop_assert_eq!(text, letters(&expected(&prompt, ended.output_tokens)));
            } else {
                prop_assert_eq!((text, ended), reply(&prompt, output_tokens, 400, &stop));
            }
        }
    }
}
