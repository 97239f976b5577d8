//! Long prompts are read beside replies in parts, so that the gap between a reply's tokens is bounded.

use super::*;
use crate::limits::max_rows_between_tokens;

/// Records the number of tokens of every entry of every step.
struct RecordingModel {
    scripted: ScriptedModel,
    steps: Arc<Mutex<Vec<Vec<usize>>>>,
}

impl ForwardModel for RecordingModel {
    fn step(&mut self, batch: &[BatchEntry<'_>]) -> Logits<'_> {
        self.steps.lock().unwrap().push(batch.iter().map(|entry| entry.tokens.len()).collect());
        self.scripted.step(batch)
    }

    fn draft_rows(&self) -> usize {
        16
    }
}

#[tokio::test]
async fn gap_between_tokens_is_one_step_of_bounded_rows_while_long_prompts_are_read() {
    const PROMPT_TOKENS: usize = 900;
    let limits = WorkerLimits { context_tokens: 1_000, slots: 3, queue: 4, pages: 400 };
    let steps = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&steps);
    let harness = Harness::with(limits, move |permits| RecordingModel {
        scripted: ScriptedModel { permits, logits: Vec::new() },
        steps: Arc::clone(&recorded),
    });
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
    let rows = beside_reply.iter().map(|tokens| tokens.iter().sum::<usize>());
    assert_eq!(rows.clone().max(), Some(max_rows_between_tokens(1)), "{beside_reply:?}");
    assert!(rows.filter(|rows| *rows > 1).count() >= 18, "prompts progress in every step: {beside_reply:?}");
}
