//! What an engine is to the rest of Chancery: something that counts a prompt exactly and generates text from it, step
//! by step, until it ends or is told to stop. How it does so is the business of the crates that implement it.

mod endpoint_status;
mod generation;
mod scripted;
mod turn;

pub use endpoint_status::{EndpointState, EndpointStatus};
pub use generation::{Ended, Event, Generation, GenerationSink, channel};
pub use scripted::ScriptedEngine;
pub use turn::{MAX_TURNS, Role, Turn};

use chancery_domain::AccountId;
use std::num::NonZeroU32;
use std::sync::Arc;

/// One loaded model.
pub trait Engine: Send + Sync + 'static {
    /// The longest prompt and reply together, template included.
    fn context_tokens(&self) -> u32;

    /// Renders a conversation by the model's chat template, for the model to answer, and tokenizes it. It takes time in
    /// proportion to the text, so call it off the async threads when the text is long.
    fn prepare(&self, turns: &[Turn]) -> Result<Prompt, EngineError>;

    /// Queues a job. It returns at once: with the events to come, or with a refusal when the queue is full.
    fn start(&self, job: Job) -> Result<Generation, EngineError>;

    /// Why no job can be started at the moment, for operators and never for a caller; `None` when jobs can.
    fn outage(&self) -> Option<String> {
        None
    }

    /// The servers it hands its jobs to; none where it runs them itself.
    fn endpoints(&self) -> Vec<EndpointStatus> {
        Vec::new()
    }
}

/// A prompt ready to run, with the count that is billed.
#[derive(Clone, Debug)]
pub struct Prompt {
    pub form: PromptForm,
    /// The tokens of every turn's text, each counted on its own, scaffolding not counted. An engine that learns the count
    /// only with the reply gives the most that it can be here, and the true one with `Ended`.
    pub input_tokens: u32,
}

/// A prompt as its engine takes it.
#[derive(Clone, Debug)]
pub enum PromptForm {
    /// Everything the model reads, the chat template's scaffolding included.
    Tokens(Arc<[u32]>),
    /// What somebody else renders, who knows the chat template. The tokens are what the context must have room for besides
    /// the reply, scaffolding included; 0 where nobody here can count them.
    Turns { turns: Arc<[Turn]>, prompt_tokens: u32 },
}

impl Prompt {
    pub fn prompt_tokens(&self) -> u32 {
        match &self.form {
            PromptForm::Tokens(ids) => u32::try_from(ids.len()).unwrap_or(u32::MAX),
            PromptForm::Turns { prompt_tokens, .. } => *prompt_tokens,
        }
    }

    /// Whether `input_tokens` is the true count, and not the most that it can be.
    pub fn is_counted(&self) -> bool {
        !matches!(self.form, PromptForm::Turns { prompt_tokens: 0, .. })
    }

    /// Empty where somebody else makes them.
    pub fn token_ids(&self) -> &[u32] {
        match &self.form {
            PromptForm::Tokens(ids) => ids,
            PromptForm::Turns { .. } => &[],
        }
    }
}

/// One generation to run.
#[derive(Clone, Debug)]
pub struct Job {
    /// Whose work it is: engines share their time fairly between accounts and keep accounts' text apart.
    pub account: AccountId,
    pub prompt: Prompt,
    /// At least 1.
    pub max_output_tokens: u32,
    pub sampling: Sampling,
    /// Texts that end the reply when they appear in it; they are left out of it.
    pub stop: Vec<String>,
}

/// How the next token is chosen. The logits are divided by the temperature; then only the `top_k` likeliest tokens stay;
/// of these only the likeliest that together hold the share `top_p` of their probability; and of these only those at
/// least `min_p` times as likely as the likeliest. What stays is drawn from in proportion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 always takes the likeliest token.
    pub temperature: f32,
    /// None keeps all.
    pub top_k: Option<NonZeroU32>,
    /// 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub min_p: f32,
    /// The same seed and the same job draw the same tokens.
    pub seed: u64,
}

impl Sampling {
    pub const GREEDY: Self = Self { temperature: 0.0, top_k: None, top_p: 1.0, min_p: 0.0, seed: 0 };
}

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    Complete,
    MaxOutputTokens,
    StopSequence,
    ContextLength,
    /// Nobody wants the rest any more.
    Cancelled,
}

fn of_tokens(tokens: Option<u32>) -> String {
    tokens.map_or_else(String::new, |tokens| format!(" of {tokens} tokens"))
}

fn because(reason: Option<&str>) -> String {
    reason.map_or_else(String::new, |reason| format!(": {reason}"))
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// How many tokens the prompt has with the chat template, where that is known.
    #[error("the prompt{} does not fit the model's context, which holds {context_tokens}", of_tokens(*.prompt_tokens))]
    InputTooLong { prompt_tokens: Option<u32>, context_tokens: u32 },
    /// The model's own server finds something wrong with the request. The reason, where there is one, is fit for a caller.
    #[error("the request was refused{}", because(.reason.as_deref()))]
    InputRefused { reason: Option<String> },
    /// The model's chat template does not take these roles in this order. The text is the template's own, for the log.
    #[error("the chat template does not take these turns: {0}")]
    TurnsRefused(String),
    /// The queue is full, or the job has waited in it for too long. Nothing was generated.
    #[error("the engine has too much work waiting")]
    Overloaded { retry_after_s: u32 },
    /// The engine failed and is being set up anew; this job was not begun.
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
