//! An engine that runs on other servers: any server with OpenAI's Chat Completions (vLLM, SGLang, llama-server, another
//! Chancery), or a pool of them. `run` describes the life of a job; `pool` chooses its server. Deliberately renders no
//! chat template: the servers do.

mod affinity;
mod attempt;
mod balancing;
mod billed_prefixes;
mod breaker;
mod cache_salt;
mod cap;
mod capabilities;
mod chat;
mod chunk;
mod chunk_pattern;
mod concurrency_slots;
mod context;
mod endpoint;
mod error;
mod error_response;
mod health;
mod lenient;
mod limits;
mod logprobs;
mod pool;
mod probe;
mod progress;
mod repetition_watch;
mod run;
mod sampling_params;
mod settings;
mod stream;
mod token_counter;
mod token_length;
mod tokenize;
mod transport;
mod usage;
mod whole_reply;

pub use limits::{MAX_ENDPOINTS, MAX_TOTAL_TIMEOUT};
pub use settings::{Servers, Timeouts, UpstreamSettings, ValidatedServers};
pub use token_counter::{TokenCounter, TokenizerError};
pub use transport::TransportError;

use billed_prefixes::BilledPrefixes;
use cache_salt::CacheSalts;
use chancery_domain::{Clock, Randomness};
use chancery_engine::{
    EndpointStatus, Engine, EngineError, Generation, Job, Prompt, PromptContent, Turn, channel,
};
use concurrency_slots::ConcurrencyLimit;
use endpoint::Endpoint;
use limits::{MAX_CONCURRENT_JOBS, START_DETECTION_TIMEOUT, TEMPLATE_TOKENS, TEMPLATE_TOKENS_PER_TURN};
use pool::Pool;
use run::Upstream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use transport::Transport;

/// Why an upstream model cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamSetupError {
    #[error("no upstream server reports the context length ({0}); set `context_tokens`")]
    ContextUnknown(String),
    #[error(transparent)]
    Transport(#[from] TransportError),
}

/// One model that runs on upstream servers.
pub struct UpstreamEngine {
    upstream: Arc<Upstream>,
    concurrency_limit: Arc<ConcurrencyLimit>,
    runtime: Handle,
    health: JoinHandle<()>,
}

impl UpstreamEngine {
    /// Asks the servers what they offer, and for the context length if it is not set. If it is, they may be down. Call it
    /// on the runtime of those who wait for jobs: what is left of a job runs there once its caller stops waiting.
    pub async fn start(
        settings: UpstreamSettings,
        clock: Arc<dyn Clock>,
        randomness: Arc<dyn Randomness>,
    ) -> Result<Self, UpstreamSetupError> {
        let UpstreamSettings {
            model,
            upstream_model,
            servers,
            context_tokens,
            tokenizer,
            timeouts,
            hedge_after,
            cache_salt_secret,
        } = settings;
        let transport = Arc::new(Transport::new(timeouts.connect, Arc::clone(&clock)));
        let servers = validate(&transport, &servers)?;
        let pool = Pool::new(&model, servers, Arc::clone(&clock), randomness.next_u64());
        let context_tokens = match context_tokens {
            Some(tokens) => tokens,
            None => query_context_tokens(&transport, pool.serving(), &upstream_model).await?,
        };
        let upstream = Arc::new(Upstream {
            pool,
            model,
            upstream_model,
            transport,
            counter: tokenizer,
            context_tokens,
            timeouts,
            hedge_after,
            cache_salts: CacheSalts::new(&cache_salt_secret),
            billed_prefixes: BilledPrefixes::new(),
            clock,
            randomness: Arc::clone(&randomness),
            progress_tags: Arc::default(),
            has_warned_of_counts: AtomicBool::new(false),
        });
        let detecting = async {
            let checks = health::check_all(&upstream.transport, upstream.pool.serving()).await;
            capabilities::detect(&upstream, &checks).await;
        };
        // Servers may be down.
        let _ = timeout(START_DETECTION_TIMEOUT, detecting).await;
        let runtime = Handle::current();
        let health = runtime.spawn(health::run_health_checks(Arc::downgrade(&upstream), randomness));
        Ok(Self { upstream, concurrency_limit: ConcurrencyLimit::new(MAX_CONCURRENT_JOBS), runtime, health })
    }

    /// Validates replacement servers completely before any model changes.
    pub fn check_servers(&self, servers: &Servers) -> Result<ValidatedServers, TransportError> {
        validate(&self.upstream.transport, servers)
    }

    /// Sends new jobs to these servers. Running jobs finish where they are.
    pub fn replace_servers(&self, servers: ValidatedServers) {
        self.upstream.pool.replace(servers);
    }
}

fn validate(transport: &Transport, servers: &Servers) -> Result<ValidatedServers, TransportError> {
    let Servers { endpoints, api_key } = servers;
    transport.prepare(endpoints)?;
    let authorization = transport::authorization(api_key.as_deref())?;
    Ok(ValidatedServers { endpoints: endpoints.clone(), authorization })
}

impl Drop for UpstreamEngine {
    fn drop(&mut self) {
        self.health.abort();
    }
}

/// Returns the shortest context that any server reports, so that every server can run every job.
async fn query_context_tokens(
    transport: &Arc<Transport>,
    endpoints: Vec<Arc<Endpoint>>,
    upstream_model: &str,
) -> Result<u32, UpstreamSetupError> {
    let mut shortest: Option<u32> = None;
    let mut reasons = Vec::new();
    for (endpoint, outcome) in health::check_all(transport, endpoints).await {
        let url = &endpoint.url;
        match outcome.map(|list| context::context_tokens(&list, upstream_model)) {
            Ok(Some(tokens)) => shortest = Some(shortest.map_or(tokens, |shortest| shortest.min(tokens))),
            Ok(None) => reasons.push(format!("{url}: not in /models")),
            Err(error) => reasons.push(format!("{url}: {}", error.detail)),
        }
    }
    shortest.ok_or_else(|| UpstreamSetupError::ContextUnknown(reasons.join("; ")))
}

/// Upper bound on the tokens that a chat template adds around these turns.
fn template_tokens(turns: &[Turn]) -> u32 {
    let turns = u32::try_from(turns.len()).unwrap_or(u32::MAX);
    TEMPLATE_TOKENS.saturating_add(turns.saturating_mul(TEMPLATE_TOKENS_PER_TURN))
}

impl Engine for UpstreamEngine {
    fn context_tokens(&self) -> u32 {
        self.upstream.context_tokens
    }

    /// Without a tokenizer, the servers decide what is too long.
    fn max_prompt_bytes(&self) -> usize {
        let tokens = usize::try_from(self.upstream.context_tokens).unwrap_or(usize::MAX);
        let bytes_per_token = self.upstream.counter.as_ref().and_then(TokenCounter::max_bytes_per_token);
        bytes_per_token.map_or(usize::MAX, |bytes| tokens.saturating_mul(bytes))
    }

    fn prepare(&self, turns: &[Turn]) -> Result<Prompt, EngineError> {
        let context_tokens = self.upstream.context_tokens;
        let counter = self.upstream.counter.as_ref();
        let input_tokens = token_counter::input_tokens(counter, turns)?;
        // Without a tokenizer the count is only an upper bound, so the servers decide what is too long.
        let prompt_tokens = match counter {
            Some(_) if input_tokens >= context_tokens => {
                return Err(EngineError::InputTooLong { prompt_tokens: Some(input_tokens), context_tokens });
            }
            Some(_) => input_tokens.saturating_add(template_tokens(turns)).min(context_tokens - 1),
            None => 0,
        };
        let content = PromptContent::Turns { turns: turns.into(), prompt_tokens };
        Ok(Prompt { content, input_tokens })
    }

    fn start(&self, job: Job) -> Result<Generation, EngineError> {
        let PromptContent::Turns { turns, .. } = &job.prompt.content else {
            return Err(EngineError::Failed("prompt was prepared for another engine".to_owned()));
        };
        let slot = self.concurrency_limit.take(job.account);
        let slot = slot.ok_or(EngineError::Overloaded { retry_after_s: 1 })?;
        let (sink, generation) = channel();
        let (upstream, turns) = (Arc::clone(&self.upstream), Arc::clone(turns));
        Ok(generation.with_work(self.runtime.clone(), async move {
            upstream.run(&turns, &job, sink).await;
            drop(slot);
        }))
    }

    fn outage(&self) -> Option<String> {
        self.upstream.pool.outage()
    }

    fn endpoints(&self) -> Vec<EndpointStatus> {
        self.upstream.pool.statuses()
    }
}
