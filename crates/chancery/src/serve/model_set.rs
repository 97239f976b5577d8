//! The models of a running server, and how they change:
//!
//! 1. Everything in the new configuration is checked first. If a key file, a tokenizer or a server's address is wrong, nothing
//!    changes.
//! 2. New prices, servers and API keys apply at once. Requests that run keep theirs.
//! 3. Models that are gone from the configuration are withdrawn: new requests get `unknown_model`, running ones finish.
//! 4. New and changed models are loaded one by one, and offered when they are ready. A changed one takes the place of the old
//!    one then. If memory has no room for both, the old one is drained first; meanwhile its requests are told to try again.
//!    A model that cannot be loaded leaves the old one and all others as they are.
//! 5. An embedded engine that is no longer offered is dropped after its last request, and its memory is free.

use super::models::{FileVersion, LoadedEngine, LoadedModel, ModelLoader};
use crate::config::{EmbeddedConfig, EngineConfig, ModelConfig, UpstreamConfig};
use anyhow::Context;
use chancery_engine::{Engine, EngineError, Generation, Job, Prompt, Turn};
use chancery_engine_cpu::{CpuEngine, LoadError, Plan};
use chancery_engine_upstream::ValidatedServers;
use chancery_metering::{Meter, Model};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::task::JoinHandle;

/// How often an engine that is no longer offered is checked for requests that still use it.
const DRAIN_POLL: Duration = Duration::from_millis(100);
/// When a caller should try again, while a model is replaced that has no room beside the old one.
const REPLACED_RETRY_AFTER_S: u32 = 10;

pub struct ModelSet {
    meter: Arc<Meter>,
    loader: ModelLoader,
    entries: Vec<Entry>,
    unloading: Vec<Unloading>,
}

struct Entry {
    model: LoadedModel,
    origin: ModelOrigin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ModelOrigin {
    Configured,
    /// By the demo. It is in no configuration, so none removes it.
    Fetched,
}

/// An engine that still has requests.
struct Unloading {
    engine: Weak<CpuEngine>,
    task: JoinHandle<()>,
}

/// What a new configuration changes about one model.
enum Change<'a> {
    /// The engine stays, possibly with other prices and servers.
    Keep {
        index: usize,
        config: &'a ModelConfig,
        servers: Option<ValidatedServers>,
    },
    Load(&'a ModelConfig),
}

impl ModelSet {
    /// `loaded` are the models that the meter offers.
    pub fn new(meter: Arc<Meter>, loader: ModelLoader, loaded: Vec<LoadedModel>) -> Self {
        let entries = loaded.into_iter().map(|model| Entry { model, origin: ModelOrigin::Configured });
        Self { meter, loader, entries: entries.collect(), unloading: Vec::new() }
    }

    /// Applies a new configuration. An error means that nothing has changed; models that cannot be loaded are logged.
    pub async fn apply(&mut self, configured: &[ModelConfig]) -> anyhow::Result<()> {
        let mut to_load = Vec::new();
        for change in self.check(configured)? {
            match change {
                Change::Keep { index, config, servers } => self.update(index, config, servers),
                Change::Load(config) => to_load.push(config),
            }
        }
        self.withdraw_missing(configured);
        for config in to_load {
            tracing::info!(model = config.name, "loading model");
            match self.load(config, ModelOrigin::Configured).await {
                Ok(()) => tracing::info!(model = config.name, "model is offered"),
                Err(error) => {
                    let error = format!("{error:#}");
                    let is_offered = self.position(&config.name).is_some();
                    tracing::error!(model = config.name, is_offered, error, "model not loaded");
                }
            }
        }
        Ok(())
    }

    /// Adds a model that is in no configuration.
    pub async fn add_fetched(&mut self, config: &ModelConfig) -> anyhow::Result<()> {
        self.load(config, ModelOrigin::Fetched).await
    }

    pub fn has(&self, name: &str) -> bool {
        self.position(name).is_some()
    }

    /// Memory that another model could use; `None` if the system does not report it.
    pub fn usable_bytes(&self) -> Option<u64> {
        self.loader.usable_bytes(&self.running_engines())
    }

    /// Step 1.
    fn check<'a>(&self, configured: &'a [ModelConfig]) -> anyhow::Result<Vec<Change<'a>>> {
        let checked = configured.iter().map(|config| -> anyhow::Result<Change<'a>> {
            let kept = self.position(&config.name).filter(|index| {
                let LoadedModel { config: old, engine } = &self.entries[*index].model;
                keeps_engine(old, engine, config)
            });
            let of_model = || format!("model {}", config.name);
            let mut servers = None;
            if let EngineConfig::Upstream(upstream) = &config.engine {
                let read = upstream.servers().with_context(of_model)?;
                match kept.map(|index| &self.entries[index].model.engine) {
                    Some(LoadedEngine::Upstream(engine)) => {
                        servers = Some(engine.check_servers(&read).with_context(of_model)?);
                    }
                    _ => {
                        upstream.token_counter().with_context(of_model)?;
                    }
                }
            }
            Ok(match kept {
                Some(index) => Change::Keep { index, config, servers },
                None => Change::Load(config),
            })
        });
        checked.collect()
    }

    /// Step 2.
    fn update(&mut self, index: usize, config: &ModelConfig, servers: Option<ValidatedServers>) {
        let Entry { model, origin } = &mut self.entries[index];
        if let (Some(servers), LoadedEngine::Upstream(engine)) = (servers, &model.engine) {
            engine.replace_servers(servers);
            if let EngineConfig::Upstream(upstream) = &config.engine {
                let endpoints = upstream.endpoints.join(", ");
                tracing::info!(model = config.name, endpoints, "upstream servers");
            }
        }
        let has_new_prices = model.config.prices != config.prices;
        model.config = config.clone();
        *origin = ModelOrigin::Configured;
        if has_new_prices {
            tracing::info!(model = config.name, "model has new prices");
            self.meter.offer_model(model.to_model());
        }
    }

    /// Step 3.
    fn withdraw_missing(&mut self, configured: &[ModelConfig]) {
        let is_missing = |entry: &Entry| {
            let name = &entry.model.config.name;
            entry.origin == ModelOrigin::Configured && configured.iter().all(|config| config.name != *name)
        };
        let (missing, kept) = std::mem::take(&mut self.entries).into_iter().partition(is_missing);
        self.entries = kept;
        for Entry { model, .. } in missing {
            self.meter.withdraw_model(&model.config.name);
            tracing::info!(model = model.config.name, "model is no longer offered");
            self.unload(model);
        }
    }

    /// Step 4, for one model.
    async fn load(&mut self, config: &ModelConfig, origin: ModelOrigin) -> anyhow::Result<()> {
        let engine = match &config.engine {
            EngineConfig::Upstream(upstream) => self.loader.open_upstream(&config.name, upstream).await?,
            EngineConfig::Embedded(embedded) => self.load_file(config, embedded).await?,
        };
        let old = self.position(&config.name).map(|index| self.entries.swap_remove(index));
        self.offer(LoadedModel { config: config.clone(), engine }, origin);
        if let Some(old) = old {
            self.unload(old.model);
        }
        Ok(())
    }

    fn offer(&mut self, model: LoadedModel, origin: ModelOrigin) {
        self.meter.offer_model(model.to_model());
        self.entries.push(Entry { model, origin });
    }

    /// Loads a file beside everything that runs; or else when what is being unloaded is gone; or else instead of the old model.
    async fn load_file(
        &mut self,
        config: &ModelConfig,
        embedded: &EmbeddedConfig,
    ) -> anyhow::Result<LoadedEngine> {
        let mut plan = self.plan(config, None).await;
        if is_out_of_memory(&plan) && !self.unloading.is_empty() {
            tracing::info!(model = config.name, "waiting for the memory of models that are being unloaded");
            self.until_unloaded().await;
            plan = self.plan(config, None).await;
        }
        let old = self.position(&config.name).filter(|index| self.entries[*index].model.embedded().is_some());
        if let (true, Some(index)) = (is_out_of_memory(&plan), old) {
            // Only if it fits then: otherwise the old one stays.
            let freed = self.entries[index].model.embedded().cloned();
            let plan = self.plan(config, freed).await?;
            return self.load_instead(index, config, embedded, plan).await;
        }
        self.loader.load_file(&config.name, &embedded.file, plan?).await
    }

    /// Drains the old model first. If the new one cannot be loaded after all, the old one is loaded again.
    async fn load_instead(
        &mut self,
        index: usize,
        config: &ModelConfig,
        embedded: &EmbeddedConfig,
        plan: Plan,
    ) -> anyhow::Result<LoadedEngine> {
        let Entry { model: old, origin } = self.entries.swap_remove(index);
        let old_config = old.config.clone();
        tracing::warn!(model = config.name, "no memory for both, draining the model before its replacement");
        let parameters = old.to_model().engine.parameters();
        let pending = PendingEngine { context_tokens: plan.context_tokens(), parameters };
        self.meter.offer_model(Model {
            name: config.name.clone(),
            engine: Arc::new(pending),
            prices: old_config.prices,
        });
        self.unload(old);
        self.until_unloaded().await;
        let error = match self.loader.load_file(&config.name, &embedded.file, plan).await {
            Ok(engine) => return Ok(engine),
            Err(error) => error,
        };
        match self.load_again(&old_config).await {
            Ok(engine) => self.offer(LoadedModel { config: old_config, engine }, origin),
            Err(of_old) => {
                self.meter.withdraw_model(&config.name);
                let of_old = format!("{of_old:#}");
                tracing::error!(model = config.name, error = of_old, "old model cannot be loaded again");
            }
        }
        Err(error)
    }

    async fn load_again(&self, config: &ModelConfig) -> anyhow::Result<LoadedEngine> {
        let file = &config.embedded().context("not an embedded model")?.file;
        let plan = self.plan(config, None).await?;
        self.loader.load_file(&config.name, file, plan).await
    }

    async fn plan(&self, config: &ModelConfig, freed: Option<Arc<CpuEngine>>) -> anyhow::Result<Plan> {
        let files = config.to_load().into_iter().collect();
        let plans = self.loader.plan(files, self.running_engines(), freed).await;
        plans
            .with_context(|| format!("cannot load model {}", config.name))?
            .pop()
            .context("a model file has no plan")
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.entries.iter().position(|entry| entry.model.config.name == name)
    }

    /// The engines that have memory, whether or not they are offered.
    fn running_engines(&self) -> Vec<Arc<CpuEngine>> {
        let offered = self.entries.iter().filter_map(|entry| entry.model.embedded().cloned());
        offered.chain(self.unloading.iter().filter_map(|unloading| unloading.engine.upgrade())).collect()
    }

    /// Step 5. An upstream engine has nothing to free.
    fn unload(&mut self, model: LoadedModel) {
        if let LoadedEngine::Embedded { engine, .. } = model.engine {
            let weak = Arc::downgrade(&engine);
            let task = tokio::spawn(drain(model.config.name, engine));
            self.unloading.retain(|unloading| !unloading.task.is_finished());
            self.unloading.push(Unloading { engine: weak, task });
        }
    }

    async fn until_unloaded(&mut self) {
        for unloading in self.unloading.drain(..) {
            // It ends without a result.
            let _ = unloading.task.await;
        }
    }
}

/// Drops the engine after its last request.
async fn drain(name: String, mut engine: Arc<CpuEngine>) {
    let memory_bytes = engine.memory_bytes();
    let engine = loop {
        match Arc::try_unwrap(engine) {
            Ok(engine) => break engine,
            Err(in_use) => engine = in_use,
        }
        tokio::time::sleep(DRAIN_POLL).await;
    };
    // Waits for the engine's threads.
    let _ = tokio::task::spawn_blocking(move || drop(engine)).await;
    tracing::info!(model = name, memory_bytes, "model unloaded");
}

/// Whether the model can stay loaded under the new configuration.
fn keeps_engine(old: &ModelConfig, engine: &LoadedEngine, new: &ModelConfig) -> bool {
    match (&old.engine, engine, &new.engine) {
        (
            EngineConfig::Embedded(old),
            LoadedEngine::Embedded { version, .. },
            EngineConfig::Embedded(new),
        ) => old == new && *version == FileVersion::read(&new.file),
        (EngineConfig::Upstream(old), LoadedEngine::Upstream(_), EngineConfig::Upstream(new)) => {
            differ_in_servers_only(old, new)
        }
        _ => false,
    }
}

/// Servers and their API key can be replaced in a running engine. Equal configurations differ in nothing.
fn differ_in_servers_only(old: &UpstreamConfig, new: &UpstreamConfig) -> bool {
    let with_new_servers = UpstreamConfig {
        endpoints: new.endpoints.clone(),
        api_key_file: new.api_key_file.clone(),
        ..old.clone()
    };
    with_new_servers == *new
}

fn is_out_of_memory(plan: &anyhow::Result<Plan>) -> bool {
    let error = plan.as_ref().err().and_then(|error| error.downcast_ref::<LoadError>());
    matches!(error, Some(LoadError::Memory(_)))
}

/// Stands in for a model that is being replaced, and starts nothing.
struct PendingEngine {
    context_tokens: u32,
    /// Of the old model: the new one's are not known yet.
    parameters: Option<u64>,
}

impl Engine for PendingEngine {
    fn context_tokens(&self) -> u32 {
        self.context_tokens
    }

    fn prepare(&self, _turns: &[Turn]) -> Result<Prompt, EngineError> {
        Err(EngineError::Restarting { retry_after_s: REPLACED_RETRY_AFTER_S })
    }

    fn start(&self, _job: Job) -> Result<Generation, EngineError> {
        Err(EngineError::Restarting { retry_after_s: REPLACED_RETRY_AFTER_S })
    }

    fn parameters(&self) -> Option<u64> {
        self.parameters
    }

    fn outage(&self) -> Option<String> {
        Some("being replaced".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upstream(endpoint: &str) -> UpstreamConfig {
        UpstreamConfig {
            endpoints: vec![endpoint.to_owned()],
            upstream_model: "m".to_owned(),
            api_key_file: None,
            tokenizer: None,
            context_tokens: Some(1_024),
            timeouts: chancery_engine_upstream::Timeouts::default(),
            hedge_after: None,
        }
    }

    #[test]
    fn engine_is_kept_for_other_servers_and_replaced_for_anything_else() {
        let old = upstream("http://127.0.0.1:1/v1");
        let with_key = UpstreamConfig { api_key_file: Some("k".into()), ..upstream("http://127.0.0.1:2/v1") };
        assert!(differ_in_servers_only(&old, &old) && differ_in_servers_only(&old, &with_key));
        for new in [
            UpstreamConfig { upstream_model: "other".to_owned(), ..old.clone() },
            UpstreamConfig { tokenizer: Some("tokenizer.json".into()), ..old.clone() },
            UpstreamConfig { context_tokens: None, ..old.clone() },
            UpstreamConfig { hedge_after: Some(Duration::from_secs(1)), ..old.clone() },
        ] {
            assert!(!differ_in_servers_only(&old, &new), "{new:?}");
        }
    }

    #[test]
    fn only_a_lack_of_memory_is_worth_waiting_for() {
        let missing = LoadError::NotFound { path: "absent.gguf".into() };
        let failed: anyhow::Result<Plan> = Err(missing.into());
        assert!(!is_out_of_memory(&failed.context("cannot load model m")));
        assert!(!is_out_of_memory(&Err(anyhow::anyhow!("cannot load the models"))));
    }

    #[test]
    fn requests_are_told_to_try_again_while_a_model_is_replaced() {
        let pending = PendingEngine { context_tokens: 1_024, parameters: None };
        assert_eq!((pending.context_tokens(), pending.outage().as_deref()), (1_024, Some("being replaced")));
        assert!(matches!(pending.prepare(&[]), Err(EngineError::Restarting { retry_after_s: 10 })));
    }
}
