//! `chancery serve`: wires everything together, in an order in which each step fails early and plainly:
//!
//! 1. configuration, data folder (and the lock on it), all listeners bound: what can be wrong is told within a moment;
//! 2. the operations listener answers from here on: alive, not ready;
//! 3. the database is locked against servers that do not go together with this one, opened and migrated, the limits' store is asked, the models are loaded, the demonstration firm is made;
//! 4. the API listener starts to answer, and the server is ready;
//! 5. on SIGTERM or Ctrl-C it drains (see `shutdown`).

mod demo;
mod descriptors;
mod listener;
mod logging;
mod ops;
mod shutdown;

use crate::catalogue;
use crate::cli::{Part, Place, Serve};
use crate::config::{Config, Loaded, ModelConfig};
use crate::data_folder::{DataFolder, ServerLock};
use crate::model_pull;
use anyhow::{Context, bail};
use chancery_api::ApiState;
use chancery_domain::{OsRandomness, SystemClock};
use chancery_engine_cpu::{CpuEngine, LoadError, LoadOptions, Plan};
use chancery_metering::{GuardedLimiter, LimitStoreUrl, Meter, Model, Models, open_limiter};
use chancery_store::{LimitsKept, ServingLock, Store};
use descriptors::MAX_OPS_CONNECTIONS;
use listener::Listener;
use shutdown::Signals;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub fn run(place: &Place, options: &Serve) -> anyhow::Result<()> {
    // The API is the one part there is so far, so naming it changes nothing; other names do not parse.
    debug_assert!(options.only.iter().all(|part| *part == Part::Api));
    let loaded = Loaded::read(place.config.as_deref(), place.data.as_deref())?;
    logging::start()?;
    loaded.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.context("the asynchronous runtime cannot be started")?;
    let outcome = runtime.block_on(serve(loaded.config, options.demo));
    // A start that was interrupted may have left a model loading; there is nothing to wait for in that.
    runtime.shutdown_background();
    outcome
}

async fn serve(config: Config, demo: bool) -> anyhow::Result<()> {
    let mut signals = Signals::watch()?;
    let server = tokio::select! {
        started = Server::start(config, demo) => started?,
        () = signals.next() => return Ok(()),
    };
    signals.next().await;
    shutdown::drain(&server.meter, &mut signals).await;
    server.stop().await;
    Ok(())
}

/// Everything that runs.
struct Server {
    meter: Arc<Meter>,
    store: Arc<dyn Store>,
    closing: CancellationToken,
    listeners: [JoinHandle<()>; 2],
    serving_lock: ServingLock,
    _lock: ServerLock,
}

impl Server {
    async fn start(config: Config, demo: bool) -> anyhow::Result<Self> {
        let data = DataFolder::open(&config.data)?;
        let lock = data.lock_for_serving()?;
        let api_listener =
            Listener::bind(config.api.listen, "api.listen", descriptors::api_connections()).await?;
        let ops_listener = Listener::bind(config.ops_listen, "ops.listen", MAX_OPS_CONNECTIONS).await?;
        let (api_address, ops_address) = (api_listener.address(), ops_listener.address());
        let api_url = config.api.public_url.clone().unwrap_or_else(|| local_url(api_address));

        let recorder = ops::install_metrics()?;
        tokio::spawn(ops::keep_metrics_small(recorder.clone()));
        let closing = CancellationToken::new();
        let readiness = ops::Readiness::default();
        let ops_router = ops::router(readiness.clone(), recorder);
        let ops_task = tokio::spawn(ops_listener.serve(ops_router, closing.clone()));

        let limits_kept = match config.limit_store {
            LimitStoreUrl::Memory => LimitsKept::InMemory,
            LimitStoreUrl::Redis(_) => LimitsKept::Shared,
        };
        let serving_lock = ServingLock::take(&config.database_url, limits_kept).await?;
        let store = chancery_store::open(&config.database_url).await?;
        let (clock, randomness) = (Arc::new(SystemClock), Arc::new(OsRandomness));
        let limiter = open_limiter(&config.limit_store, clock.clone()).await.with_context(|| {
            format!("limits.store: {} cannot be used; start it, or set it to \"memory\"", config.limit_store)
        })?;
        let limiter = Arc::new(GuardedLimiter::new(limiter, serving_lock.watch()));
        let models = load_models(&config.models, demo).await?;
        let demo = match demo {
            true => Some(demo::prepare(&data, &store, &api_url, &config.models[0].name).await?),
            false => None,
        };

        let meter = Arc::new(Meter::new(models, Arc::clone(&store), limiter, clock, randomness));
        let state = ApiState {
            meter: Arc::clone(&meter),
            currency: config.currency,
            max_body_bytes: config.api.max_body_bytes,
        };
        let api_task = tokio::spawn(api_listener.serve(chancery_api::router(state), closing.clone()));
        let keeps_tidy = Arc::clone(&meter);
        tokio::spawn(async move { keeps_tidy.keep_tidy().await });
        readiness.set_ready(Arc::clone(&meter), Arc::clone(&store));
        tracing::info!(api_listen = %api_address, ops_listen = %ops_address, data = %data.path().display(), "ready");
        greet(
            &demo.map_or_else(|| format!("Chancery serves the API at {api_url}\n"), |demo| demo.to_string()),
        );
        Ok(Self { meter, store, closing, listeners: [api_task, ops_task], serving_lock, _lock: lock })
    }

    async fn stop(self) {
        self.closing.cancel();
        for listener in self.listeners {
            // A listener only ends by returning; there is nothing to learn from how.
            let _ = listener.await;
        }
        self.store.close().await;
        self.serving_lock.release().await;
        tracing::info!("stopped");
    }
}

/// How to reach an address from this machine.
fn local_url(address: SocketAddr) -> String {
    match address.ip() {
        ip if ip.is_loopback() || ip.is_unspecified() => format!("http://localhost:{}", address.port()),
        _ => format!("http://{address}"),
    }
}

/// Standard output may be closed; the server runs all the same.
fn greet(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Plans all models before it loads the first, so that what cannot fit is told at once.
async fn load_models(configured: &[ModelConfig], demo: bool) -> anyhow::Result<Models> {
    for model in configured {
        if demo && !model.file.exists() {
            fetch_for_demo(model).await?;
        }
    }
    let files: Vec<(PathBuf, LoadOptions)> = configured.iter().map(ModelConfig::to_load).collect();
    let plans = in_background(move || Plan::for_models(&files)).await?;
    let mut models = Vec::new();
    for (model, plan) in configured.iter().zip(plans) {
        tracing::info!(memory_bytes = plan.need().total_bytes(), "{plan}");
        let engine = in_background(move || CpuEngine::load_planned(plan, Arc::new(SystemClock)))
            .await
            .with_context(|| format!("the model {} cannot be loaded", model.name))?;
        models.push(Model { name: model.name.clone(), engine: Arc::new(engine), prices: model.prices });
    }
    Ok(Models::new(models))
}

/// Reading and laying out models takes time, and the operations listener answers meanwhile.
async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LoadError> + Send + 'static,
) -> anyhow::Result<T> {
    Ok(tokio::task::spawn_blocking(work).await.context("loading the models failed")??)
}

/// A first look should need no second command; a real set-up pulls its models beforehand.
async fn fetch_for_demo(model: &ModelConfig) -> anyhow::Result<()> {
    let Some(known) = catalogue::named(&model.name).filter(|known| known.path() == model.file) else {
        bail!("the model {} has no file {}", model.name, model.file.display());
    };
    eprintln!("fetching {} ({} MB, once) …", known.description, known.bytes / 1_000_000);
    tokio::task::spawn_blocking(move || model_pull::pull(known))
        .await
        .context("fetching the model failed")??;
    Ok(())
}
