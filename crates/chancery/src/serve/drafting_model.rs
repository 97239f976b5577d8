//! The demo's model for letters. The demo starts at once with the smallest model, which writes unusable letters. Meanwhile this task
//! downloads a better one and adds it to the running models; the portal drafts with the best model that the API offers.
//! Outside of a demo nothing is fetched: operators choose their models.

use super::demo::DemoOptions;
use super::model_set::ModelSet;
use crate::config::{Config, EmbeddedConfig, EngineConfig, ModelConfig};
use anyhow::Context;
use chancery_domain::Prices;
use chancery_model_files::catalog::{self, CatalogModel};
use chancery_model_files::{FolderError, HumanBytes, ModelFolder, Progress, Stage, Stored};
use chancery_portal::{DraftingModelState, DraftingModelStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{Mutex, watch};

/// Shown until the model answers.
const MAX_PERCENT: u64 = 99;

/// Starts fetching the model, if this is a demo that has no better one. Returns what the portal shows about it.
pub fn start(
    config: &Config,
    demo: Option<DemoOptions>,
    models: Option<&Arc<Mutex<ModelSet>>>,
) -> DraftingModelStatus {
    let (sender, status) = watch::channel(DraftingModelState::Ready);
    let drafting = &config.portal.drafting;
    let is_chosen = drafting.api_url.is_some() || drafting.model.is_some();
    let needs_better_model = !is_chosen && has_only_default_model(&config.models);
    if let (Some(demo), Some(models), true) = (demo, models, needs_better_model) {
        if demo.fetches_model {
            sender.send_replace(DraftingModelState::Fetching { percent: 0 });
            tokio::spawn(run(Arc::clone(models), Arc::new(sender)));
        } else {
            let reason = "downloads are turned off (`--no-fetch`)".to_owned();
            sender.send_replace(DraftingModelState::Unavailable { reason });
        }
    }
    status
}

/// Whether all letters would be drafted with the default model.
fn has_only_default_model(models: &[ModelConfig]) -> bool {
    models.iter().all(|model| model.embedded().is_some() && model.name == catalog::DEFAULT.name)
}

async fn run(models: Arc<Mutex<ModelSet>>, state: Arc<watch::Sender<DraftingModelState>>) {
    let model = catalog::DRAFTING;
    let outcome = fetch_and_load(model, &models, &state).await;
    state.send_replace(match outcome {
        Ok(()) => {
            tracing::info!(model = model.name, "letters are drafted with this model from now on");
            DraftingModelState::Ready
        }
        Err(Failure { reason, error }) => {
            let error = error.map(|error| format!("{error:#}"));
            tracing::warn!(model = model.name, reason, error, "no better model for letters");
            DraftingModelState::Unavailable { reason }
        }
    });
}

/// Why there is no better model, for the user and for the log.
struct Failure {
    reason: String,
    error: Option<anyhow::Error>,
}

async fn fetch_and_load(
    model: &'static CatalogModel,
    models: &Mutex<ModelSet>,
    state: &Arc<watch::Sender<DraftingModelState>>,
) -> Result<(), Failure> {
    if models.lock().await.has(model.name) {
        return Ok(());
    }
    // Before the download, which would be in vain.
    if let Some(usable_bytes) = models.lock().await.usable_bytes()
        && usable_bytes < model.memory_bytes
    {
        let (needed, free) = (HumanBytes(model.memory_bytes), HumanBytes(usable_bytes));
        let reason = format!("{} needs {needed} of memory, and {free} can be used", model.name);
        return Err(Failure { reason, error: None });
    }
    tracing::info!(model = model.name, bytes = model.bytes, "downloading the model for letters");
    let stored = pull(model, Arc::clone(state)).await?;
    let failed_to_load = |error| Failure {
        reason: format!("{} was downloaded but cannot be loaded; the server's log says why", model.name),
        error: Some(error),
    };
    let config = model_config(model, stored).map_err(failed_to_load)?;
    let mut models = models.lock().await;
    // A reload during the download may have added it, with prices of its own.
    if models.has(model.name) {
        return Ok(());
    }
    models.add_fetched(&config).await.map_err(failed_to_load)
}

async fn pull(
    model: &'static CatalogModel,
    state: Arc<watch::Sender<DraftingModelState>>,
) -> Result<Stored, Failure> {
    let pulling = tokio::task::spawn_blocking(move || {
        let progress = FetchProgress { model, total_bytes: AtomicU64::new(0), state };
        ModelFolder::default().pull(model, &progress)
    });
    match pulling.await {
        Ok(Ok(stored)) => Ok(stored),
        Ok(Err(error)) => {
            let reason = reason_not_pulled(model, &error);
            Err(Failure { reason, error: Some(error.into()) })
        }
        Err(error) => {
            let reason = format!("{} could not be downloaded; the server's log says why", model.name);
            Err(Failure { reason, error: Some(error.into()) })
        }
    }
}

/// Without paths and addresses, which are for the log.
fn reason_not_pulled(model: &CatalogModel, error: &FolderError) -> String {
    match error {
        FolderError::DiskSpace { needed_bytes, free_bytes, .. } => {
            let (needed, free) = (HumanBytes(*needed_bytes), HumanBytes(*free_bytes));
            format!("{} needs {needed} of disk space, and {free} are free", model.name)
        }
        FolderError::DiskFull { .. } => {
            format!("the disk was full before {} was downloaded", model.name)
        }
        _ => format!("{} could not be downloaded; the server's log says why", model.name),
    }
}

fn model_config(model: &CatalogModel, stored: Stored) -> anyhow::Result<ModelConfig> {
    let (input, output) = (model.input_per_million.parse()?, model.output_per_million.parse()?);
    Ok(ModelConfig {
        name: model.name.to_owned(),
        engine: EngineConfig::Embedded(EmbeddedConfig {
            file: stored.path,
            context_tokens: None,
            slots: None,
        }),
        prices: Prices::new(input, output).context("prices of the catalogue")?,
    })
}

/// Turns the progress of a download into what the portal shows.
struct FetchProgress {
    model: &'static CatalogModel,
    /// 0 while nothing is downloaded.
    total_bytes: AtomicU64,
    state: Arc<watch::Sender<DraftingModelState>>,
}

impl Progress for FetchProgress {
    fn start(&self, stage: Stage, total_bytes: Option<u64>) {
        let total_bytes = match stage == Stage::Downloading {
            true => total_bytes.unwrap_or(self.model.bytes),
            false => 0,
        };
        self.total_bytes.store(total_bytes, Ordering::Relaxed);
    }

    fn set(&self, done_bytes: u64) {
        let Some(percent) = percent(done_bytes, self.total_bytes.load(Ordering::Relaxed)) else { return };
        self.state.send_if_modified(|state| {
            let fetching = DraftingModelState::Fetching { percent };
            let is_new = *state != fetching;
            *state = fetching;
            is_new
        });
    }

    fn finish(&self) {}

    fn message(&self, text: &str) {
        tracing::info!(model = self.model.name, "{text}");
    }
}

/// `None` if there is nothing to download.
fn percent(done_bytes: u64, total_bytes: u64) -> Option<u8> {
    let percent = done_bytes.saturating_mul(100).checked_div(total_bytes)?;
    u8::try_from(percent.min(MAX_PERCENT)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress() -> (FetchProgress, DraftingModelStatus) {
        let (sender, status) = watch::channel(DraftingModelState::Ready);
        let state = Arc::new(sender);
        (FetchProgress { model: catalog::DRAFTING, total_bytes: AtomicU64::new(0), state }, status)
    }

    #[test]
    fn download_is_shown_in_percent_and_never_as_done_before_the_model_answers() {
        let (progress, status) = progress();
        progress.start(Stage::Checking, Some(1_000));
        progress.set(500);
        assert_eq!(*status.borrow(), DraftingModelState::Ready, "checking is no download");
        progress.start(Stage::Downloading, Some(1_000));
        for (done_bytes, percent) in [(0, 0), (509, 50), (1_000, 99), (2_000, 99)] {
            progress.set(done_bytes);
            assert_eq!(*status.borrow(), DraftingModelState::Fetching { percent });
        }
        progress.start(Stage::Downloading, None);
        progress.set(catalog::DRAFTING.bytes / 4);
        assert_eq!(*status.borrow(), DraftingModelState::Fetching { percent: 25 });
    }

    #[test]
    fn only_the_default_model_is_improved_upon() {
        let prices = Prices::new("0.10".parse().unwrap(), "0.40".parse().unwrap()).unwrap();
        let model = |name: &str| {
            let file = format!("{name}.gguf").into();
            let engine = EngineConfig::Embedded(EmbeddedConfig { file, context_tokens: None, slots: None });
            ModelConfig { name: name.to_owned(), engine, prices }
        };
        assert!(has_only_default_model(&[model("smollm2-135m")]));
        assert!(!has_only_default_model(&[model("smollm2-135m"), model("own")]));
        assert!(!has_only_default_model(&[model(catalog::DRAFTING.name)]));
    }

    #[test]
    fn reason_for_the_user_has_no_path() {
        let folder = std::path::PathBuf::from("/home/someone/.cache");
        let full = FolderError::DiskSpace { folder, needed_bytes: 555_000_000, free_bytes: 20_000_000 };
        let reason = reason_not_pulled(catalog::DRAFTING, &full);
        assert_eq!(reason, "qwen2.5-coder-0.5b needs 555 MB of disk space, and 20 MB are free");
    }

    #[test]
    fn prices_of_the_catalogue_can_be_used() {
        for known in catalog::ALL {
            let prices = (known.input_per_million.parse(), known.output_per_million.parse());
            let (Ok(input), Ok(output)) = prices else { panic!("{}", known.name) };
            assert!(Prices::new(input, output).is_ok(), "{}", known.name);
        }
    }
}
