//! Runs a model file's chat template on a thread of its own, with bounded memory, time and stack. Fuel alone bounds none of
//! them: one `~` in a loop doubles a string, comparing nested lists takes no instructions, and a namespace that contains
//! itself is printed without end.

use crate::allocation_budget::{Budget, StopFlag, StopReason, with_budget};
use crate::limits::{
    MAX_TEMPLATE_LEAKED_BYTES, TEMPLATE_MEMORY_BYTES, TEMPLATE_POLL, TEMPLATE_STACK_BYTES, TEMPLATE_TIMEOUT,
};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;

const BUDGET: Budget = Budget { memory_bytes: TEMPLATE_MEMORY_BYTES, stack_bytes: TEMPLATE_STACK_BYTES };
const MAX_POLLS: u128 = TEMPLATE_TIMEOUT.as_millis() / TEMPLATE_POLL.as_millis();

/// Why there is no result. The text continues "chat template …".
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateStopped {
    #[error("needs more than {} MiB of memory", TEMPLATE_MEMORY_BYTES >> 20)]
    OutOfMemory,
    #[error("has values that are nested without end")]
    OutOfStack,
    #[error("takes longer than {} s", TEMPLATE_TIMEOUT.as_secs())]
    TimedOut,
    /// A value that contains itself is never freed.
    #[error("keeps {leaked_bytes} bytes of memory after each prompt")]
    Leaking { leaked_bytes: usize },
    #[error("makes the template engine panic")]
    Panicked,
    #[error("cannot be rendered now: the system starts no more threads")]
    NoThread,
}

/// Waits for the result of compiling. After an error that leaves a thread or memory behind, call it no more with the same
/// template.
pub fn compile<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, TemplateStopped> {
    run(work).map(|(template, _)| template)
}

/// A prompt's scaffolding, or the template's own error.
pub type Rendered = Result<String, String>;

/// Like `compile`, for work that runs many times and must leave nothing but its text behind.
pub fn render(work: impl FnOnce() -> Rendered + Send + 'static) -> Result<Rendered, TemplateStopped> {
    let (rendered, retained_bytes) = run(work)?;
    let (Ok(text) | Err(text)) = &rendered;
    match retained_bytes.saturating_sub(text.capacity()) {
        0..=MAX_TEMPLATE_LEAKED_BYTES => Ok(rendered),
        leaked_bytes => Err(TemplateStopped::Leaking { leaked_bytes }),
    }
}

fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<(T, usize), TemplateStopped> {
    let stop_flag = Arc::new(StopFlag::default());
    let (sender, receiver) = sync_channel(1);
    let flag = Arc::clone(&stop_flag);
    let work = move || {
        // Sending fails only if the caller has given up.
        let _ = sender.send(with_budget(BUDGET, &flag, work));
    };
    let builder = thread::Builder::new().name("chat-template".to_owned()).stack_size(TEMPLATE_STACK_BYTES);
    if builder.spawn(work).is_err() {
        return Err(TemplateStopped::NoThread);
    }
    for _ in 0..MAX_POLLS {
        match receiver.recv_timeout(TEMPLATE_POLL) {
            Ok(outcome) => return Ok(outcome),
            Err(RecvTimeoutError::Disconnected) => return Err(TemplateStopped::Panicked),
            // A stopped thread cannot send; it can only set the flag.
            Err(RecvTimeoutError::Timeout) => match stop_flag.reason() {
                Some(StopReason::Memory) => return Err(TemplateStopped::OutOfMemory),
                Some(StopReason::Stack) => return Err(TemplateStopped::OutOfStack),
                None => {}
            },
        }
    }
    Err(TemplateStopped::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_and_panic_reach_the_caller() {
        assert_eq!(render(|| Ok("text".to_owned())), Ok(Ok("text".to_owned())));
        assert_eq!(compile::<()>(|| panic!("a bug in the template engine")), Err(TemplateStopped::Panicked));
    }
}
