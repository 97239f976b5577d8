//! An engine that runs elsewhere: any server with OpenAI's Chat Completions (vLLM, SGLang, llama-server, another Chancery), or a
//! pool of them. `run` tells how a job goes; `pool` who gets it. It deliberately renders no chat template: the servers do.

mod affinity;
mod attempt;
mod balancing;
mod breaker;
mod chat;
mod context;
mod counting;
mod endpoint;
mod fault;
mod health;
mod limits;
mod places;
mod pool;
mod refusal;
mod run;
mod settings;
mod stream;
mod tally;
mod transport;

pub use counting::{TokenCounter, TokenizerError};
pub use limits::{MAX_ENDPOINTS, MAX_TOTAL_TIMEOUT};
pub use settings::{CheckedServers, Servers, Timeouts, UpstreamSettings};
pub use transport::TransportError;

use chancery_domain::{Clock, Randomness};
use chancery_engine::{
    EndpointStatus, Engine, EngineError, Generation, Job, Prompt, PromptForm, Turn, channel,
};
use endpoint::Endpoint;
use limits::{MAX_RUNNING, TEMPLATE_TOKENS, TEMPLATE_TOKENS_PER_TURN};
use places::Places;
use pool::Pool;
use run::Upstream;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use transport::Transport;

/// Why an upstream model cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    #[error("no upstream server says how long the model's context is ({0}); set `context_tokens`")]
    ContextUnknown(String),
    #[error(transparent)]
    Transport(#[from] TransportError),
}

/// One model that other servers run.
pub struct UpstreamEngine {
    upstream: Arc<Upstream>,
    places: Arc<Places>,
    runtime: Handle,
    health: JoinHandle<()>,
}

impl UpstreamEngine {
    /// Asks the servers for the length of the context where it is not set; apart from that they may be down. To be called
    /// on the runtime that jobs shall run on.
    pub async fn start(
        settings: UpstreamSettings,
        clock: Arc<dyn Clock>,
        randomness: Arc<dyn Randomness>,
    ) -> Result<Self, UpstreamError> {
        let UpstreamSettings {
            model,
            upstream_model,
            servers,
            context_tokens,
            tokenizer,
            timeouts,
            hedge_after,
        } = settings;
        let transport = Arc::new(Transport::new(timeouts.connect)?);
        let servers = checked(&transport, &servers)?;
        let pool = Pool::new(&model, servers, Arc::clone(&clock), randomness.next_u64());
        let context_tokens = match context_tokens {
            Some(tokens) => tokens,
            None => asked_for_context(&transport, pool.serving(), &upstream_model).await?,
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
            clock,
        });
        let runtime = Handle::current();
        let health = runtime.spawn(health::keep_looking(Arc::downgrade(&upstream), randomness));
        Ok(Self { upstream, places: Places::new(MAX_RUNNING), runtime, health })
    }

    /// Everything that can be wrong with servers that shall take the place of others, found before any model's change.
    pub fn check_servers(&self, servers: &Servers) -> Result<CheckedServers, TransportError> {
        checked(&self.upstream.transport, servers)
    }

    /// From now on jobs go to these servers; those that run are left to end where they are.
    pub fn replace_servers(&self, servers: CheckedServers) {
        self.upstream.pool.replace(servers);
    }
}

fn checked(transport: &Transport, servers: &Servers) -> Result<CheckedServers, TransportError> {
    let Servers { endpoints, api_key } = servers;
    transport.prepare_for(endpoints)?;
    let authorization = transport::authorization(api_key.as_deref())?;
    Ok(CheckedServers { endpoints: endpoints.clone(), authorization })
}

impl Drop for UpstreamEngine {
    fn drop(&mut self) {
        self.health.abort();
    }
}

/// The shortest that any server says, so that every one of them can take every job.
async fn asked_for_context(
    transport: &Arc<Transport>,
    endpoints: Vec<Arc<Endpoint>>,
    upstream_model: &str,
) -> Result<u32, UpstreamError> {
    let mut shortest: Option<u32> = None;
    let mut troubles = Vec::new();
    for (endpoint, outcome) in health::look_at(transport, endpoints).await {
        let url = &endpoint.url;
        match outcome.map(|list| context::context_tokens(&list, upstream_model)) {
            Ok(Some(tokens)) => shortest = Some(shortest.map_or(tokens, |shortest| shortest.min(tokens))),
            Ok(None) => troubles.push(format!("{url}: its list of models does not say it")),
            Err(fault) => troubles.push(format!("{url}: {}", fault.story)),
        }
    }
    shortest.ok_or_else(|| UpstreamError::ContextUnknown(troubles.join("; ")))
}

/// The most that a chat template adds around these turns.
fn template_tokens(turns: &[Turn]) -> u32 {
    let turns = u32::try_from(turns.len()).unwrap_or(u32::MAX);
    TEMPLATE_TOKENS.saturating_add(turns.saturating_mul(TEMPLATE_TOKENS_PER_TURN))
}

impl Engine for UpstreamEngine {
    fn context_tokens(&self) -> u32 {
        self.upstream.context_tokens
    }

    fn prepare(&self, turns: &[Turn]) -> Result<Prompt, EngineError> {
        let context_tokens = self.upstream.context_tokens;
        let counter = self.upstream.counter.as_ref();
        let input_tokens = counting::input_tokens(counter, turns)?;
        // Where the count is only the most that there can be, the servers are left to say what is too long.
        let prompt_tokens = match counter {
            Some(_) if input_tokens >= context_tokens => {
                return Err(EngineError::InputTooLong { prompt_tokens: Some(input_tokens), context_tokens });
            }
            Some(_) => input_tokens.saturating_add(template_tokens(turns)).min(context_tokens - 1),
            None => 0,
        };
        let form = PromptForm::Turns { turns: turns.into(), prompt_tokens };
        Ok(Prompt { form, input_tokens })
    }

    fn start(&self, job: Job) -> Result<Generation, EngineError> {
        let PromptForm::Turns { turns, .. } = &job.prompt.form else {
            return Err(EngineError::Failed("the prompt was prepared for another engine".to_owned()));
        };
        let place = self.places.take(job.account);
        let place = place.ok_or(EngineError::Overloaded { retry_after_s: 1 })?;
        let (sink, generation) = channel();
        let (upstream, turns) = (Arc::clone(&self.upstream), Arc::clone(turns));
        self.runtime.spawn(async move {
            upstream.run(&turns, &job, sink).await;
            drop(place);
        });
        Ok(generation)
    }

    fn outage(&self) -> Option<String> {
        self.upstream.pool.outage()
    }

    fn endpoints(&self) -> Vec<EndpointStatus> {
        self.upstream.pool.statuses()
    }
}
