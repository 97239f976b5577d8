//! Opens the engines of models. Embedded models are planned and loaded; upstream servers are only asked what they offer. Which
//! models are offered, and when, is up to `model_set`.

use crate::config::{EngineConfig, ModelConfig, UpstreamConfig};
use crate::download_progress::DownloadProgress;
use anyhow::{Context, bail};
use chancery_domain::{OsRandomness, SecretToken, SystemClock};
use chancery_engine::Engine;
use chancery_engine_cpu::{CpuEngine, EngineGroup, LoadError, LoadOptions, Plan};
use chancery_engine_upstream::{UpstreamEngine, UpstreamSettings};
use chancery_metering::Model;
use chancery_model_files::{ModelFolder, catalog};
use chancery_store::SharedSecrets;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// The shared secret from which each account's salt for the servers' prefix caches is derived.
const CACHE_SALT_SECRET: &str = "upstream-cache-salt";

/// A model with the configuration that it was loaded with.
pub struct LoadedModel {
    pub config: ModelConfig,
    pub engine: LoadedEngine,
}

pub enum LoadedEngine {
    /// `version` is that of the file when it was loaded.
    Embedded {
        engine: Arc<CpuEngine>,
        version: Option<FileVersion>,
    },
    Upstream(Arc<UpstreamEngine>),
}

impl LoadedModel {
    pub fn to_model(&self) -> Model {
        let engine: Arc<dyn Engine> = match &self.engine {
            LoadedEngine::Embedded { engine, .. } => Arc::clone(engine) as Arc<dyn Engine>,
            LoadedEngine::Upstream(engine) => Arc::clone(engine) as Arc<dyn Engine>,
        };
        Model { name: self.config.name.clone(), engine, prices: self.config.prices }
    }

    pub fn embedded(&self) -> Option<&Arc<CpuEngine>> {
        match &self.engine {
            LoadedEngine::Embedded { engine, .. } => Some(engine),
            LoadedEngine::Upstream(_) => None,
        }
    }
}

/// Tells whether a file was replaced, without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileVersion {
    len: u64,
    modified: Option<SystemTime>,
}

impl FileVersion {
    /// `None` if the file cannot be found.
    pub fn read(file: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(file).ok()?;
        Some(Self { len: metadata.len(), modified: metadata.modified().ok() })
    }
}

pub struct ModelLoader {
    group: EngineGroup,
    secrets: SharedSecrets,
}

impl ModelLoader {
    pub fn new(secrets: SharedSecrets) -> Self {
        Self { group: EngineGroup::default(), secrets }
    }

    /// Loads the models of a server that starts. Plans all model files before loading the first, so that a lack of memory is
    /// reported at once.
    pub async fn load_all(&self, configured: &[ModelConfig], demo: bool) -> anyhow::Result<Vec<LoadedModel>> {
        for model in configured {
            if let (true, Some(embedded)) = (demo, model.embedded())
                && !embedded.file.exists()
            {
                fetch_for_demo(&model.name, &embedded.file).await?;
            }
        }
        let files: Vec<(PathBuf, LoadOptions)> = configured.iter().filter_map(ModelConfig::to_load).collect();
        let mut plans = self.plan(files, Vec::new(), None).await?.into_iter();
        let mut loaded = Vec::new();
        for model in configured {
            let engine = match &model.engine {
                EngineConfig::Upstream(config) => self.open_upstream(&model.name, config).await?,
                EngineConfig::Embedded(config) => {
                    let plan = plans.next().context("a model file has no plan")?;
                    self.load_file(&model.name, &config.file, plan).await?
                }
            };
            loaded.push(LoadedModel { config: model.clone(), engine });
        }
        Ok(loaded)
    }

    /// Plans model files beside the running engines, one of which may be dropped before they are loaded. An error is a
    /// `LoadError`, unless the process ends.
    pub async fn plan(
        &self,
        files: Vec<(PathBuf, LoadOptions)>,
        running: Vec<Arc<CpuEngine>>,
        freed: Option<Arc<CpuEngine>>,
    ) -> anyhow::Result<Vec<Plan>> {
        let group = self.group.clone();
        in_background(move || {
            let engines: Vec<&CpuEngine> = running.iter().map(Arc::as_ref).collect();
            group.plan(&files, &engines, freed.as_deref())
        })
        .await
    }

    /// Memory that another model could use; `None` if the system does not report it.
    pub fn usable_bytes(&self, running: &[Arc<CpuEngine>]) -> Option<u64> {
        let engines: Vec<&CpuEngine> = running.iter().map(Arc::as_ref).collect();
        self.group.usable_bytes(&engines)
    }

    pub async fn load_file(&self, name: &str, file: &Path, plan: Plan) -> anyhow::Result<LoadedEngine> {
        let memory_bytes = plan.memory_estimate().total_bytes();
        tracing::info!(memory_bytes, "{plan}");
        let version = FileVersion::read(file);
        let engine = in_background(move || CpuEngine::load_planned(plan, Arc::new(SystemClock)))
            .await
            .with_context(|| format!("cannot load model {name}"))?;
        metrics::gauge!("chancery_engine_memory_bytes", "model" => name.to_owned()).set(memory_bytes as f64);
        Ok(LoadedEngine::Embedded { engine: Arc::new(engine), version })
    }

    pub async fn open_upstream(&self, name: &str, config: &UpstreamConfig) -> anyhow::Result<LoadedEngine> {
        let engine = open_upstream(name, config, &self.secrets).await;
        let engine = engine.with_context(|| format!("cannot set up model {name}"))?;
        Ok(LoadedEngine::Upstream(Arc::new(engine)))
    }
}

async fn open_upstream(
    name: &str,
    config: &UpstreamConfig,
    secrets: &SharedSecrets,
) -> anyhow::Result<UpstreamEngine> {
    let new_secret = SecretToken::generate(&OsRandomness);
    let settings = UpstreamSettings {
        model: name.to_owned(),
        upstream_model: config.upstream_model.clone(),
        servers: config.servers()?,
        context_tokens: config.context_tokens,
        tokenizer: config.token_counter()?,
        timeouts: config.timeouts,
        hedge_after: config.hedge_after,
        cache_salt_secret: secrets.shared_secret(CACHE_SALT_SECRET, &new_secret).await?,
    };
    let engine = UpstreamEngine::start(settings, Arc::new(SystemClock), Arc::new(OsRandomness)).await?;
    let context_tokens = engine.context_tokens();
    tracing::info!(
        model = name,
        endpoints = config.endpoints.len(),
        context_tokens,
        "model runs on upstream servers"
    );
    Ok(engine)
}

/// Loading models takes time; requests and the operations listener must be answered meanwhile.
async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LoadError> + Send + 'static,
) -> anyhow::Result<T> {
    Ok(tokio::task::spawn_blocking(work).await.context("cannot load the models")??)
}

/// Lets the demo run with a single command; real deployments pull their models beforehand.
async fn fetch_for_demo(name: &str, file: &Path) -> anyhow::Result<()> {
    let folder = ModelFolder::default();
    let Some(known) = catalog::named(name).filter(|known| folder.path(known.name) == file) else {
        bail!(
            "model {name}: file not found: {}; download it with `chancery model pull`, or change `file`",
            file.display()
        );
    };
    eprintln!("downloading {} ({} MB, once) …", known.description, known.bytes / 1_000_000);
    tokio::task::spawn_blocking(move || folder.pull(known, &DownloadProgress::new()))
        .await
        .context("cannot download the model")??;
    Ok(())
}
