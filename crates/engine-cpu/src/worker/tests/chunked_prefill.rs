//! Long prompts are read beside replies in parts, so that the gap between a reply's tokens is bounded.

use super::*;
use crate::limits::{MAX_MIXED_STEP_TIME, MIXED_PREFILL_TOKENS};
use std::sync::OnceLock;

/// Records the number of tokens of every entry of every step, which takes two milliseconds for each.
struct RecordingModel {
    scripted: ScriptedModel,
    steps: Arc<Mutex<Vec<Vec<usize>>>>,
    clock: Arc<OnceLock<Arc<ManualClock>>>,
}

const TIME_PER_ROW: Duration = Duration::from_millis(2);

impl ForwardModel for RecordingModel {
    fn step(&mut self, batch: &[BatchEntry<'_>]) -> Logits<'_> {
        let tokens: Vec<usize> = batch.iter().map(|entry| entry.tokens.len()).collect();
        let logits = self.scripted.step(batch);
        if let Some(clock) = self.clock.get() {
            clock.advance(time_of(&tokens));
        }
        self.steps.lock().unwrap().push(tokens);
        logits
    }

    fn draft_rows(&self) -> usize {
        16
    }
}

fn time_of(tokens: &[usize]) -> Duration {
    TIME_PER_ROW * u32::try_from(tokens.iter().sum::<usize>()).unwrap()
}

#[tokio::test]
async fn gap_between_tokens_stays_within_the_bound_while_long_prompts_are_read() {
    const PROMPT_TOKENS: usize = 900;
    let limits = WorkerLimits { context_tokens: 1_000, slots: 3, queue: 4, pages: 400 };
    let (steps, clock) = (Arc::new(Mutex::new(Vec::new())), Arc::new(OnceLock::new()));
    let (recorded, shared_clock) = (Arc::clone(&steps), Arc::clone(&clock));
    let harness = Harness::with(limits, move |permits| RecordingModel {
        scripted: ScriptedModel { permits, logits: Vec::new() },
        steps: Arc::clone(&recorded),
        clock: Arc::clone(&shared_clock),
    });
    clock.set(Arc::clone(&harness.clock)).unwrap();
    let mut reply = harness.submit(job(&[FIRST], 20));
    harness.allow(1);
    assert_eq!(reply.next().await.unwrap(), Event::Text("b".to_owned()));
    let prompts = [FIRST + 3, FIRST + 5].map(|token| harness.submit(job(&[token; PROMPT_TOKENS], 1)));
    harness.allow(100);
    let (_, ended) = collect_reply(reply).await;
    assert_eq!(ended.output_tokens, 20);
    for prompt in prompts {
        collect_reply(prompt).await;
    }
    let steps = steps.lock().unwrap();
    // The first entry is the oldest job: the reply, with one token in each of its steps.
    let beside_reply = &steps[..20];
    assert!(beside_reply.iter().all(|tokens| tokens[0] == 1), "{beside_reply:?}");
    let is_mixed = |tokens: &&Vec<usize>| tokens.len() > 1;
    let first = beside_reply.iter().position(|tokens| tokens.len() > 1).unwrap();
    assert_eq!(beside_reply[first].iter().sum::<usize>(), MIXED_PREFILL_TOKENS + 1);
    let later = &beside_reply[first + 1..];
    assert!(later.iter().all(|tokens| time_of(tokens) <= MAX_MIXED_STEP_TIME), "{beside_reply:?}");
    assert!(later.iter().filter(is_mixed).count() >= 17, "prompts progress in every step: {beside_reply:?}");
}
