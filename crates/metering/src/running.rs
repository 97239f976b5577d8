//! A started request as its caller sees it: the text as it is generated, then the outcome. Dropping it means disconnecting.
//!
//! The work never waits for its reader. Unread text is buffered, at most one reply's worth, and is then read all at once, or in
//! several events if it has many log probabilities. The usage row is written when the work ends, however far the caller has read.

use crate::limits::{EVENT_LOGPROB_TOKENS, LOGPROBS_WAIT};
use crate::{MeterError, Reply};
use chancery_domain::{RateLimitStatus, RequestId, UnixMillis};
use chancery_engine::TokenLogprobs;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinHandle};
use tokio_util::sync::{CancellationToken, DropGuard};

/// What is known when the work begins, before its first token.
#[derive(Clone, Debug)]
pub struct StreamStart {
    /// The request that generates it, and when that was admitted. For a replay, that is an earlier one.
    pub id: RequestId,
    pub at: UnixMillis,
    pub input_tokens: u32,
    /// Whether `input_tokens` is the billed count, as opposed to an upper bound.
    pub is_counted: bool,
    /// Whether the request asked for log probabilities.
    pub has_logprobs: bool,
    /// Whether it was generated and billed before, for an earlier request with the same idempotency key.
    pub is_replay: bool,
    /// The account's rate-limit status including this request's full reservation; `None` for a replay, which reserves nothing.
    pub rate_limit_status: Option<RateLimitStatus>,
}

#[derive(Debug)]
pub enum StreamEvent {
    /// What the model reasoned since the last event, before its answer; never empty.
    Reasoning(String),
    /// What was generated since the last event. The text is empty only where log probabilities come after theirs; there
    /// are log probabilities only if the request asked for them.
    Text { text: String, logprobs: Vec<TokenLogprobs> },
    /// The usage row is durable, or nothing was billed. It comes exactly once, as the last item.
    Ended(Result<Reply, MeterError>),
}

pub struct GenerationStream {
    start: StreamStart,
    pieces: mpsc::UnboundedReceiver<Piece>,
    /// Received, but not returned yet: the next event, and a piece of another kind that follows it.
    next_piece: Option<Piece>,
    following_piece: Option<Piece>,
    outcome: JoinHandle<Result<Reply, MeterError>>,
    _disconnect_guard: DropGuard,
}

/// Part of a reply, in the order in which it was generated.
#[derive(Debug, PartialEq)]
pub(crate) enum Piece {
    Reasoning(String),
    Text { text: String, logprobs: Vec<TokenLogprobs> },
}

impl Piece {
    pub(crate) fn of_text(text: &str) -> Self {
        Self::Text { text: text.to_owned(), logprobs: Vec::new() }
    }

    fn lacks_logprobs(&self) -> bool {
        matches!(self, Self::Text { logprobs, .. } if logprobs.is_empty())
    }

    fn is_full(&self) -> bool {
        matches!(self, Self::Text { logprobs, .. } if logprobs.len() >= EVENT_LOGPROB_TOKENS)
    }

    /// Appends a piece of the same kind, and returns one of the other kind.
    fn append(&mut self, more: Piece) -> Option<Piece> {
        match (self, more) {
            (Self::Reasoning(text), Self::Reasoning(more)) => {
                text.push_str(&more);
                None
            }
            (Self::Text { text, logprobs }, Self::Text { text: more, logprobs: more_logprobs }) => {
                text.push_str(&more);
                logprobs.extend(more_logprobs);
                None
            }
            (_, other) => Some(other),
        }
    }
}

/// The side of the request's work.
pub(crate) struct ResponseSender {
    start_sender: Option<oneshot::Sender<StreamStart>>,
    /// `None` if the caller does not stream.
    pieces: Option<mpsc::UnboundedSender<Piece>>,
    /// Cancelled when the caller disconnects.
    pub(crate) disconnected: CancellationToken,
}

/// The caller's side until the work has begun.
pub(crate) struct PendingResponse {
    start_receiver: oneshot::Receiver<StreamStart>,
    pub(crate) pieces: mpsc::UnboundedReceiver<Piece>,
    disconnect_guard: DropGuard,
}

/// For a caller who streams.
pub(crate) fn response_channel() -> (ResponseSender, PendingResponse) {
    let (start_sender, start_receiver) = oneshot::channel();
    let (piece_sender, pieces) = mpsc::unbounded_channel();
    let (sender, disconnect_guard) = ResponseSender::whole();
    let pending = PendingResponse { start_receiver, pieces, disconnect_guard };
    (ResponseSender { start_sender: Some(start_sender), pieces: Some(piece_sender), ..sender }, pending)
}

impl ResponseSender {
    /// For a caller who only wants the reply, which is the outcome of the request's work. Dropping the guard means
    /// disconnecting.
    pub(crate) fn whole() -> (Self, DropGuard) {
        let disconnected = CancellationToken::new();
        let disconnect_guard = disconnected.clone().drop_guard();
        (Self { start_sender: None, pieces: None, disconnected }, disconnect_guard)
    }

    /// The same caller, who does not stream.
    #[cfg(test)]
    pub(crate) fn not_streaming(self) -> Self {
        Self { start_sender: None, pieces: None, ..self }
    }

    /// For a caller who has disconnected.
    pub(crate) fn disconnected() -> Self {
        let disconnected = CancellationToken::new();
        disconnected.cancel();
        Self { start_sender: None, pieces: None, disconnected }
    }

    pub(crate) fn begin(&mut self, start: StreamStart) {
        if let Some(start_sender) = self.start_sender.take() {
            // Fails if the caller has disconnected.
            let _ = start_sender.send(start);
        }
    }

    /// Whether text is sent before the end.
    pub(crate) fn is_streaming(&self) -> bool {
        self.pieces.is_some()
    }

    pub(crate) fn reasoning(&self, text: &str) {
        if let Some(sender) = &self.pieces {
            let _ = sender.send(Piece::Reasoning(text.to_owned()));
        }
    }

    pub(crate) fn text(&self, text: &str) {
        if let Some(sender) = &self.pieces {
            let _ = sender.send(Piece::of_text(text));
        }
    }

    /// Of the tokens of texts that were sent before.
    pub(crate) fn logprobs(&self, logprobs: &[TokenLogprobs]) {
        let Some(sender) = &self.pieces else { return };
        for part in logprobs.chunks(EVENT_LOGPROB_TOKENS) {
            let _ = sender.send(Piece::Text { text: String::new(), logprobs: part.to_vec() });
        }
    }
}

impl PendingResponse {
    /// Waits for the work to begin, or for the reason why it did not.
    pub(crate) async fn started(
        self,
        work: JoinHandle<Result<Reply, MeterError>>,
    ) -> Result<GenerationStream, MeterError> {
        match self.start_receiver.await {
            Ok(start) => Ok(GenerationStream {
                start,
                pieces: self.pieces,
                next_piece: None,
                following_piece: None,
                outcome: work,
                _disconnect_guard: self.disconnect_guard,
            }),
            Err(_) => Err(match join_outcome(work).await {
                Err(error) => error,
                Ok(_) => MeterError::Internal("generation finished without starting".to_owned()),
            }),
        }
    }
}

impl GenerationStream {
    pub fn start(&self) -> &StreamStart {
        &self.start
    }

    /// Tells whether the work still runs, however far the caller has read.
    pub fn work(&self) -> AbortHandle {
        self.outcome.abort_handle()
    }

    /// Safe to drop while it waits: nothing is lost, and it can be called again.
    pub async fn next(&mut self) -> StreamEvent {
        if self.next_piece.is_none() {
            self.next_piece = match self.following_piece.take() {
                Some(piece) => Some(piece),
                None => self.pieces.recv().await,
            };
        }
        self.append_received();
        let lacks_logprobs = self.start.has_logprobs
            && self.following_piece.is_none()
            && self.next_piece.as_ref().is_some_and(Piece::lacks_logprobs);
        if lacks_logprobs
            && let Ok(Some(more)) = tokio::time::timeout(LOGPROBS_WAIT, self.pieces.recv()).await
        {
            self.append(more);
            self.append_received();
        }
        match self.next_piece.take() {
            Some(Piece::Reasoning(text)) => StreamEvent::Reasoning(text),
            Some(Piece::Text { text, logprobs }) => StreamEvent::Text { text, logprobs },
            None => StreamEvent::Ended(join_outcome(&mut self.outcome).await),
        }
    }

    /// Appends what was already received, as long as it is of one kind and the event is not full.
    fn append_received(&mut self) {
        while self.next_piece.as_ref().is_some_and(|piece| !piece.is_full())
            && self.following_piece.is_none()
            && let Ok(more) = self.pieces.try_recv()
        {
            self.append(more);
        }
    }

    fn append(&mut self, more: Piece) {
        match &mut self.next_piece {
            Some(piece) => self.following_piece = piece.append(more),
            None => self.next_piece = Some(more),
        }
    }
}

async fn join_outcome(
    work: impl Future<Output = Result<Result<Reply, MeterError>, tokio::task::JoinError>>,
) -> Result<Reply, MeterError> {
    work.await.unwrap_or_else(|error| Err(MeterError::Internal(error.to_string())))
}
