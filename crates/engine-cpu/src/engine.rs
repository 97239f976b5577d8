//! Loads a model file and connects the parts: `CpuEngine` is the public interface.

use crate::chat_template::ChatTemplate;
use crate::error::{LoadError, ModelFileError};
use crate::forward::{BatchEntry, Forward, ForwardModel, Logits};
use crate::gguf::Gguf;
use crate::kernels::Kernels;
use crate::limits::SHORT_POOL_PAGES;
use crate::model::Model;
use crate::paging::KvPageUsage;
use crate::plan::{LoadOptions, Plan};
use crate::step_lock::Exclusive;
use crate::tokenizer::Tokenizer;
use crate::worker::{JobQueue, Supervisor, SupervisorMetrics, WorkerMetrics};
use chancery_domain::Clock;
use chancery_engine::{Engine, EngineError, Generation, Job, Prompt, PromptContent, Turn};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// One loaded model. Dropping it fails the running jobs and waits for its threads.
pub struct CpuEngine {
    tokenizer: Arc<Tokenizer>,
    template: ChatTemplate,
    job_queue: Arc<JobQueue>,
    context_tokens: u32,
    parameters: u64,
    memory_bytes: u64,
    kv_page_bytes: u64,
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
    /// Plans one model with all available memory, and loads it.
    pub fn load(path: &Path, options: &LoadOptions, clock: Arc<dyn Clock>) -> Result<Self, LoadError> {
        match Plan::for_models(&[(path.to_owned(), options.clone())])?.pop() {
            Some(plan) => Self::load_planned(plan, clock),
            None => unreachable!("one model has one plan"),
        }
    }

    /// Reads a model file and starts its threads. Takes as long as reading the file and repacking its weights.
    pub fn load_planned(plan: Plan, clock: Arc<dyn Clock>) -> Result<Self, LoadError> {
        Self::load_wrapped(plan, clock, |forward| forward)
    }

    /// `load_planned` with a hook that runs before every step. A panic in the hook is a panic in the engine, which
    /// tests cannot cause in another way.
    #[doc(hidden)]
    pub fn load_with_hook(
        plan: Plan,
        clock: Arc<dyn Clock>,
        before_step: Arc<dyn Fn() + Send + Sync>,
    ) -> Result<Self, LoadError> {
        Self::load_wrapped(plan, clock, move |forward| HookedModel {
            forward,
            before_step: Arc::clone(&before_step),
        })
    }

    /// Loads the model according to `plan`. `wrap` wraps the model, both the first one and those rebuilt after a panic.
    fn load_wrapped<M: ForwardModel>(
        plan: Plan,
        clock: Arc<dyn Clock>,
        wrap: impl Fn(Forward) -> M + Send + 'static,
    ) -> Result<Self, LoadError> {
        let started = clock.monotonic();
        let rejected = |error| LoadError::rejected(&plan.path, error);
        let mut file = Gguf::open(&plan.path)?;
        let header_fingerprint = file.fingerprint();
        let tokenizer = Arc::new(Tokenizer::from_metadata(file.metadata()).map_err(rejected)?);
        let template = ChatTemplate::from_metadata(file.metadata(), &tokenizer).map_err(rejected)?;
        let context_tokens = plan.context_tokens();
        if template.scaffolding_tokens() >= plan.worker_limits.context_tokens {
            return Err(LoadError::InvalidOption {
                path: plan.path,
                option: "context_tokens",
                requested: u64::from(context_tokens),
                reason: format!("the chat template alone uses {} tokens", template.scaffolding_tokens()),
            });
        }
        let kernels = Kernels::start(plan.threads)?;
        let model = Model::from_gguf(&mut file, tokenizer.vocab_size(), &kernels).map_err(rejected)?;
        debug_assert!(
            model.memory_bytes() as u64 <= plan.memory_estimate.weights_bytes,
            "weights exceed the plan"
        );
        let fingerprint = file.fingerprint();
        let parameters = file.parameters();
        drop(file);
        let load_time = clock.monotonic().saturating_duration_since(started);

        let hyperparameters = &model.hyperparameters;
        let memory_bytes = plan.memory_estimate.total_bytes();
        let worker_limits = plan.worker_limits;
        let kv_page_bytes =
            plan.memory_estimate.kv_bytes / (worker_limits.pages + SHORT_POOL_PAGES).max(1) as u64;
        tracing::info!(
            model = %hyperparameters.name,
            architecture = hyperparameters.architecture.name(),
            parameters,
            context_tokens,
            slots = worker_limits.slots,
            threads = plan.threads,
            memory_bytes,
            kernel = kernels.name(),
            took_ms = load_time.as_millis() as u64,
            "model loaded"
        );
        let label = plan.name.clone();
        let job_queue = Arc::new(JobQueue::new(
            worker_limits,
            tokenizer.vocab_size(),
            Arc::clone(&clock),
            metrics::gauge!("chancery_engine_queue_depth", "model" => label.clone()),
        ));
        let supervisor = Supervisor {
            tokenizer: Arc::clone(&tokenizer),
            job_queue: Arc::clone(&job_queue),
            clock: Arc::clone(&clock),
            load_time,
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
        let source =
            ModelSource { plan, header_fingerprint, fingerprint, vocab_size: tokenizer.vocab_size() };
        let step_lock = source.plan.step_lock.clone();
        let wrap = move |forward| Exclusive::new(wrap(forward), &step_lock, Arc::clone(&clock));
        let first = wrap(source.forward(model, kernels)?);
        let worker = thread::Builder::new()
            .name("engine-0".to_owned())
            .spawn(move || supervisor.run(first, || source.build().map(&wrap)))
            .map_err(LoadError::Threads)?;
        Ok(Self {
            tokenizer,
            template,
            job_queue,
            context_tokens,
            parameters,
            memory_bytes,
            kv_page_bytes,
            worker: Some(worker),
        })
    }

    /// Memory at full load; the KV cache is allocated only as it is used.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// The part of `memory_bytes` that the system has not committed yet: KV cache pages that no job has written.
    pub fn uncommitted_bytes(&self) -> u64 {
        self.kv_page_bytes.saturating_mul(self.job_queue.untouched_pages() as u64)
    }

    /// KV cache usage as of the last step.
    pub fn kv_pages(&self) -> KvPageUsage {
        self.job_queue.kv_pages()
    }

    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Rejects new jobs from now on; accepted ones still run.
    pub fn shut_down(&self) {
        self.job_queue.close();
    }
}

impl Drop for CpuEngine {
    fn drop(&mut self) {
        self.job_queue.stop();
        if let Some(worker) = self.worker.take() {
            // The supervisor catches panics of steps; how the thread ended no longer matters.
            let _ = worker.join();
        }
    }
}

impl Engine for CpuEngine {
    fn context_tokens(&self) -> u32 {
        self.context_tokens
    }

    fn max_prompt_bytes(&self) -> usize {
        let tokens = usize::try_from(self.context_tokens).unwrap_or(usize::MAX);
        tokens.saturating_mul(self.tokenizer.max_bytes_per_token())
    }

    fn prepare(&self, turns: &[Turn]) -> Result<Prompt, EngineError> {
        let rendered = self.template.render(&self.tokenizer, turns);
        let rendered = rendered.map_err(|error| match self.template.is_stopped_at(turns.len()) {
            true => EngineError::Failed(error.to_string()),
            false => EngineError::TurnsRejected(error.to_string()),
        })?;
        let prompt_tokens = u32::try_from(rendered.token_ids.len()).unwrap_or(u32::MAX);
        if prompt_tokens >= self.context_tokens {
            return Err(EngineError::InputTooLong {
                prompt_tokens: Some(prompt_tokens),
                context_tokens: self.context_tokens,
            });
        }
        Ok(Prompt {
            content: PromptContent::Tokens(rendered.token_ids.into()),
            input_tokens: u32::try_from(rendered.input_tokens).unwrap_or(u32::MAX),
        })
    }

    fn start(&self, job: Job) -> Result<Generation, EngineError> {
        self.job_queue.submit(job)
    }

    fn parameters(&self) -> Option<u64> {
        Some(self.parameters)
    }

    fn outage(&self) -> Option<String> {
        self.job_queue.outage()
    }
}

/// Everything needed to rebuild a model, with new threads and an empty cache.
struct ModelSource {
    plan: Plan,
    /// Fingerprints of the first load: of the header, and of the whole file. The tokenizer and the queued prompts of
    /// that file stay in use, so a rebuild needs the same file.
    header_fingerprint: u64,
    fingerprint: u64,
    vocab_size: usize,
}

impl ModelSource {
    fn build(&self) -> Result<Forward, LoadError> {
        let path = &self.plan.path;
        let changed = || LoadError::Changed { path: path.clone() };
        self.plan.check_memory()?;
        let mut file = Gguf::open(path)?;
        if file.fingerprint() != self.header_fingerprint {
            return Err(changed());
        }
        let kernels = Kernels::start(self.plan.threads)?;
        let model = Model::from_gguf(&mut file, self.vocab_size, &kernels)
            .map_err(|error| LoadError::rejected(path, error))?;
        if file.fingerprint() != self.fingerprint {
            return Err(changed());
        }
        self.forward(model, kernels)
    }

    fn forward(&self, model: Model, kernels: Kernels) -> Result<Forward, LoadError> {
        let shape = model.hyperparameters.kv_shape();
        let overflow = || ModelFileError::unsupported("KV cache size overflows");
        let cache = kernels
            .kv_cache(shape, self.plan.worker_limits.pages + SHORT_POOL_PAGES)
            .ok_or_else(|| LoadError::rejected(&self.plan.path, overflow()))?;
        let draft_rows = self.plan.draft_rows.unwrap_or_else(|| kernels.draft_rows());
        Ok(Forward::new(model, kernels, cache).with_draft_rows(draft_rows))
    }
}

/// A model with a hook that runs before every step.
struct HookedModel {
    forward: Forward,
    before_step: Arc<dyn Fn() + Send + Sync>,
}

impl ForwardModel for HookedModel {
    fn step(&mut self, batch: &[BatchEntry<'_>]) -> Logits<'_> {
        (self.before_step)();
        self.forward.step(batch)
    }

    fn draft_rows(&self) -> usize {
        self.forward.draft_rows()
    }
}
