//! A request whose work has begun, as its caller sees it: the text as it comes, then how it ended. Dropping it is
//! hanging up.
//!
//! The work never waits for its reader. Text that is not taken piles up, at most one reply's worth, and is then taken
//! all at once; the usage row is written when the work ends, whether or not anybody has read so far.

use crate::{MeterError, Reply};
use chancery_domain::{RateLimitStatus, RequestId, UnixMillis};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

/// What is known when the work begins, before its first token.
#[derive(Clone, Debug)]
pub struct Beginning {
    /// The request that generates it, and when that was admitted. For a replay, that is an earlier one.
    pub id: RequestId,
    pub at: UnixMillis,
    pub input_tokens: u32,
    /// Whether that is the count that is billed, and not the most that it can be.
    pub is_counted: bool,
    /// Whether it was generated and billed before, for an earlier request with the same idempotency key.
    pub is_replay: bool,
    /// Where the account stands with everything reserved that this request may use; None where nothing was, for a
    /// replay.
    pub rate_limit_status: Option<RateLimitStatus>,
}

#[derive(Debug)]
pub enum Progress {
    /// What was generated since the last time; never empty.
    Text(String),
    /// The usage row is durable, or nothing was billed. It comes once, and nothing comes after it.
    Ended(Result<Reply, MeterError>),
}

pub struct Running {
    beginning: Beginning,
    text: mpsc::UnboundedReceiver<String>,
    outcome: JoinHandle<Result<Reply, MeterError>>,
    _hang_up: DropGuard,
}

/// The work's side of it.
pub(crate) struct Reporter {
    began: Option<oneshot::Sender<Beginning>>,
    /// None where nobody wants the text before the end.
    text: Option<mpsc::UnboundedSender<String>>,
    /// Set when the caller hangs up.
    pub(crate) hung_up: CancellationToken,
}

/// Whether the caller wants the text as it comes, or only the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wants {
    Text,
    Reply,
}

/// The caller's side until the work has begun.
pub(crate) struct Awaited {
    began: oneshot::Receiver<Beginning>,
    pub(crate) text: mpsc::UnboundedReceiver<String>,
    hang_up: DropGuard,
}

pub(crate) fn reporting(wants: Wants) -> (Reporter, Awaited) {
    let (say_begun, began) = oneshot::channel();
    let (say_text, text) = mpsc::unbounded_channel();
    let hung_up = CancellationToken::new();
    let awaited = Awaited { began, text, hang_up: hung_up.clone().drop_guard() };
    let text = (wants == Wants::Text).then_some(say_text);
    (Reporter { began: Some(say_begun), text, hung_up }, awaited)
}

impl Reporter {
    /// To a caller who has hung up.
    pub(crate) fn absent() -> Self {
        let hung_up = CancellationToken::new();
        hung_up.cancel();
        Self { began: None, text: None, hung_up }
    }

    pub(crate) fn begin(&mut self, beginning: Beginning) {
        if let Some(began) = self.began.take() {
            // Nobody listens any more where the caller has hung up.
            let _ = began.send(beginning);
        }
    }

    /// Whether text leaves before the end.
    pub(crate) fn streams(&self) -> bool {
        self.text.is_some()
    }

    pub(crate) fn text(&self, text: &str) {
        if let Some(sender) = &self.text {
            let _ = sender.send(text.to_owned());
        }
    }
}

impl Awaited {
    /// Waits for the work to begin, or for the reason why it did not.
    pub(crate) async fn beginning_of(
        self,
        work: JoinHandle<Result<Reply, MeterError>>,
    ) -> Result<Running, MeterError> {
        match self.began.await {
            Ok(beginning) => {
                Ok(Running { beginning, text: self.text, outcome: work, _hang_up: self.hang_up })
            }
            Err(_) => Err(match outcome_of(work).await {
                Err(error) => error,
                Ok(_) => MeterError::Internal("work ended well without having begun".to_owned()),
            }),
        }
    }
}

impl Running {
    pub fn beginning(&self) -> &Beginning {
        &self.beginning
    }

    /// Safe to drop while it waits: nothing is lost, and it can be called again.
    pub async fn next(&mut self) -> Progress {
        if let Some(mut text) = self.text.recv().await {
            while let Ok(more) = self.text.try_recv() {
                text.push_str(&more);
            }
            return Progress::Text(text);
        }
        Progress::Ended(outcome_of(&mut self.outcome).await)
    }

    /// The whole reply.
    pub async fn reply(mut self) -> Result<Reply, MeterError> {
        loop {
            if let Progress::Ended(outcome) = self.next().await {
                return outcome;
            }
        }
    }
}

async fn outcome_of(
    work: impl Future<Output = Result<Result<Reply, MeterError>, tokio::task::JoinError>>,
) -> Result<Reply, MeterError> {
    work.await.unwrap_or_else(|error| Err(MeterError::Internal(error.to_string())))
}
