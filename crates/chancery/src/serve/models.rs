//! The engines of all models. Embedded models are planned and loaded here; upstream servers are only asked what they offer.

use crate::config::{EngineConfig, ModelConfig, UpstreamConfig};
use crate::model_catalog;
use crate::model_pull;
use anyhow::{Context, bail};
use chancery_domain::{OsRandomness, SecretToken, SystemClock};
use chancery_engine::Engine;
use chancery_engine_cpu::{CpuEngine, LoadError, LoadOptions, Plan};
use chancery_engine_upstream::{UpstreamEngine, UpstreamSettings};
use chancery_metering::{Model, Models};
use chancery_store::SharedSecrets;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The shared secret from which each account's salt for the servers' prefix caches is derived.
const CACHE_SALT_SECRET: &str = "upstream-cache-salt";

pub struct LoadedModels {
    pub models: Models,
    pub upstreams: Vec<UpstreamModel>,
}

pub struct UpstreamModel {
    pub name: String,
    pub engine: Arc<UpstreamEngine>,
}

impl LoadedModels {
    /// Plans all model files before loading the first, so that a lack of memory is reported at once.
    pub async fn load(
        configured: &[ModelConfig],
        secrets: &SharedSecrets,
        demo: bool,
    ) -> anyhow::Result<Self> {
        for model in configured {
            if let (true, Some(embedded)) = (demo, model.embedded())
                && !embedded.file.exists()
            {
                fetch_for_demo(&model.name, &embedded.file).await?;
            }
        }
        let files: Vec<(PathBuf, LoadOptions)> = configured.iter().filter_map(ModelConfig::to_load).collect();
        let mut plans = in_background(move || Plan::for_models(&files)).await?.into_iter();
        let (mut models, mut upstreams) = (Vec::new(), Vec::new());
        for model in configured {
            let engine: Arc<dyn Engine> = match &model.engine {
                EngineConfig::Upstream(config) => {
                    let upstream = open_upstream(&model.name, config, secrets)
                        .await
                        .with_context(|| format!("cannot set up model {}", model.name))?;
                    let engine = Arc::clone(&upstream.engine);
                    upstreams.push(upstream);
                    engine
                }
                EngineConfig::Embedded(_) => {
                    let plan = plans.next().context("a model file has no plan")?;
                    Arc::new(load_file(&model.name, plan).await?)
                }
            };
            models.push(Model { name: model.name.clone(), engine, prices: model.prices });
        }
        Ok(Self { models: Models::new(models), upstreams })
    }
}

async fn load_file(name: &str, plan: Plan) -> anyhow::Result<CpuEngine> {
    tracing::info!(memory_bytes = plan.memory_estimate().total_bytes(), "{plan}");
    in_background(move || CpuEngine::load_planned(plan, Arc::new(SystemClock)))
        .await
        .with_context(|| format!("cannot load model {name}"))
}

async fn open_upstream(
    name: &str,
    config: &UpstreamConfig,
    secrets: &SharedSecrets,
) -> anyhow::Result<UpstreamModel> {
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
    Ok(UpstreamModel { name: name.to_owned(), engine: Arc::new(engine) })
}

/// Loading models takes time; the operations listener must answer meanwhile.
async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LoadError> + Send + 'static,
) -> anyhow::Result<T> {
    Ok(tokio::task::spawn_blocking(work).await.context("cannot load the models")??)
}

/// Lets the demo run with a single command; real deployments pull their models beforehand.
async fn fetch_for_demo(name: &str, file: &Path) -> anyhow::Result<()> {
    let Some(known) = model_catalog::named(name).filter(|known| known.path() == file) else {
        bail!("model {name}: file not found: {}", file.display());
    };
    eprintln!("downloading {} ({} MB, once) …", known.description, known.bytes / 1_000_000);
    tokio::task::spawn_blocking(move || model_pull::pull(known))
        .await
        .context("cannot download the model")??;
    Ok(())
}
