//! The two ends of one running generation. The engine holds the sink, the caller the `Generation`; dropping the
//! `Generation`, or calling `cancel`, asks the engine to stop at its next step.

use crate::{EngineError, StopReason};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::mpsc;

/// What a running generation tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// New text: whole characters only, never part of a stop string. It may be several tokens' worth.
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
}

/// Makes the two ends. The channel has no bound of its own: it never holds more than one reply, and a reply is
/// bounded by `max_output_tokens`.
pub fn channel() -> (GenerationSink, Generation) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let cancelled = Arc::new(AtomicBool::new(false));
    (
        GenerationSink { sender, cancelled: Arc::clone(&cancelled), ended: false },
        Generation { receiver, cancelled },
    )
}

/// The caller's end.
#[derive(Debug)]
pub struct Generation {
    receiver: mpsc::UnboundedReceiver<Result<Event, EngineError>>,
    cancelled: Arc<AtomicBool>,
}

impl Generation {
    /// The next event. After `Ended` or an error there is no further one.
    pub async fn next(&mut self) -> Result<Event, EngineError> {
        match self.receiver.recv().await {
            Some(event) => event,
            None => {
                Err(EngineError::Failed("the engine dropped the generation without ending it".to_owned()))
            }
        }
    }

    /// Asks the engine to stop; the `Ended` event still comes, and says how much was generated.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
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
    sender: mpsc::UnboundedSender<Result<Event, EngineError>>,
    cancelled: Arc<AtomicBool>,
    ended: bool,
}

impl GenerationSink {
    /// Whether the caller no longer wants the rest; to be asked before every step.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    pub fn text(&self, text: String) {
        // A caller that is gone has cancelled; the engine sees that at its next step.
        let _ = self.sender.send(Ok(Event::Text(text)));
    }

    pub fn end(mut self, ended: Ended) {
        self.ended = true;
        let _ = self.sender.send(Ok(Event::Ended(ended)));
    }

    pub fn fail(mut self, error: EngineError) {
        self.ended = true;
        let _ = self.sender.send(Err(error));
    }
}

/// An engine that forgets a sink, or panics while it holds one, fails the generation instead of leaving it waiting.
impl Drop for GenerationSink {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.sender.send(Err(EngineError::Failed("the engine stopped in the middle".to_owned())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_dropped_sink_fails_the_generation_instead_of_hanging_it() {
        let (sink, mut generation) = channel();
        sink.text("Dear".to_owned());
        drop(sink);
        assert_eq!(generation.next().await, Ok(Event::Text("Dear".to_owned())));
        assert!(matches!(generation.next().await, Err(EngineError::Failed(_))));
    }

    #[tokio::test]
    async fn dropping_the_generation_cancels_the_work() {
        let (sink, generation) = channel();
        assert!(!sink.is_cancelled());
        drop(generation);
        assert!(sink.is_cancelled());
    }
}
