//! Penalties and the end of loops, whatever else runs in the batch and however many tokens are drafted.

use super::allocations::SteadyModel;
use super::prefix_cache::{expected, letters, with_drafting_model};
use super::*;
use chancery_engine::{Dry, Penalties};
use std::sync::atomic::Ordering;

const LIMITS: WorkerLimits = WorkerLimits { context_tokens: 1_024, slots: 4, queue: 64, pages: 256 };
const DRAFT_ROWS: usize = 16;
/// The period of `SteadyModel`'s text, and how many copies of it are a loop.
const LOOP_TOKENS: u32 = 24;
const LOOP_COPIES: u32 = 6;

fn steady(draft_rows: usize) -> Harness {
    Harness::with(LIMITS, move |_| SteadyModel { logits: Vec::new(), draft_rows })
}

#[tokio::test]
async fn looping_reply_ends_only_if_the_job_asks_for_it() {
    for draft_rows in [1, DRAFT_ROWS] {
        let harness = steady(draft_rows);
        let plain = job(&[FIRST], 400);
        let (whole, ended) = collect_reply(harness.submit(plain.clone())).await;
        assert_eq!((ended.reason, ended.output_tokens), (StopReason::MaxOutputTokens, 400));

        let asking = Job { stop_on_repetition: true, ..plain };
        let (text, ended) = collect_reply(harness.submit(asking)).await;
        let output_tokens = LOOP_COPIES * LOOP_TOKENS;
        assert_eq!((ended.reason, ended.output_tokens), (StopReason::Repetition, output_tokens));
        // What was generated until then is in the reply, and is billed.
        assert_eq!(text, whole[..output_tokens as usize]);
    }
}

#[tokio::test]
async fn stop_string_that_completes_with_the_loop_wins() {
    let harness = steady(1);
    let asking = Job { stop_on_repetition: true, ..job(&[FIRST], 400) };
    let (loop_text, _) = collect_reply(harness.submit(asking.clone())).await;
    let (text, ended) = collect_reply(harness.submit(Job { stop: vec![loop_text], ..asking })).await;
    assert_eq!((text.as_str(), ended.reason), ("", StopReason::StopSequence));
}

#[tokio::test]
async fn dry_breaks_a_loop_that_greedy_text_is_in() {
    let harness = steady(DRAFT_ROWS);
    let dry = Dry { multiplier: 2.0, base: 1.75, allowed_length: 2 };
    let sampling = Sampling { penalties: Penalties { dry, ..Penalties::NONE }, ..Sampling::GREEDY };
    let asking = Job { sampling, stop_on_repetition: true, ..job(&[FIRST], 400) };
    let (text, ended) = collect_reply(harness.submit(asking)).await;
    // The penalty grows with the repeated sequence, until the end marker is likelier.
    assert_eq!(ended.reason, StopReason::Complete);
    assert!(text.ends_with("xabcde"), "{text}");
}

/// A negative presence penalty favours what the reply has, so its first letter follows itself. A drafted row that saw the
/// penalties of the tokens before the draft would choose otherwise.
#[tokio::test]
async fn penalised_text_is_the_same_alone_in_a_batch_and_with_free_rows_for_drafts() {
    let prompt: Vec<u32> = (0..60).map(|at| FIRST + at % 9).collect();
    let penalties = Penalties { presence: -2.0, ..Penalties::NONE };
    let penalised = Job { sampling: Sampling { penalties, ..Sampling::GREEDY }, ..job(&prompt, 50) };
    let text = letters(&expected(&prompt, 1)).repeat(50);
    for draft_rows in [1, DRAFT_ROWS] {
        let (harness, record) = with_drafting_model(LIMITS, draft_rows);
        assert_eq!(collect_reply(harness.submit(penalised.clone())).await.0, text);
        assert_eq!(record.max_logits_rows.load(Ordering::Relaxed), 0, "penalised tokens are not drafted");

        let together =
            [penalised.clone(), job(&prompt, 100), penalised.clone()].map(|job| harness.submit(job));
        let [first, plain, second] = together;
        assert_eq!(collect_reply(first).await.0, text);
        assert_eq!(
            collect_reply(plain).await.0,
            letters(&expected(&prompt, 100)),
            "others are not penalised"
        );
        assert_eq!(collect_reply(second).await.0, text);
    }
}
