//! The two ends of one running generation: the engine holds the sink, the caller holds the `Generation`. Dropping the
//! `Generation`, or calling `cancel`, tells the engine to stop at its next step.
//!
//! An engine that only waits for a server can leave its work to the caller (`Generation::with_work`), whose task then runs it while
//! it waits. A task of its own would be one more to wake, for the start and for every event.

use crate::{EngineError, StopReason, TokenLogprobs};
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// An event of a running generation.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// New reasoning before the answer, as whole characters. It is billed as output, but is no part of the text.
    Reasoning(String),
    /// New text: whole characters only, never part of a stop string. It covers several tokens if the caller polls less
    /// often than the engine generates.
    Text(String),
    /// Log probabilities of the tokens of the answer, if the job asks for them: those of a text follow it, and all of them
    /// precede `Finished`. Reasoning has none.
    Logprobs(Vec<TokenLogprobs>),
    /// The last event.
    Finished(Finished),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    pub reason: StopReason,
    /// All generated tokens, excluding the end-of-sequence token.
    pub output_tokens: u32,
    /// How many of `output_tokens` were reasoning before the answer.
    pub reasoning_tokens: u32,
    /// Prompt tokens, scaffolding included, that came from the prefix cache. Does not affect the text.
    pub cached_tokens: u32,
    /// How many of `cached_tokens`, scaffolding included, were computed or paid for by a request that was billed. Only
    /// these may be billed at the price of cached input.
    pub billed_cached_tokens: u32,
    /// Prompt tokens, scaffolding included, that were computed; at least as many as are known to have been. They cost
    /// work even if the caller disconnects before the first token.
    pub prefilled_tokens: u32,
    /// The actual prompt tokens, if `Prompt::input_tokens` was only an upper bound.
    pub input_tokens: Option<u32>,
}

/// Creates both ends. The text buffered between them is at most one reply, which `max_output_tokens` bounds.
pub fn channel() -> (GenerationSink, Generation) {
    let shared = Arc::new(Shared {
        pending: Mutex::new(Pending {
            earlier: VecDeque::new(),
            channel: Channel::Text,
            text: String::with_capacity(TEXT_BUFFER_BYTES),
            logprobs: Vec::new(),
            outcome: Outcome::Running,
        }),
        notify: Notify::new(),
        cancelled: AtomicBool::new(false),
        cancel_notify: Notify::new(),
    });
    (
        GenerationSink { shared: Arc::clone(&shared), wakes_for_text: true, is_finished: false },
        Generation { shared, spare_buffer: None, work: None },
    )
}

/// Capacity of each of the two text buffers that the ends swap. The caller allocates them, so the engine allocates only
/// when the caller falls this far behind, and then ever more rarely.
const TEXT_BUFFER_BYTES: usize = 256;

#[derive(Debug)]
struct Shared {
    pending: Mutex<Pending>,
    notify: Notify,
    cancelled: AtomicBool,
    cancel_notify: Notify,
}

#[derive(Debug)]
struct Pending {
    /// What came before `text` on the other channel, so that reasoning and text keep their order.
    earlier: VecDeque<(Channel, String)>,
    /// The channel of `text`.
    channel: Channel,
    text: String,
    /// Of tokens whose text came before; returned after all pending text.
    logprobs: Vec<TokenLogprobs>,
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Channel {
    Reasoning,
    Text,
}

impl Channel {
    fn event(self, text: String) -> Event {
        match self {
            Self::Reasoning => Event::Reasoning(text),
            Self::Text => Event::Text(text),
        }
    }
}

impl Pending {
    fn push(&mut self, channel: Channel, text: &str) {
        if channel != self.channel {
            if !self.text.is_empty() {
                let earlier = std::mem::take(&mut self.text);
                self.earlier.push_back((self.channel, earlier));
            }
            self.channel = channel;
        }
        self.text.push_str(text);
    }
}

#[derive(Debug)]
enum Outcome {
    Running,
    Ready(Result<Finished, EngineError>),
    Taken,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_outcome(&self, outcome: Result<Finished, EngineError>) {
        self.lock().outcome = Outcome::Ready(outcome);
        self.notify.notify_one();
    }
}

/// The caller's end.
#[derive(Debug)]
pub struct Generation {
    shared: Arc<Shared>,
    /// Replaces the buffer of the next text. Allocated outside the lock, so that the engine never waits for it.
    spare_buffer: Option<String>,
    /// The engine's work, as long as it runs here.
    work: Option<Work>,
}

/// An engine's work that has not ended.
struct Work {
    /// Never locked: as the only one who has it, the caller needs no lock, but a `Generation` may be referenced from other threads.
    future: Mutex<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Where it continues once its caller stops waiting.
    runtime: Handle,
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work").finish_non_exhaustive()
    }
}

impl Work {
    /// Returns whether it has ended. A panic ends it too, as it would end a task: the sink reports that nothing follows.
    fn poll(&mut self, context: &mut Context<'_>) -> bool {
        // What panicked is dropped and never polled again, so nothing observes its half-changed state.
        let future = self.future.get_mut().unwrap_or_else(PoisonError::into_inner);
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context)));
        polled.map_or(true, |polled| polled.is_ready())
    }
}

impl Generation {
    /// Runs the engine's work wherever the caller waits for the next event. The work owns the sink. What is left of it after the last
    /// event, or when the generation is dropped, becomes a task of the runtime.
    #[must_use]
    pub fn with_work(mut self, runtime: Handle, work: impl Future<Output = ()> + Send + 'static) -> Self {
        self.work = Some(Work { future: Mutex::new(Box::pin(work)), runtime });
        self
    }

    /// Runs the work, if there is any, in a task of its runtime from now on: for a caller who does not wait for events all the time.
    #[must_use]
    pub fn with_work_in_a_task(mut self) -> Self {
        self.spawn_work();
        self
    }

    fn spawn_work(&mut self) {
        if let Some(Work { future, runtime }) = self.work.take() {
            runtime.spawn(future.into_inner().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Returns all text since the last event, or the end. Reasoning and text never share an event. No event follows `Finished` or an error.
    pub async fn next(&mut self) -> Result<Event, EngineError> {
        loop {
            if let Some(event) = self.take() {
                return event;
            }
            if self.work.is_some() {
                return poll_fn(|context| self.poll_work(context)).await;
            }
            self.shared.notify.notified().await;
        }
    }

    fn poll_work(&mut self, context: &mut Context<'_>) -> Poll<Result<Event, EngineError>> {
        if self.work.as_mut().is_none_or(|work| work.poll(context)) {
            self.work = None;
        }
        // All events come from the work, so there is nothing else to wait for.
        self.take().map_or(Poll::Pending, Poll::Ready)
    }

    /// Returns the pending event without waiting.
    fn take(&mut self) -> Option<Result<Event, EngineError>> {
        let spare_buffer =
            self.spare_buffer.take().unwrap_or_else(|| String::with_capacity(TEXT_BUFFER_BYTES));
        let mut pending = self.shared.lock();
        if let Some((channel, text)) = pending.earlier.pop_front() {
            self.spare_buffer = Some(spare_buffer);
            return Some(Ok(channel.event(text)));
        }
        if !pending.text.is_empty() {
            let text = std::mem::replace(&mut pending.text, spare_buffer);
            return Some(Ok(pending.channel.event(text)));
        }
        if !pending.logprobs.is_empty() {
            self.spare_buffer = Some(spare_buffer);
            return Some(Ok(Event::Logprobs(std::mem::take(&mut pending.logprobs))));
        }
        match std::mem::replace(&mut pending.outcome, Outcome::Taken) {
            Outcome::Running => {
                pending.outcome = Outcome::Running;
                self.spare_buffer = Some(spare_buffer);
                None
            }
            Outcome::Ready(outcome) => Some(outcome.map(Event::Finished)),
            Outcome::Taken => Some(Err(EngineError::Failed("generation already finished".to_owned()))),
        }
    }

    /// Tells the engine to stop. The `Finished` event still arrives, with the number of tokens generated.
    pub fn cancel(&self) {
        self.shared.cancelled.store(true, Ordering::Release);
        self.shared.cancel_notify.notify_one();
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.cancel();
        self.spawn_work();
    }
}

/// The engine's end.
#[derive(Debug)]
pub struct GenerationSink {
    shared: Arc<Shared>,
    wakes_for_text: bool,
    is_finished: bool,
}

impl GenerationSink {
    /// If `wakes_for_text` is false, the caller is woken by the end only: each wake-up takes a core from the engine's
    /// threads, and a caller who does not need partial text has no use for it. Text can still be taken at any time.
    #[must_use]
    pub fn with_wakes_for_text(mut self, wakes_for_text: bool) -> Self {
        self.wakes_for_text = wakes_for_text;
        self
    }

    /// Whether the caller cancelled; engines check this before every step.
    pub fn is_cancelled(&self) -> bool {
        self.shared.cancelled.load(Ordering::Acquire)
    }

    /// Waits until the caller cancels, for engines that wait on I/O. Supports one waiter at a time.
    pub async fn cancelled(&self) {
        while !self.is_cancelled() {
            self.shared.cancel_notify.notified().await;
        }
    }

    /// Appends to the text that the caller takes next.
    pub fn text(&self, text: &str) {
        self.push(Channel::Text, text);
    }

    /// Appends to the reasoning that the caller takes next.
    pub fn reasoning(&self, text: &str) {
        self.push(Channel::Reasoning, text);
    }

    /// Appends log probabilities that the caller takes after the text so far.
    pub fn logprobs(&self, logprobs: impl IntoIterator<Item = TokenLogprobs>) {
        self.shared.lock().logprobs.extend(logprobs);
        self.wake_for_text();
    }

    fn push(&self, channel: Channel, text: &str) {
        self.shared.lock().push(channel, text);
        self.wake_for_text();
    }

    fn wake_for_text(&self) {
        if self.wakes_for_text {
            self.shared.notify.notify_one();
        }
    }

    pub fn end(mut self, finished: Finished) {
        self.is_finished = true;
        self.shared.set_outcome(Ok(finished));
    }

    pub fn fail(mut self, error: EngineError) {
        self.is_finished = true;
        self.shared.set_outcome(Err(error));
    }
}

/// An engine that drops a sink, or panics while holding one, fails the generation instead of leaving the caller
/// waiting.
impl Drop for GenerationSink {
    fn drop(&mut self) {
        if !self.is_finished {
            self.shared.set_outcome(Err(EngineError::Failed("engine dropped the generation".to_owned())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TokenLogprob;

    #[tokio::test]
    async fn dropped_sink_fails_the_generation() {
        let (sink, mut generation) = channel();
        sink.text("Dear");
        drop(sink);
        assert_eq!(generation.next().await, Ok(Event::Text("Dear".to_owned())));
        assert!(matches!(generation.next().await, Err(EngineError::Failed(_))));
    }

    #[tokio::test]
    async fn unread_text_is_joined_and_precedes_the_end() {
        let (sink, mut generation) = channel();
        let finished = Finished {
            reason: StopReason::Complete,
            output_tokens: 3,
            cached_tokens: 0,
            billed_cached_tokens: 0,
            reasoning_tokens: 0,
            prefilled_tokens: 0,
            input_tokens: None,
        };
        for text in ["Dear", " ", "Ruth"] {
            sink.text(text);
        }
        sink.end(finished);
        assert_eq!(generation.next().await, Ok(Event::Text("Dear Ruth".to_owned())));
        assert_eq!(generation.next().await, Ok(Event::Finished(finished)));
        assert!(matches!(generation.next().await, Err(EngineError::Failed(_))));
    }

    #[tokio::test]
    async fn unread_reasoning_and_text_keep_their_order() {
        let (sink, mut generation) = channel();
        sink.reasoning("Whom");
        sink.reasoning("?");
        sink.text("Dear");
        sink.text(" Ruth");
        sink.reasoning("Done.");
        drop(sink);
        for expected in [
            Event::Reasoning("Whom?".to_owned()),
            Event::Text("Dear Ruth".to_owned()),
            Event::Reasoning("Done.".to_owned()),
        ] {
            assert_eq!(generation.next().await, Ok(expected));
        }
        assert!(matches!(generation.next().await, Err(EngineError::Failed(_))));
    }

    #[tokio::test]
    async fn logprobs_follow_the_text_so_far_and_precede_the_end() {
        let token = TokenLogprob { bytes: b"Dear".to_vec(), logprob: -0.5 };
        let logprobs = TokenLogprobs { token: token.clone(), top: vec![token] };
        let (sink, mut generation) = channel();
        sink.logprobs([logprobs.clone()]);
        sink.text("Dear");
        sink.logprobs([logprobs.clone()]);
        drop(sink);
        assert_eq!(generation.next().await, Ok(Event::Text("Dear".to_owned())));
        assert_eq!(generation.next().await, Ok(Event::Logprobs(vec![logprobs.clone(), logprobs])));
        assert!(matches!(generation.next().await, Err(EngineError::Failed(_))));
    }

    #[tokio::test]
    async fn caller_without_need_for_partial_text_is_woken_by_the_end_only() {
        let (sink, mut generation) = channel();
        let sink = sink.with_wakes_for_text(false);
        let caller = tokio::spawn(async move { generation.next().await });
        for text in ["Dear", " ", "Ruth"] {
            tokio::task::yield_now().await;
            sink.text(text);
        }
        drop(sink);
        assert_eq!(caller.await.unwrap(), Ok(Event::Text("Dear Ruth".to_owned())), "in one piece");
    }

    #[tokio::test]
    async fn waiting_caller_is_woken_by_text_and_by_the_end() {
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
        sink.end(FINISHED);
        assert_eq!(caller.await.unwrap(), "ab".repeat(500));
    }

    const FINISHED: Finished = Finished {
        reason: StopReason::Complete,
        output_tokens: 3,
        cached_tokens: 0,
        billed_cached_tokens: 0,
        reasoning_tokens: 0,
        prefilled_tokens: 0,
        input_tokens: None,
    };

    #[tokio::test]
    async fn work_runs_where_its_caller_waits_and_continues_after_the_last_event() {
        let (sink, generation) = channel();
        let (ended, has_ended) = tokio::sync::oneshot::channel();
        let mut generation = generation.with_work(Handle::current(), async move {
            sink.text("Dear");
            tokio::task::yield_now().await;
            sink.text(" Ruth");
            sink.end(FINISHED);
            tokio::task::yield_now().await;
            ended.send(()).unwrap();
        });
        assert_eq!(generation.next().await, Ok(Event::Text("Dear".to_owned())));
        assert_eq!(generation.next().await, Ok(Event::Text(" Ruth".to_owned())));
        assert_eq!(generation.next().await, Ok(Event::Finished(FINISHED)));
        drop(generation);
        has_ended.await.unwrap();
    }

    #[tokio::test]
    async fn dropping_the_generation_cancels_its_work() {
        let (sink, generation) = channel();
        let (cancelled, is_cancelled) = tokio::sync::oneshot::channel();
        let generation = generation.with_work(Handle::current(), async move {
            sink.cancelled().await;
            cancelled.send(()).unwrap();
        });
        drop(generation);
        is_cancelled.await.unwrap();
    }

    #[test]
    fn work_is_dropped_with_its_generation_once_its_runtime_has_ended() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (sink, generation) = channel();
        let shared = Arc::clone(&generation.shared);
        let generation =
            generation.with_work(runtime.handle().clone(), async move { sink.cancelled().await });
        drop(runtime);
        drop(generation);
        assert_eq!(Arc::strong_count(&shared), 1);
    }

    #[tokio::test]
    async fn work_that_panics_fails_the_generation() {
        let (sink, generation) = channel();
        let mut generation = generation.with_work(Handle::current(), async move {
            sink.text("Dear");
            tokio::task::yield_now().await;
            panic!("a bug in an engine");
        });
        assert_eq!(generation.next().await, Ok(Event::Text("Dear".to_owned())));
        assert!(matches!(generation.next().await, Err(EngineError::Failed(_))));
    }

    #[tokio::test]
    async fn dropping_the_generation_cancels_the_sink() {
        let (sink, generation) = channel();
        assert!(!sink.is_cancelled());
        drop(generation);
        assert!(sink.is_cancelled());
        sink.cancelled().await;
    }
}
