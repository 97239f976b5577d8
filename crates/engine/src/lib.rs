//! The engine interface: an engine counts the tokens of a prompt and generates text step by step, until the reply ends
//! or is cancelled. Implementations live in other crates.

mod endpoint_status;
mod generation;
mod logprobs;
mod penalties;
mod repetition;
mod scripted;
mod turn;

pub use chancery_domain::StopReason;
pub use endpoint_status::{EndpointState, EndpointStatus};
pub use generation::{Event, Finished, Generation, GenerationSink, channel};
pub use logprobs::{MAX_TOP_LOGPROBS, TokenLogprob, TokenLogprobs};
pub use penalties::{Dry, Penalties};
pub use repetition::RepetitionDetector;
pub use scripted::ScriptedEngine;
pub use turn::{MAX_TURNS, Role, Turn};

use chancery_domain::AccountId;
use std::num::NonZeroU32;
use std::sync::Arc;

/// One loaded model.
pub trait Engine: Send + Sync + 'static {
    /// Maximum length of prompt and reply together, chat template included.
    fn context_tokens(&self) -> u32;

    /// A prompt whose texts have more bytes than this cannot fit the context, whatever they are. `usize::MAX` if there is no
    /// such bound. It may be too high. It is too low only for texts that are mostly characters which the tokenizer drops.
    fn max_prompt_bytes(&self) -> usize {
        usize::MAX
    }

    /// Renders a conversation with the model's chat template, including the generation prompt, and tokenizes it. Takes
    /// time proportional to the text, so call it off the async threads when the text is long.
    fn prepare(&self, turns: &[Turn]) -> Result<Prompt, EngineError>;

    /// Queues a job and returns immediately: with the event stream, or with an error if the queue is full.
    fn start(&self, job: Job) -> Result<Generation, EngineError>;

    /// How many parameters the model has; `None` if this process does not know.
    fn parameters(&self) -> Option<u64> {
        None
    }

    /// Why no job can start right now, for operators and never for a caller; `None` if jobs can start.
    fn outage(&self) -> Option<String> {
        None
    }

    /// The servers that jobs are sent to; empty if the engine runs them itself.
    fn endpoints(&self) -> Vec<EndpointStatus> {
        Vec::new()
    }
}

/// A prompt ready to run, with the token count that is billed.
#[derive(Clone, Debug)]
pub struct Prompt {
    pub content: PromptContent,
    /// Tokens of every turn's text, each tokenized on its own, excluding scaffolding. An engine that learns the count
    /// only with the reply returns an upper bound here and the actual count in `Finished`.
    pub input_tokens: u32,
}

/// The prompt in the form that its engine takes.
#[derive(Clone, Debug)]
pub enum PromptContent {
    /// Everything the model reads, including the chat template's scaffolding.
    Tokens(Arc<[u32]>),
    /// Turns that an upstream server renders, because it has the chat template. `prompt_tokens` is the context space
    /// that they need beside the reply, scaffolding included; 0 if this process cannot count it.
    Turns { turns: Arc<[Turn]>, prompt_tokens: u32 },
}

impl Prompt {
    pub fn prompt_tokens(&self) -> u32 {
        match &self.content {
            PromptContent::Tokens(ids) => u32::try_from(ids.len()).unwrap_or(u32::MAX),
            PromptContent::Turns { prompt_tokens, .. } => *prompt_tokens,
        }
    }

    /// Tokens that the chat template adds to `input_tokens`, at most. 0 if this process cannot count the prompt.
    pub fn scaffolding_tokens(&self) -> u32 {
        self.prompt_tokens().saturating_sub(self.input_tokens)
    }

    /// Whether `input_tokens` is the actual count rather than an upper bound.
    pub fn is_counted(&self) -> bool {
        !matches!(self.content, PromptContent::Turns { prompt_tokens: 0, .. })
    }

    /// Empty if an upstream server tokenizes the prompt.
    pub fn token_ids(&self) -> &[u32] {
        match &self.content {
            PromptContent::Tokens(ids) => ids,
            PromptContent::Turns { .. } => &[],
        }
    }
}

/// One generation to run.
#[derive(Clone, Debug)]
pub struct Job {
    /// Engines schedule fairly between accounts and never share cached text across them.
    pub account: AccountId,
    pub prompt: Prompt,
    /// At least 1.
    pub max_output_tokens: u32,
    pub sampling: Sampling,
    /// Stop strings: each ends the reply when it appears, and is not part of the reply.
    pub stop: Vec<String>,
    /// Whether a reply that loops ends with `StopReason::Repetition`.
    pub stop_on_repetition: bool,
    /// How many of the most likely tokens to report with every token of the reply; `None` reports no log
    /// probabilities at all.
    pub top_logprobs: Option<u8>,
    /// Whether the text so far is of use before the reply is complete, because it is streamed, or stored if the caller
    /// disconnects. Otherwise an engine may send all text at the end, and a cancelled job may end with tokens but without text.
    pub needs_partial_text: bool,
}

/// How the next token is chosen. Penalties change logits first, which are then divided by the temperature. Filters apply
/// in this order: `top_k` keeps the most likely tokens; `top_p` keeps the smallest set of the most likely ones that
/// reaches this share of the remaining probability; `min_p` keeps those at least `min_p` times as likely as the most
/// likely. The token is sampled from the rest, in proportion to probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 means greedy: always the most likely token.
    pub temperature: f32,
    /// `None` disables the filter.
    pub top_k: Option<NonZeroU32>,
    /// 1 disables the filter.
    pub top_p: f32,
    /// 0 disables the filter.
    pub min_p: f32,
    /// The same seed and the same job sample the same tokens.
    pub seed: u64,
    /// Whether the caller chose the seed. Then other jobs may have the same, also on other nodes.
    pub is_seed_chosen: bool,
    pub penalties: Penalties,
}

impl Sampling {
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_k: None,
        top_p: 1.0,
        min_p: 0.0,
        seed: 0,
        is_seed_chosen: false,
        penalties: Penalties::NONE,
    };
}

fn token_count_suffix(tokens: Option<u32>) -> String {
    tokens.map_or_else(String::new, |tokens| format!(" of {tokens} tokens"))
}

fn reason_suffix(reason: Option<&str>) -> String {
    reason.map_or_else(String::new, |reason| format!(": {reason}"))
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// `prompt_tokens` includes the chat template, and is `None` if the count is unknown.
    #[error("the prompt{} exceeds the model's context length of {context_tokens} tokens", token_count_suffix(*.prompt_tokens))]
    InputTooLong { prompt_tokens: Option<u32>, context_tokens: u32 },
    /// The upstream server rejected the request. The reason, if present, may be shown to the caller.
    #[error("request rejected{}", reason_suffix(.reason.as_deref()))]
    InputRejected { reason: Option<String> },
    /// The model's chat template does not accept these roles in this order. The text is the template's own, for the
    /// log.
    #[error("chat template rejected the conversation: {0}")]
    TurnsRejected(String),
    /// The queue is full, or the job waited in it for too long. Nothing was generated.
    #[error("engine queue full")]
    Overloaded { retry_after_s: u32 },
    /// The engine failed and is being rebuilt; this job had not started.
    #[error("the engine is restarting after a failure")]
    Restarting { retry_after_s: u32 },
    #[error("the engine is shutting down")]
    ShuttingDown,
    #[error("the engine took too long")]
    TimedOut,
    /// The text is for the log, never for a caller.
    #[error("the engine failed: {0}")]
    Failed(String),
}
