//! The two ends of one running generation. The engine holds the sink, the caller the `Generation`; dropping the
//! `Generation`, or calling `cancel`, asks the engine to stop at its next step.

use crate::{EngineError, StopReason};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// What a running generation tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// New text: whole characters only, never part of a stop string. It is several tokens' worth where the caller asks
    /// more rarely than the engine makes them.
    Text(String),
    /// The last event.
    Ended(Ended),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    pub reason: StopReason,
    /// Every token generated, the end marker not counted.
    pub output_tokens: u32,
    /// How many tokens of the prompt, scaffolding included, did not have to be computed. It never changes the text or
    /// the bill.
    pub cached_tokens: u32,
    /// Where the prompt's count was only the most that it could be: what it truly was.
    pub input_tokens: Option<u32>,
}

/// Makes the two ends. Between them lies the text that the caller has not taken yet: never more than one reply, and a
/// reply is bounded by `max_output_tokens`.
pub fn channel() -> (GenerationSink, Generation) {
    let between = Arc::new(Between {
        waiting: Mutex::new(Waiting {
            text: String::with_capacity(TEXT_ROOM_BYTES),
            outcome: Outcome::Running,
        }),
        changed: Notify::new(),
        cancelled: AtomicBool::new(false),
        cancel_noted: Notify::new(),
    });
    (GenerationSink { between: Arc::clone(&between), ended: false }, Generation { between, spare: None })
}

/// Room for text that waits, in each of the two buffers that go back and forth. The caller makes them, so an engine
/// allocates only for a caller who has fallen this far behind, and then ever more rarely.
const TEXT_ROOM_BYTES: usize = 256;

#[derive(Debug)]
struct Between {
    waiting: Mutex<Waiting>,
    changed: Notify,
    cancelled: AtomicBool,
    cancel_noted: Notify,
}

#[derive(Debug)]
struct Waiting {
    text: String,
    outcome: Outcome,
}

#[derive(Debug)]
enum Outcome {
    Running,
    Known(Result<Ended, EngineError>),
    Told,
}

impl Between {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self, outcome: Result<Ended, EngineError>) {
        self.lock().outcome = Outcome::Known(outcome);
        self.changed.notify_one();
    }
}

/// The caller's end.
#[derive(Debug)]
pub struct Generation {
    between: Arc<Between>,
    /// The buffer that takes the place of the next text. Made outside the lock, so that the engine never waits for it.
    spare: Option<String>,
}

impl Generation {
    /// The next event: all the text since the last one, or the end. After `Ended` or an error there is no further one.
    pub async fn next(&mut self) -> Result<Event, EngineError> {
        loop {
            if let Some(event) = self.take() {
                return event;
            }
            self.between.changed.notified().await;
        }
    }

    /// What there is now.
    fn take(&mut self) -> Option<Result<Event, EngineError>> {
        let spare = self.spare.take().unwrap_or_else(|| String::with_capacity(TEXT_ROOM_BYTES));
        let mut waiting = self.between.lock();
        if !waiting.text.is_empty() {
            return Some(Ok(Event::Text(std::mem::replace(&mut waiting.text, spare))));
        }
        match std::mem::replace(&mut waiting.outcome, Outcome::Told) {
            Outcome::Running => {
                waiting.outcome = Outcome::Running;
                self.spare = Some(spare);
                None
            }
            Outcome::Known(outcome) => Some(outcome.map(Event::Ended)),
            Outcome::Told => Some(Err(EngineError::Failed("the generation has ended already".to_owned()))),
        }
    }

    /// Asks the engine to stop; the `Ended` event still comes, and says how much was generated.
    pub fn cancel(&self) {
        self.between.cancelled.store(true, Ordering::Release);
        self.between.cancel_noted.notify_one();
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// The engine's end.
#[derive(Debug)]
pub struct GenerationSink {
    between: Arc<Between>,
    ended: bool,
}

impl GenerationSink {
    /// Whether the caller no longer wants the rest; to be asked before every step.
    pub fn is_cancelled(&self) -> bool {
        self.between.cancelled.load(Ordering::Acquire)
    }

    /// Waits until the caller no longer wants the rest, for engines that wait for others. One at a time.
    pub async fn cancelled(&self) {
        while !self.is_cancelled() {
            self.between.cancel_noted.notified().await;
        }
    }

    /// Adds to the text that the caller takes next.
    pub fn text(&self, text: &str) {
        self.between.lock().text.push_str(text);
        self.between.changed.notify_one();
    }

    pub fn end(mut self, ended: Ended) {
        self.ended = true;
        self.between.settle(Ok(ended));
    }

    pub fn fail(mut self, error: EngineError) {
        self.ended = true;
        self.between.settle(Err(error));
    }
}

/// An engine that forgets a sink, or panics while it holds one, fails the generation instead of leaving it waiting.
impl Drop for GenerationSink {
    fn drop(&mut self) {
        if !self.ended {
            self.between.settle(Err(EngineError::Failed("the engine stopped in the middle".to_owned())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_dropped_sink_fails_the_generation_instead_of_hanging_it() {
        let (sink, mut generation) = channel();
        sink.text("Dear");
        drop(sink);
        assert_eq!(generation.next().await, Ok(Event::Text("Dear".to_owned())));
        assert!(matches!(generation.next().await, Err(EngineError::Failed(_))));
    }

    #[tokio::test]
    async fn text_that_was_not_taken_comes_in_one_piece_and_before_the_end() {
        let (sink, mut generation) = channel();
        let ended =
            Ended { reason: StopReason::Complete, output_tokens: 3, cached_tokens: 0, input_tokens: None };
        for text in ["Dear", " ", "Ruth"] {
            sink.text(text);
        }
        sink.end(ended);
        assert_eq!(generation.next().await, Ok(Event::Text("Dear Ruth".to_owned())));
        assert_eq!(generation.next().await, Ok(Event::Ended(ended)));
        assert!(matches!(generation.next().await, Err(EngineError::Failed(_))));
    }

    #[tokio::test]
    async fn a_caller_who_waits_is_woken_by_every_text_and_by_the_end() {
        let (sink, mut generation) = channel();
        let caller = tokio::spawn(async move {
            let mut texts = String::new();
            while let Event::Text(text) = generation.next().await.unwrap() {
                texts += &text;
            }
            texts
        });
        for _ in 0..500 {
            sink.text("ab");
            tokio::task::yield_now().await;
        }
        sink.end(Ended {
            reason: StopReason::Complete,
            output_tokens: 3,
            cached_tokens: 0,
            input_tokens: None,
        });
        assert_eq!(caller.await.unwrap(), "ab".repeat(500));
    }

    #[tokio::test]
    async fn dropping_the_generation_cancels_the_work() {
        let (sink, generation) = channel();
        assert!(!sink.is_cancelled());
        drop(generation);
        assert!(sink.is_cancelled());
        sink.cancelled().await;
    }
}
