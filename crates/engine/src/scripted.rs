//! A scripted engine for tests of the code around an engine: it fails, stalls and ends on demand, which a real model
//! does not. Its tokens are words.

use crate::{Engine, EngineError, Generation, GenerationSink, Job, Prompt, PromptContent, Turn, channel};
use std::sync::Arc;

pub struct ScriptedEngine {
    context_tokens: u32,
    scaffolding_tokens: u32,
    script: Arc<dyn Fn(Job, GenerationSink) + Send + Sync>,
}

impl ScriptedEngine {
    /// The script runs on its own thread for every job.
    pub fn new(context_tokens: u32, script: impl Fn(Job, GenerationSink) + Send + Sync + 'static) -> Self {
        Self { context_tokens, scaffolding_tokens: 0, script: Arc::new(script) }
    }

    /// With a chat template that adds so many tokens to every prompt.
    #[must_use]
    pub fn with_scaffolding(self, scaffolding_tokens: u32) -> Self {
        Self { scaffolding_tokens, ..self }
    }
}

impl Engine for ScriptedEngine {
    fn context_tokens(&self) -> u32 {
        self.context_tokens
    }

    fn prepare(&self, turns: &[Turn]) -> Result<Prompt, EngineError> {
        let word_count = turns.iter().flat_map(|turn| turn.text.split_whitespace()).count();
        let input_tokens = u32::try_from(word_count).unwrap_or(u32::MAX);
        let prompt_tokens = input_tokens.saturating_add(self.scaffolding_tokens);
        if prompt_tokens >= self.context_tokens {
            return Err(EngineError::InputTooLong {
                prompt_tokens: Some(prompt_tokens),
                context_tokens: self.context_tokens,
            });
        }
        Ok(Prompt { content: PromptContent::Tokens((0..prompt_tokens).collect()), input_tokens })
    }

    fn start(&self, job: Job) -> Result<Generation, EngineError> {
        let (sink, generation) = channel();
        let script = Arc::clone(&self.script);
        std::thread::spawn(move || script(job, sink));
        Ok(generation)
    }
}
