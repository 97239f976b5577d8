//! The worker with drafts, on the model whose every token depends on all that its pages hold: a draft that is taken
//! though it was wrong, or whose keys and values stay where they do not belong, changes the text.

use super::prefix_cache::{drafting, expected, letters, of};
use super::*;
use proptest::prelude::*;
use std::sync::atomic::Ordering;

const BOUNDS: Bounds = Bounds { context_tokens: 1_024, slots: 4, queue: 64, pages: 256 };
const FREE_ROWS: usize = 16;

/// Everything that a reply is, found without any engine.
fn reply(prompt: &[u32], max_output_tokens: u32, context_tokens: usize, stop: &[String]) -> (String, Ended) {
    let room = (context_tokens - prompt.len()) as u32;
    let tokens = expected(prompt, max_output_tokens.min(room));
    let text = letters(&tokens);
    let ended = |reason, output_tokens| Ended { reason, output_tokens, cached_tokens: 0, input_tokens: None };
    // A letter is a token, and the first stop string to be complete counts.
    let complete = |len: &usize| stop.iter().any(|stop| text[..*len].ends_with(stop.as_str()));
    if let Some(len) = (1..=text.len()).find(complete) {
        let longest = stop.iter().filter(|stop| text[..len].ends_with(stop.as_str())).map(String::len).max();
        let shown = text[..len - longest.unwrap()].to_owned();
        return (shown, ended(StopReason::StopSequence, len as u32));
    }
    let reason =
        if max_output_tokens <= room { StopReason::MaxOutputTokens } else { StopReason::ContextLength };
    (text, ended(reason, tokens.len() as u32))
}

#[tokio::test]
async fn a_text_that_repeats_itself_takes_fewer_steps_than_it_has_tokens() {
    let (bench, record) = drafting(BOUNDS, FREE_ROWS);
    let prompt: Vec<u32> = (0..60).map(|at| FIRST + at % 9).collect();
    let (text, ended) = all(bench.submit(job(&prompt, 300))).await;
    assert_eq!((text, ended), reply(&prompt, 300, 1_024, &[]));
    let steps = record.steps.load(Ordering::Relaxed);
    assert!(steps < 200, "{steps} steps for 300 tokens");
    assert!(record.most_at_once.load(Ordering::Relaxed) > 4);
}

#[tokio::test]
async fn nothing_is_drafted_where_no_row_is_free_or_tokens_are_drawn() {
    let prompt: Vec<u32> = (0..60).map(|at| FIRST + at % 9).collect();
    let (bench, record) = drafting(BOUNDS, 1);
    all(bench.submit(job(&prompt, 100))).await;
    assert_eq!(record.most_at_once.load(Ordering::Relaxed), 0);

    let (bench, record) = drafting(BOUNDS, FREE_ROWS);
    let sampling = Sampling { temperature: 1.0, top_p: 0.9, ..Sampling::GREEDY };
    all(bench.submit(Job { sampling, ..job(&prompt, 100) })).await;
    assert_eq!(record.most_at_once.load(Ordering::Relaxed), 0);
}

/// The model panics where a step with drafts has more rows than are free.
#[tokio::test]
async fn drafts_never_take_a_step_past_its_free_rows() {
    let prompt: Vec<u32> = (0..60).map(|at| FIRST + at % 9).collect();
    for jobs in [1, 2, 4, 8] {
        let (bench, record) = drafting(Bounds { slots: 8, ..BOUNDS }, 8);
        let together: Vec<_> = (0..jobs).map(|_| bench.submit(job(&prompt, 100))).collect();
        for generation in together {
            assert_eq!(all(generation).await.0, letters(&expected(&prompt, 100)));
        }
        assert!(record.most_at_once.load(Ordering::Relaxed) <= 8);
    }
}

#[tokio::test]
async fn the_end_marker_ends_a_reply_in_the_middle_of_what_was_drafted() {
    struct FreeRows(ScriptedModel);
    impl StepModel for FreeRows {
        fn step(&mut self, segments: &[Segment<'_>]) -> Logits<'_> {
            self.0.step(segments)
        }

        fn free_rows(&self) -> usize {
            FREE_ROWS
        }
    }
    let bench = Bench::with(BOUNDS, |permits| FreeRows(ScriptedModel { permits, logits: Vec::new() }));
    let letter = |letter: u8| FIRST + u32::from(letter - b'a');
    // After `vw` comes `xy`, then the end marker, and both have been seen before.
    let prompt = [b'v', b'w', b'x', b'y'].map(letter).into_iter().chain([END, 7, letter(b'u')]);
    bench.allow(100);
    let (text, ended) = all(bench.submit(job(&prompt.collect::<Vec<_>>(), 50))).await;
    assert_eq!((text.as_str(), ended.reason, ended.output_tokens), ("vwxy", StopReason::Complete, 4));
}

#[tokio::test]
async fn pages_with_drafts_that_were_wrong_are_never_found_again() {
    let (bench, record) = drafting(BOUNDS, FREE_ROWS);
    // So many replies that drafts are wrong at every place of a page, its ends included.
    for start in 0..40 {
        let prompt: Vec<u32> = (0..60 + start).map(|at| FIRST + (at + start) % 9).collect();
        let (text, _) = all(bench.submit(job(&prompt, 150))).await;
        let tokens = expected(&prompt, 150);
        assert_eq!(text, letters(&tokens));
        let follow_up: Vec<u32> = prompt.iter().chain(&tokens).copied().chain([FIRST]).collect();
        let (text, ended) = all(bench.submit(job(&follow_up, 20))).await;
        assert_eq!(text, letters(&expected(&follow_up, 20)));
        assert!(ended.cached_tokens >= 192, "{ended:?}");
    }
    assert!(record.most_at_once.load(Ordering::Relaxed) > 4);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Text, reason and count of every reply are what they are without drafts, whatever runs beside it: prompts that
    /// share pages, stop strings, limits, the context's end, jobs that are cancelled, few pages.
    #[test]
    fn no_reply_shows_whether_there_were_drafts(
        jobs in proptest::collection::vec(
            (0_i64..3, 0_u32..3, 1_usize..300, 1_u32..250, 0_u8..6, proptest::collection::vec("[a-i]{1,3}", 0..2)),
            1..30,
        ),
        free_rows in 1_usize..20,
        slots in 1_usize..6,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let bounds = Bounds { context_tokens: 400, slots, queue: 256, pages: 64 };
        let (bench, _) = drafting(bounds, free_rows);
        let mut running = Vec::new();
        for (account, family, prompt_tokens, output_tokens, cancel, stop) in jobs {
            let prompt: Vec<u32> =
                (0..prompt_tokens as u32).map(|at| FIRST + if at < 70 { at % 9 } else { (family + at) % 7 }).collect();
            let submitted = Job { stop: stop.clone(), ..job(&prompt, output_tokens) };
            let generation = bench.submit(of(account, submitted));
            if cancel == 0 {
                generation.cancel();
            }
            running.push((prompt, output_tokens, stop, cancel == 0, generation));
        }
        for (prompt, output_tokens, stop, cancelled, generation) in running {
            let (text, ended) = runtime.block_on(all(generation));
            let ended = Ended { cached_tokens: 0, ..ended };
            if cancelled && ended.reason == StopReason::Cancelled {
                prop_assert_eq!(text, letters(&expected(&prompt, ended.output_tokens)));
            } else {
                prop_assert_eq!((text, ended), reply(&prompt, output_tokens, 400, &stop));
            }
        }
    }
}
