//! `chancery serve`: wires everything together, in an order in which each step fails early and plainly:
//!
//! 1. configuration, data folder (and the lock on it), all listeners bound: what can be wrong is told within a moment;
//! 2. the operations listener answers from here on: alive, not ready;
//! 3. the database is opened and migrated, the models are loaded, the demonstration firm is made;
//! 4. the API listener starts to answer, and the server is ready;
//! 5. on SIGTERM or Ctrl-C it drains (see `shutdown`).

mod demo;
mod listener;
mod logging;
mod ops;
mod shutdown;

use crate::catalogue;
use crate::cli::{Part, Place, Serve};
use crate::config::{Config, Loaded, ModelConfig};
use crate::data_folder::DataFolder;
use crate::model_pull;
use anyhow::{Context, bail};
use chancery_api::ApiState;
use chancery_domain::{OsRandomness, SystemClock};
use chancery_engine_cpu::{CpuEngine, LoadOptions};
use chancery_metering::{Meter, Model, Models};
use listener::Listener;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

pub fn run(place: &Place, options: &Serve) -> anyhow::Result<()> {
    // The API is the one part there is so far, so naming it changes nothing; other names do not parse.
    debug_assert!(options.only.iter().all(|part| *part == Part::Api));
    let loaded = Loaded::read(place.config.as_deref(), place.data.as_deref())?;
    logging::start();
    loaded.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime
        .context("the asynchronous runtime cannot be started")?
        .block_on(serve(loaded.config, options.demo))
}

async fn serve(config: Config, demo: bool) -> anyhow::Result<()> {
    let data = DataFolder::open(&config.data)?;
    let _lock = data.lock_for_serving()?;
    let api_listener = Listener::bind(config.api.listen, "api.listen").await?;
    let ops_listener = Listener::bind(config.ops_listen, "ops.listen").await?;
    let (api_address, ops_address) = (api_listener.address(), ops_listener.address());
    let api_url = match &config.api.public_url {
        Some(url) => url.clone(),
        None => format!("http://localhost:{}", api_address.port()),
    };

    let recorder = ops::install_metrics()?;
    let closing = CancellationToken::new();
    let readiness = ops::Readiness::default();
    let ops_task =
        tokio::spawn(ops_listener.serve(ops::router(readiness.clone(), recorder), closing.clone()));

    let store = chancery_store::open(&config.database_url).await?;
    let models = load_models(&config.models, demo).await?;
    let demo =
        if demo { Some(demo::prepare(&data, &store, &api_url, &config.models[0].name).await?) } else { None };

    let meter =
        Arc::new(Meter::new(models, Arc::clone(&store), Arc::new(SystemClock), Arc::new(OsRandomness)));
    let state = ApiState {
        meter: Arc::clone(&meter),
        currency: config.currency,
        max_body_bytes: config.api.max_body_bytes,
    };
    let api_task = tokio::spawn(api_listener.serve(chancery_api::router(state), closing.clone()));
    readiness.set_ready(Arc::clone(&meter), Arc::clone(&store));
    tracing::info!(api_listen = %api_address, ops_listen = %ops_address, data = %data.path().display(), "ready");
    match demo {
        Some(demo) => demo.print(),
        None => println!("Chancery serves the API at {api_url}"),
    }

    shutdown::wait_and_drain(&meter).await?;
    closing.cancel();
    let _ = tokio::join!(api_task, ops_task);
    store.close().await;
    tracing::info!("stopped");
    Ok(())
}

async fn load_models(configured: &[ModelConfig], demo: bool) -> anyhow::Result<Models> {
    let mut models = Vec::new();
    for model in configured {
        if demo && !model.file.exists() {
            fetch_for_demo(model).await?;
        }
        let file = model.file.clone();
        let options = LoadOptions {
            context_tokens: model.context_tokens,
            slots: model.slots,
            ..LoadOptions::default()
        };
        let loading = move || CpuEngine::load(&file, &options, Arc::new(SystemClock));
        let engine = tokio::task::spawn_blocking(loading)
            .await
            .context("loading a model failed")?
            .with_context(|| format!("the model {} cannot be loaded", model.name))?;
        models.push(Model { name: model.name.clone(), engine: Arc::new(engine), prices: model.prices });
    }
    Ok(Models::new(models))
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
