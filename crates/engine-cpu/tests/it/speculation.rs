//! Drafts on real weights: they save steps and never change a reply.

use crate::generation::{collect_reply, job};
use crate::{model_path, references};
use chancery_domain::{AccountId, SystemClock};
use chancery_engine::{Engine, Finished, Job, Sampling};
use chancery_engine_cpu::{CpuEngine, LoadOptions};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A recorder of the counters of the engine loaded under it.
#[derive(Default)]
struct Counters(Mutex<HashMap<String, Arc<AtomicU64>>>);

impl Counters {
    fn value(&self, name: &str) -> u64 {
        self.0.lock().unwrap().get(name).map_or(0, |counter| counter.load(Ordering::Relaxed))
    }
}

impl Recorder for Counters {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let mut counters = self.0.lock().unwrap();
        Counter::from_arc(Arc::clone(counters.entry(key.name().to_owned()).or_default()))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

fn load(draft_rows: usize) -> (CpuEngine, Counters) {
    let counters = Counters::default();
    let options =
        LoadOptions { context_tokens: Some(2_048), draft_rows: Some(draft_rows), ..LoadOptions::default() };
    let engine = metrics::with_local_recorder(&counters, || {
        CpuEngine::load(&model_path(), &options, Arc::new(SystemClock)).unwrap()
    });
    (engine, counters)
}

/// The reply to a rewriting prompt mostly copies this.
const LETTER: &str = "Dear Mr Okafor,\n\nThank you for meeting us on 3 March. We agreed that the invoice of 14 January \
    stays open until the audit is done, that Ruth Adeyemi sends the corrected figures by 20 March, and that the second \
    half of the fee, 4,250 euros, falls due thirty days after that. Please tell us by Friday if you remember it \
    differently.\n\nYours sincerely,\nThe Chancery";

/// Prompts to copy, to change slightly, to go through in order, and all the reference prompts.
fn jobs(engine: &CpuEngine) -> Vec<Job> {
    let mut jobs = vec![
        job(engine, "Repeat the letter word for word.", LETTER, 150),
        job(
            engine,
            "Repeat the letter with every mistake corrected.",
            &LETTER.replace("agreed", "agred"),
            150,
        ),
        job(engine, "List every date in the letter with what happens then.", LETTER, 100),
        // Repeats itself endlessly.
        job(engine, "Translate to French.", "", 200),
        job(engine, "Repeat after me.", "one two three one two three one two three one two", 60),
        Job { stop: vec!["Ruth".to_owned()], ..job(engine, "Repeat the letter word for word.", LETTER, 150) },
    ];
    let references = references();
    jobs.extend(
        references.iter().map(|reference| job(engine, &reference.instructions, &reference.input, 64)),
    );
    let sampled = Sampling { temperature: 0.8, top_p: 0.95, seed: 11, ..Sampling::GREEDY };
    jobs.push(Job { sampling: sampled, ..job(engine, "Repeat the letter word for word.", LETTER, 60) });
    jobs
}

/// The replies, generated one after the other, and their cost: steps, drafted tokens, and accepted ones.
async fn one_by_one(draft_rows: usize) -> (Vec<(String, Finished)>, [u64; 3]) {
    let (engine, counters) = load(draft_rows);
    let mut replies = Vec::new();
    for job in jobs(&engine) {
        replies.push(collect_reply(engine.start(job).unwrap()).await);
    }
    // The counters are final once the thread has ended.
    drop(engine);
    let names = ["steps_total", "drafted_tokens_total", "accepted_draft_tokens_total"];
    (replies, names.map(|name| counters.value(&format!("chancery_engine_{name}"))))
}

#[tokio::test]
async fn replies_are_bit_identical_with_and_without_drafts_and_in_a_batch() {
    let (expected, [plain_steps, drafted, _]) = one_by_one(1).await;
    assert_eq!(drafted, 0);
    for draft_rows in [5, 16] {
        let (replies, [steps, drafted, accepted]) = one_by_one(draft_rows).await;
        println!("{draft_rows} rows: {accepted} of {drafted} drafts right, {steps} steps for {plain_steps}");
        assert_eq!(replies, expected);
        assert!(accepted > 200 && accepted < drafted, "{accepted} of {drafted} drafts were right");
        // Every accepted token saves a step, except that one that completes the stop string yields no further token.
        assert!((plain_steps..=plain_steps + 1).contains(&(steps + accepted)), "{steps} for {plain_steps}");
    }
    replies_with_drafts_are_unchanged_in_a_batch(&expected).await;
}

async fn replies_with_drafts_are_unchanged_in_a_batch(expected: &[(String, Finished)]) {
    let (engine, counters) = load(16);
    let mut jobs = jobs(&engine).into_iter().zip(expected);
    loop {
        // Four at a time, of two accounts, so that drafts run beside other sequences.
        let together: Vec<_> = (0..4).zip(jobs.by_ref()).collect();
        if together.is_empty() {
            break;
        }
        let started: Vec<_> = together
            .into_iter()
            .map(|(number, (job, expected))| {
                (engine.start(Job { account: AccountId(100 + number % 2), ..job }).unwrap(), expected)
            })
            .collect();
        for (generation, (text, ended)) in started {
            let (seen, seen_ended) = collect_reply(generation).await;
            assert_eq!(&seen, text);
            assert_eq!((seen_ended.reason, seen_ended.output_tokens), (ended.reason, ended.output_tokens));
        }
    }
    assert!(counters.value("chancery_engine_accepted_draft_tokens_total") > 200);
}
