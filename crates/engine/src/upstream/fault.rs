//! What can go wrong at one server, and what follows from it: whether another server may do better, whether it speaks
//! against this one, and what the caller's error is.

use crate::EngineError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) trouble: Trouble,
    /// For the log, never for a caller.
    pub(super) story: String,
    /// What a server said that answered with anything but a reply.
    pub(super) refusal: Option<Refusal>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// No connection, or one that ended in the middle of a reply.
    Unreachable,
    /// A connection that ended before the reply's head. Servers close connections that nobody uses, and a job may meet
    /// just that moment.
    Lost,
    /// Nothing came for too long.
    TimedOut,
    /// The time for the whole job is over.
    OutOfTime,
    /// It has too much to do; after so many seconds it may not, where it says so.
    Busy { retry_after_s: Option<u32> },
    /// It failed, or does not do what it was asked.
    Broken,
    /// It ended the reply for a reason that is the job's own, such as a filter of contents.
    Unusable,
    /// It knows the job and does not take it, as no other would.
    Refused,
    /// The prompt does not fit.
    TooLong,
}

/// What can be learnt from an answer that is no reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: u16,
    /// The server's own words, where they are fit for a caller.
    pub(super) reason: Option<String>,
    /// What it counted of the prompt, where it says so.
    pub(super) prompt_tokens: Option<u32>,
    /// Whether it names the option to report usage all along, which not every server knows.
    pub(super) names_running_usage: bool,
}

impl Fault {
    pub(super) fn new(trouble: Trouble, story: impl Into<String>) -> Self {
        Self { trouble, story: story.into(), refusal: None }
    }

    pub(super) fn broken(story: impl Into<String>) -> Self {
        Self::new(Trouble::Broken, story)
    }

    /// Whether the same job may go well at another server.
    pub(super) fn is_worth_another_try(&self) -> bool {
        matches!(
            self.trouble,
            Trouble::Unreachable | Trouble::Lost | Trouble::TimedOut | Trouble::Busy { .. } | Trouble::Broken
        )
    }

    /// Whether it is the server that failed. One that is busy, or refuses a job, works.
    pub(super) fn speaks_against_the_server(&self) -> bool {
        matches!(
            self.trouble,
            Trouble::Unreachable | Trouble::Lost | Trouble::TimedOut | Trouble::OutOfTime | Trouble::Broken
        )
    }

    /// Whether a server answered at all, as one does that has no list of models or shows it too rarely.
    pub(super) fn is_an_answer_to_a_look(&self) -> bool {
        const NO_LIST_BUT_ALIVE: [u16; 3] = [404, 405, 429];
        self.refusal.as_ref().is_some_and(|refusal| NO_LIST_BUT_ALIVE.contains(&refusal.status))
    }

    pub(super) fn into_engine_error(self, context_tokens: u32) -> EngineError {
        let refusal = self.refusal.unwrap_or_default();
        match self.trouble {
            Trouble::TimedOut | Trouble::OutOfTime => EngineError::TimedOut,
            Trouble::Busy { retry_after_s } => {
                EngineError::Overloaded { retry_after_s: retry_after_s.unwrap_or(1) }
            }
            Trouble::TooLong => {
                EngineError::InputTooLong { prompt_tokens: refusal.prompt_tokens, context_tokens }
            }
            Trouble::Refused => EngineError::InputRefused { reason: refusal.reason },
            Trouble::Unreachable | Trouble::Lost | Trouble::Broken | Trouble::Unusable => {
                EngineError::Failed(self.story)
            }
        }
    }
}
