//! What can go wrong at one server, and what follows from it: whether another server may do better, whether it speaks
//! against this one, and what the caller's error is.

use crate::EngineError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) trouble: Trouble,
    /// For the log, never for a caller.
    pub(super) story: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// No connection, or one that ended too early.
    Unreachable,
    /// Nothing came for too long.
    TimedOut,
    /// It has too much to do; after so many seconds it may not, where it says so.
    Busy { retry_after_s: Option<u32> },
    /// It failed, or does not do what it was asked.
    Broken,
    /// It knows the job and does not take it, as no other would.
    Refused,
    /// The prompt does not fit.
    TooLong,
}

impl Fault {
    pub(super) fn new(trouble: Trouble, story: impl Into<String>) -> Self {
        Self { trouble, story: story.into() }
    }

    pub(super) fn broken(story: impl Into<String>) -> Self {
        Self::new(Trouble::Broken, story)
    }

    /// Whether the same job may go well at another server.
    pub(super) fn is_worth_another_try(&self) -> bool {
        !matches!(self.trouble, Trouble::Refused | Trouble::TooLong)
    }

    /// Whether it is the server that failed. One that is busy, or refuses a job, works.
    pub(super) fn speaks_against_the_server(&self) -> bool {
        matches!(self.trouble, Trouble::Unreachable | Trouble::TimedOut | Trouble::Broken)
    }

    pub(super) fn into_engine_error(self, prompt_tokens: u32, context_tokens: u32) -> EngineError {
        match self.trouble {
            Trouble::TimedOut => EngineError::TimedOut,
            Trouble::Busy { retry_after_s } => {
                EngineError::Overloaded { retry_after_s: retry_after_s.unwrap_or(1) }
            }
            Trouble::TooLong => EngineError::InputTooLong { prompt_tokens, context_tokens },
            Trouble::Unreachable | Trouble::Broken | Trouble::Refused => EngineError::Failed(self.story),
        }
    }
}
