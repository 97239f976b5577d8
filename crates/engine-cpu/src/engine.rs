//! Loads a model file and puts the parts together: `CpuEngine` is what the rest of Chancery sees.

use crate::chat_template::ChatTemplate;
use crate::error::{Fault, LoadError};
use crate::forward::Forward;
use crate::gguf::Gguf;
use crate::kernels::Kernels;
use crate::kernels::KvCache;
use crate::kv::pages_for;
use crate::limits::{
    DEFAULT_KV_BYTES, DEFAULT_QUEUE, DEFAULT_SLOTS, MAX_FREE_ROWS, MAX_KV_BYTES, MAX_QUEUE, MAX_SLOTS,
    MAX_THREADS, PAGE_TOKENS, SHORT_LANE_PAGES,
};
use crate::model::{HyperParameters, Model};
use crate::tokenizer::Tokenizer;
use crate::worker::{Bounds, Requests, Worker, WorkerMetrics};
use chancery_domain::Clock;
use chancery_engine::{Engine, EngineError, Generation, Job, Prompt};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// What a caller may choose; `None` leaves it to the model and the machine.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// What the model is called in the metrics.
    pub name: String,
    /// The longest prompt and reply together; at most what the model was made for.
    pub context_tokens: Option<u32>,
    /// Sequences that run together.
    pub slots: Option<usize>,
    /// Jobs that may wait for a slot.
    pub queue: Option<usize>,
    /// Threads that calculate, the model's owner included.
    pub threads: Option<usize>,
    /// Rows up to which a step is filled with drafted tokens; 1 means that none are drafted. It never changes a text.
    pub free_rows: Option<usize>,
}

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
    /// Reads a model file and starts its threads. It takes as long as reading the file and laying out its weights
    /// does.
    pub fn load(path: &Path, options: &LoadOptions, clock: Arc<dyn Clock>) -> Result<Self, LoadError> {
        let started = clock.monotonic();
        let refused = |fault| LoadError::refused(path, fault);
        let mut file = Gguf::open(path)?;
        let tokenizer = Arc::new(Tokenizer::from_metadata(file.metadata()).map_err(refused)?);
        let template = ChatTemplate::from_metadata(file.metadata(), &tokenizer).map_err(refused)?;
        let threads = bounded(path, "threads", options.threads, MAX_THREADS, || {
            thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS)
        })?;
        let kernels = Kernels::start(threads)?;
        let free_rows = bounded(path, "free_rows", options.free_rows, MAX_FREE_ROWS, || kernels.free_rows())?;
        let model = Model::from_gguf(&mut file, tokenizer.vocabulary_len(), &kernels).map_err(refused)?;
        drop(file);

        let hyper_parameters = &model.hyper_parameters;
        let kv_shape = hyper_parameters.kv_shape();
        let bounds = choose_bounds(path, options, hyper_parameters)?;
        let context_tokens = u32::try_from(bounds.context_tokens).unwrap_or(u32::MAX);
        if template.scaffolding_tokens() >= bounds.context_tokens {
            return Err(LoadError::Option {
                path: path.to_owned(),
                option: "context_tokens",
                asked: u64::from(context_tokens),
                reason: format!("the chat template alone has {} tokens", template.scaffolding_tokens()),
            });
        }
        let beyond = || refused(Fault::unsupported("its key-value cache is beyond counting"));
        let pages = bounds.pages + SHORT_LANE_PAGES;
        let cache = KvCache::new(kv_shape, pages).ok_or_else(beyond)?;
        let kv_bytes = kv_shape
            .page_bytes()
            .and_then(|page_bytes| page_bytes.checked_mul(pages as u64))
            .ok_or_else(beyond)?;
        let memory_bytes = kv_bytes + model.memory_bytes() as u64;

        tracing::info!(
            model = %hyper_parameters.name,
            architecture = hyper_parameters.architecture.name(),
            parameters = model.parameters(),
            context_tokens,
            slots = bounds.slots,
            threads,
            memory_bytes,
            kernel = kernels.name(),
            took_ms = clock.monotonic().saturating_duration_since(started).as_millis() as u64,
            "model loaded"
        );
        let label = options.name.clone();
        let requests = Arc::new(Requests::new(
            bounds,
            tokenizer.vocabulary_len(),
            Arc::clone(&clock),
            metrics::gauge!("chancery_engine_queue_depth", "model" => label.clone()),
        ));
        let worker = Worker::new(
            Forward::new(model, kernels, cache).with_free_rows(free_rows),
            Arc::clone(&tokenizer),
            Arc::clone(&requests),
            clock,
            WorkerMetrics {
                running: metrics::gauge!("chancery_engine_running", "model" => label.clone()),
                steps: metrics::counter!("chancery_engine_steps_total", "model" => label.clone()),
                cached_tokens: metrics::counter!("chancery_engine_cached_tokens_total", "model" => label.clone()),
                drafted_tokens: metrics::counter!("chancery_engine_drafted_tokens_total", "model" => label.clone()),
                accepted_tokens: metrics::counter!("chancery_engine_accepted_draft_tokens_total", "model" => label),
            },
        );
        let worker = thread::Builder::new()
            .name("engine-0".to_owned())
            .spawn(move || worker.run())
            .map_err(LoadError::Threads)?;
        Ok(Self { tokenizer, template, requests, context_tokens, memory_bytes, worker: Some(worker) })
    }

    /// The weights and the key-value cache when every slot is full; the cache is taken only as it is used.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes
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
            // The worker catches the panics of its steps; how it ended changes nothing any more.
            let _ = worker.join();
        }
    }
}

impl Engine for CpuEngine {
    fn context_tokens(&self) -> u32 {
        self.context_tokens
    }

    fn prepare(&self, instructions: &str, input: &str) -> Result<Prompt, EngineError> {
        let rendered = self.template.render(&self.tokenizer, instructions, input);
        let prompt_tokens = u32::try_from(rendered.token_ids.len()).unwrap_or(u32::MAX);
        if prompt_tokens >= self.context_tokens {
            return Err(EngineError::InputTooLong { prompt_tokens, context_tokens: self.context_tokens });
        }
        Ok(Prompt {
            token_ids: rendered.token_ids.into(),
            input_tokens: u32::try_from(rendered.input_tokens).unwrap_or(u32::MAX),
        })
    }

    fn start(&self, job: Job) -> Result<Generation, EngineError> {
        self.requests.submit(job)
    }
}

/// The context, the slots and the pages, so that one sequence can always have the whole context.
fn choose_bounds(
    path: &Path,
    options: &LoadOptions,
    hyper_parameters: &HyperParameters,
) -> Result<Bounds, LoadError> {
    let model_context = hyper_parameters.context_tokens;
    let kv_shape = hyper_parameters.kv_shape();
    let unsupported = |what: &str| LoadError::refused(path, Fault::unsupported(what));
    let page_bytes =
        kv_shape.page_bytes().ok_or_else(|| unsupported("its key-value cache is beyond counting"))?;
    let pages_within = |bytes: u64| usize::try_from(bytes / page_bytes).unwrap_or(usize::MAX);
    let context_tokens = match options.context_tokens {
        Some(asked) => {
            let reason = if asked < 2 {
                Some("a prompt and a reply need at least one token each".to_owned())
            } else if asked as usize > model_context {
                Some(hyper_parameters.context_reason.clone())
            } else if pages_for(asked as usize) > pages_within(MAX_KV_BYTES) {
                Some(format!("its key-value cache would be larger than {MAX_KV_BYTES} bytes"))
            } else {
                None
            };
            if let Some(reason) = reason {
                return Err(LoadError::Option {
                    path: path.to_owned(),
                    option: "context_tokens",
                    asked: u64::from(asked),
                    reason,
                });
            }
            asked as usize
        }
        None => model_context.min(pages_within(DEFAULT_KV_BYTES).saturating_mul(PAGE_TOKENS)),
    };
    if context_tokens < 2 {
        return Err(unsupported("its key-value cache does not fit into memory"));
    }
    let slots = bounded(path, "slots", options.slots, MAX_SLOTS, || DEFAULT_SLOTS)?;
    let queue = bounded(path, "queue", options.queue, MAX_QUEUE, || DEFAULT_QUEUE)?;
    let context_pages = pages_for(context_tokens);
    let pages = context_pages.max((slots * context_pages).min(pages_within(DEFAULT_KV_BYTES)));
    Ok(Bounds { context_tokens, slots, queue, pages })
}

/// A count between 1 and `limit`.
fn bounded(
    path: &Path,
    option: &'static str,
    asked: Option<usize>,
    limit: usize,
    default: impl FnOnce() -> usize,
) -> Result<usize, LoadError> {
    match asked {
        None => Ok(default()),
        Some(value) if (1..=limit).contains(&value) => Ok(value),
        Some(value) => Err(LoadError::Option {
            path: path.to_owned(),
            option,
            asked: value as u64,
            reason: format!("it lies between 1 and {limit}"),
        }),
    }
}
