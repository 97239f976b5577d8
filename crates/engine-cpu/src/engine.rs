//! Loads a model file and puts the parts together: `CpuEngine` is what the rest of Chancery sees.

use crate::chat_template::ChatTemplate;
use crate::error::{Fault, LoadError};
use crate::forward::{Forward, Logits, Segment, StepModel};
use crate::gguf::Gguf;
use crate::kernels::{Kernels, KvCache};
use crate::kv::KvPages;
use crate::limits::SHORT_LANE_PAGES;
use crate::model::Model;
use crate::plan::{LoadOptions, Plan};
use crate::step_turns::InTurn;
use crate::tokenizer::Tokenizer;
use crate::worker::{Requests, Supervisor, SupervisorMetrics, WorkerMetrics};
use chancery_domain::Clock;
use chancery_engine::{Engine, EngineError, Generation, Job, Prompt, PromptForm, Turn};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// One loaded model. Dropping it fails what still runs and waits for its threads.
pub struct CpuEngine {
    tokenizer: Arc<Tokenizer>,
    template: ChatTemplate,
    requests: Arc<Requests>,
    context_tokens: u32,
    memory_bytes: u64,
    worker: Option<JoinHandle<()>>,
}

impl fmt::Debug for CpuEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuEngine")
            .field("context_tokens", &self.context_tokens)
            .field("memory_bytes", &self.memory_bytes)
            .finish_non_exhaustive()
    }
}

impl CpuEngine {
    /// Loads one model by itself: plans it for all the memory there is, and loads it.
    pub fn load(path: &Path, options: &LoadOptions, clock: Arc<dyn Clock>) -> Result<Self, LoadError> {
        match Plan::for_models(&[(path.to_owned(), options.clone())])?.pop() {
            Some(plan) => Self::load_planned(plan, clock),
            None => unreachable!("one model has one plan"),
        }
    }

    /// Reads a model file and starts its threads. It takes as long as reading the file and laying out its weights
    /// does.
    pub fn load_planned(plan: Plan, clock: Arc<dyn Clock>) -> Result<Self, LoadError> {
        Self::load_as(plan, clock, |forward| forward)
    }

    /// `load_planned`, with something to call before every step. What panics there panics in the engine: tests of what
    /// an engine does after a panic have no other way to make it.
    #[doc(hidden)]
    pub fn load_with_hook(
        plan: Plan,
        clock: Arc<dyn Clock>,
        before_step: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<Self, LoadError> {
        Self::load_as(plan, clock, move |forward| Hooked { forward, before_step: Arc::clone(&before_step) })
    }

    /// Loads what `plan` says, and steps what `wrap` makes of the model, the first as well as those that are built after
    /// a panic.
    fn load_as<M: StepModel>(
        plan: Plan,
        clock: Arc<dyn Clock>,
        wrap: impl Fn(Forward) -> M + Send + 'static,
    ) -> Result<Self, LoadError> {
        let started = clock.monotonic();
        let refused = |fault| LoadError::refused(&plan.path, fault);
        let mut file = Gguf::open(&plan.path)?;
        let header_fingerprint = file.fingerprint();
        let tokenizer = Arc::new(Tokenizer::from_metadata(file.metadata()).map_err(refused)?);
        let template = ChatTemplate::from_metadata(file.metadata(), &tokenizer).map_err(refused)?;
        let context_tokens = plan.context_tokens();
        if template.scaffolding_tokens() >= plan.bounds.context_tokens {
            return Err(LoadError::Option {
                path: plan.path,
                option: "context_tokens",
                asked: u64::from(context_tokens),
                reason: format!("the chat template alone has {} tokens", template.scaffolding_tokens()),
            });
        }
        let kernels = Kernels::start(plan.threads)?;
        let model = Model::from_gguf(&mut file, tokenizer.vocabulary_len(), &kernels).map_err(refused)?;
        debug_assert!(
            model.memory_bytes() as u64 <= plan.need.weights_bytes,
            "more weights than were planned"
        );
        let fingerprint = file.fingerprint();
        drop(file);
        let build_time = clock.monotonic().saturating_duration_since(started);

        let hyper_parameters = &model.hyper_parameters;
        let memory_bytes = plan.need.total_bytes();
        let bounds = plan.bounds;
        tracing::info!(
            model = %hyper_parameters.name,
            architecture = hyper_parameters.architecture.name(),
            parameters = model.parameters(),
            context_tokens,
            slots = bounds.slots,
            threads = plan.threads,
            memory_bytes,
            kernel = kernels.name(),
            took_ms = build_time.as_millis() as u64,
            "model loaded"
        );
        let label = plan.name.clone();
        let requests = Arc::new(Requests::new(
            bounds,
            tokenizer.vocabulary_len(),
            Arc::clone(&clock),
            metrics::gauge!("chancery_engine_queue_depth", "model" => label.clone()),
        ));
        let supervisor = Supervisor {
            tokenizer: Arc::clone(&tokenizer),
            requests: Arc::clone(&requests),
            clock,
            build_time,
            metrics: SupervisorMetrics {
                worker: WorkerMetrics {
                    running: metrics::gauge!("chancery_engine_running", "model" => label.clone()),
                    steps: metrics::counter!("chancery_engine_steps_total", "model" => label.clone()),
                    cached_tokens: metrics::counter!("chancery_engine_cached_tokens_total", "model" => label.clone()),
                    drafted_tokens: metrics::counter!("chancery_engine_drafted_tokens_total", "model" => label.clone()),
                    accepted_tokens: metrics::counter!("chancery_engine_accepted_draft_tokens_total", "model" => label.clone()),
                },
                serving: metrics::gauge!("chancery_engine_serving", "model" => label.clone()),
                panics: metrics::counter!("chancery_engine_panics_total", "model" => label.clone()),
                model: label,
            },
        };
        let source = Source { plan, header_fingerprint, fingerprint, vocabulary: tokenizer.vocabulary_len() };
        let turns = source.plan.turns.clone();
        let wrap = move |forward| InTurn::new(wrap(forward), turns.clone());
        let first = wrap(source.forward(model, kernels)?);
        let worker = thread::Builder::new()
            .name("engine-0".to_owned())
            .spawn(move || supervisor.run(first, || source.build().map(&wrap)))
            .map_err(LoadError::Threads)?;
        Ok(Self { tokenizer, template, requests, context_tokens, memory_bytes, worker: Some(worker) })
    }

    /// What it takes when it is as busy as it can be; the key-value cache is taken only as it is used.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// How its key-value cache is used, as of the last step.
    pub fn kv_pages(&self) -> KvPages {
        self.requests.kv_pages()
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Refuses new work from now on; what was accepted is still served.
    pub fn shut_down(&self) {
        self.requests.close();
    }
}

impl Drop for CpuEngine {
    fn drop(&mut self) {
        self.requests.stop();
        if let Some(worker) = self.worker.take() {
            // Panics of steps are caught; how the thread ended changes nothing any more.
            let _ = worker.join();
        }
    }
}

impl Engine for CpuEngine {
    fn context_tokens(&self) -> u32 {
        self.context_tokens
    }

    fn prepare(&self, turns: &[Turn]) -> Result<Prompt, EngineError> {
        let rendered = self.template.render(&self.tokenizer, turns);
        let rendered = rendered.map_err(|fault| EngineError::TurnsRefused(fault.to_string()))?;
        let prompt_tokens = u32::try_from(rendered.token_ids.len()).unwrap_or(u32::MAX);
        if prompt_tokens >= self.context_tokens {
            return Err(EngineError::InputTooLong {
                prompt_tokens: Some(prompt_tokens),
                context_tokens: self.context_tokens,
            });
        }
        Ok(Prompt {
            form: PromptForm::Tokens(rendered.token_ids.into()),
            input_tokens: u32::try_from(rendered.input_tokens).unwrap_or(u32::MAX),
        })
    }

    fn start(&self, job: Job) -> Result<Generation, EngineError> {
        self.requests.submit(job)
    }

    fn outage(&self) -> Option<String> {
        self.requests.outage()
    }
}

/// All that is needed to build a model anew, on threads of its own and with an empty cache.
struct Source {
    plan: Plan,
    /// What was read of the file when it was first loaded: its header, and all of it. The tokenizer and the prompts of
    /// that file stay in use, so another file will not do.
    header_fingerprint: u64,
    fingerprint: u64,
    vocabulary: usize,
}

impl Source {
    fn build(&self) -> Result<Forward, LoadError> {
        let path = &self.plan.path;
        let changed = || LoadError::Changed { path: path.clone() };
        self.plan.check_memory()?;
        let mut file = Gguf::open(path)?;
        if file.fingerprint() != self.header_fingerprint {
            return Err(changed());
        }
        let kernels = Kernels::start(self.plan.threads)?;
        let model = Model::from_gguf(&mut file, self.vocabulary, &kernels)
            .map_err(|fault| LoadError::refused(path, fault))?;
        if file.fingerprint() != self.fingerprint {
            return Err(changed());
        }
        self.forward(model, kernels)
    }

    fn forward(&self, model: Model, kernels: Kernels) -> Result<Forward, LoadError> {
        let shape = model.hyper_parameters.kv_shape();
        let beyond = || Fault::unsupported("its key-value cache is beyond counting");
        let cache = KvCache::new(shape, self.plan.bounds.pages + SHORT_LANE_PAGES)
            .ok_or_else(|| LoadError::refused(&self.plan.path, beyond()))?;
        let free_rows = self.plan.free_rows.unwrap_or_else(|| kernels.free_rows());
        Ok(Forward::new(model, kernels, cache).with_free_rows(free_rows))
    }
}

/// A model with something to call before every step.
struct Hooked {
    forward: Forward,
    before_step: Arc<dyn Fn() + Send + Sync>,
}

impl StepModel for Hooked {
    fn step(&mut self, segments: &[Segment<'_>]) -> Logits<'_> {
        (self.before_step)();
        self.forward.step(segments)
    }

    fn free_rows(&self) -> usize {
        self.forward.free_rows()
    }
}
