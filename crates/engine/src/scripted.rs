//! An engine that plays a script, for tests of what stands around an engine: it fails, stalls and ends when told to,
//! which a real model does not. Its tokens are words.

use crate::{Engine, EngineError, Generation, GenerationSink, Job, Prompt, PromptForm, Turn, channel};
use std::sync::Arc;

pub struct ScriptedEngine {
    context_tokens: u32,
    script: Arc<dyn Fn(Job, GenerationSink) + Send + Sync>,
}

impl ScriptedEngine {
    /// The script runs on a thread of its own for every job.
    pub fn new(context_tokens: u32, script: impl Fn(Job, GenerationSink) + Send + Sync + 'static) -> Self {
        Self { context_tokens, script: Arc::new(script) }
    }
}

impl Engine for ScriptedEngine {
    fn context_tokens(&self) -> u32 {
        self.context_tokens
    }

    fn prepare(&self, turns: &[Turn]) -> Result<Prompt, EngineError> {
        let words = turns.iter().flat_map(|turn| turn.text.split_whitespace()).count();
        let input_tokens = u32::try_from(words).unwrap_or(u32::MAX);
        if input_tokens >= self.context_tokens {
            return Err(EngineError::InputTooLong {
                prompt_tokens: Some(input_tokens),
                context_tokens: self.context_tokens,
            });
        }
        Ok(Prompt { form: PromptForm::Tokens((0..input_tokens).collect()), input_tokens })
    }

    fn start(&self, job: Job) -> Result<Generation, EngineError> {
        let (sink, generation) = channel();
        let script = Arc::clone(&self.script);
        std::thread::spawn(move || script(job, sink));
        Ok(generation)
    }
}
