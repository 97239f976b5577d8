//! What can go wrong at one server, and what follows from it: whether another server may do better, whether it speaks
//! against this one, and what the caller's error is.

use chancery_engine::EngineError;
use chancery_http_client::EventError;

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

    /// Whether a server answered at all, as one does that has no list of models, or shows it to others or too rarely. One that
    /// does not take the key (401) takes no job either.
    pub(super) fn is_an_answer_to_a_look(&self) -> bool {
        self.refusal.as_ref().is_some_and(|refusal| match refusal.status {
            401 | 408 => false,
            status => (400..500).contains(&status) || status == 501,
        })
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

impl From<EventError> for Fault {
    fn from(error: EventError) -> Self {
        Self::broken(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_a_list_of_models_answers_all_the_same() {
        for (status, expected) in [
            (403, true),
            (404, true),
            (405, true),
            (429, true),
            (501, true),
            (401, false),
            (500, false),
            (503, false),
        ] {
            let refusal = Some(Refusal { status, ..Refusal::default() });
            let fault = Fault { refusal, ..Fault::broken("no list") };
            assert_eq!(fault.is_an_answer_to_a_look(), expected, "{status}");
        }
        assert!(!Fault::new(Trouble::TimedOut, "nothing came").is_an_answer_to_a_look());
    }
}
