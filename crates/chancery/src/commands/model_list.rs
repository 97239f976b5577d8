//! `chancery model list`: configured models, model files, and the catalogue, with what each needs and whether it fits.

use crate::cli::GlobalArgs;
use crate::config::{EngineConfig, Loaded, ModelConfig};
use crate::output::{print_json, print_table};
use chancery_engine_cpu::{LoadError, LoadOptions, Plan, usable_memory_bytes};
use chancery_model_files::catalog::{self, CatalogModel};
use chancery_model_files::{HumanBytes, ModelFolder, StoredModel};
use std::path::{Path, PathBuf};

#[derive(serde::Serialize)]
struct Row {
    name: String,
    configured: bool,
    present: bool,
    file: String,
    /// Size of the file; for a model that is not here, of the file to download.
    bytes: Option<u64>,
    /// Part of the file that an unfinished download left.
    partial_bytes: Option<u64>,
    licence: Option<&'static str>,
    /// The hash of the file when it was stored; for a model that is not here, the one that it must have.
    sha256: Option<String>,
    /// Whether the file had the expected hash when it was stored.
    verified: bool,
    /// What the embedded engine plans for this model alone.
    memory_bytes: Option<u64>,
    fit: Fit,
    /// Why the embedded engine cannot load the file.
    problem: Option<String>,
    /// Model files that are not configured have no price yet.
    input_per_million: Option<String>,
    /// `None`: cached tokens cost as much as other input.
    cached_input_per_million: Option<String>,
    output_per_million: Option<String>,
}

/// Whether the model alone fits into the memory that is available now.
#[derive(Clone, Copy, serde::Serialize)]
#[serde(rename_all = "snake_case")]
enum Fit {
    Fits,
    TooLarge,
    Unsupported,
    /// It runs on other machines, or this system does not report its memory.
    Unknown,
}

impl Fit {
    fn cell(self) -> &'static str {
        match self {
            Self::Fits => "yes",
            Self::TooLarge => "no",
            Self::Unsupported => "unsupported",
            Self::Unknown => "–",
        }
    }
}

/// What a model needs of this machine.
struct Need {
    memory_bytes: Option<u64>,
    fit: Fit,
    problem: Option<String>,
}

impl Need {
    /// From the file's header, by the engine's own plan.
    fn of_file(file: &Path, options: LoadOptions, estimate: Option<u64>) -> Self {
        match Plan::for_models(&[(file.to_owned(), options)]) {
            Ok(plans) => {
                let memory_bytes = plans.first().map(|plan| plan.memory_estimate().total_bytes());
                Self { memory_bytes, fit: Fit::Fits, problem: None }
            }
            Err(error @ LoadError::Memory(_)) => {
                Self { memory_bytes: estimate, fit: Fit::TooLarge, problem: Some(error.to_string()) }
            }
            Err(error) => {
                Self { memory_bytes: None, fit: Fit::Unsupported, problem: Some(error.to_string()) }
            }
        }
    }

    fn of_catalog(model: &CatalogModel) -> Self {
        let fit = match usable_memory_bytes() {
            None => Fit::Unknown,
            Some(usable_bytes) if usable_bytes < model.memory_bytes => Fit::TooLarge,
            Some(_) => Fit::Fits,
        };
        Self { memory_bytes: Some(model.memory_bytes), fit, problem: None }
    }

    fn unknown() -> Self {
        Self { memory_bytes: None, fit: Fit::Unknown, problem: None }
    }
}

pub fn run(global_args: &GlobalArgs, json: bool) -> anyhow::Result<()> {
    let config = Loaded::read(global_args.config.as_deref(), global_args.data.as_deref())?.config;
    let folder = ModelFolder::default();
    let stored = folder.list()?;
    let stored_at = |path: &Path| stored.iter().find(|model| model.path == path);
    let mut rows: Vec<Row> = config.models.iter().map(|model| configured_row(model, stored_at)).collect();
    let configured_files: Vec<PathBuf> =
        config.models.iter().filter_map(|model| Some(model.embedded()?.file.clone())).collect();
    let is_listed = |path: &Path| configured_files.iter().any(|file| file == path);
    for known in catalog::ALL {
        let path = folder.path(known.name);
        let is_name_taken = config.models.iter().any(|model| model.name == known.name);
        if !is_name_taken && !is_listed(&path) {
            rows.push(catalog_row(known, &path, stored_at(&path)));
        }
    }
    let others = stored.iter().filter(|model| catalog::named(model.name.as_str()).is_none());
    rows.extend(others.filter(|model| !is_listed(&model.path)).map(stored_row));
    if json {
        return print_json(&rows);
    }
    let headings = [
        "NAME",
        "STATE",
        "SIZE",
        "MEMORY",
        "FITS",
        "LICENCE",
        "INPUT/MILLION",
        "CACHED/MILLION",
        "OUTPUT/MILLION",
        "FILE",
    ];
    print_table(&headings, &rows.iter().map(cells).collect::<Vec<_>>());
    Ok(())
}

fn configured_row<'a>(model: &ModelConfig, stored_at: impl Fn(&Path) -> Option<&'a StoredModel>) -> Row {
    let prices = model.prices;
    let row = Row {
        name: model.name.clone(),
        configured: true,
        input_per_million: Some(prices.input.to_string()),
        cached_input_per_million: prices.cached_discount().map(|price| price.to_string()),
        output_per_million: Some(prices.output.to_string()),
        ..empty_row()
    };
    let embedded = match &model.engine {
        EngineConfig::Upstream(upstream) => {
            return Row { present: true, file: upstream.endpoints.join(", "), ..row };
        }
        EngineConfig::Embedded(embedded) => embedded,
    };
    let file = &embedded.file;
    // The catalogue's figures belong to its own file.
    let known = catalog::named(&model.name).filter(|known| *file == ModelFolder::default().path(known.name));
    let present = file.exists();
    let need = match (present, known, model.to_load()) {
        (true, known, Some((_, options))) => {
            Need::of_file(file, options, known.map(|known| known.memory_bytes))
        }
        (_, Some(known), _) => Need::of_catalog(known),
        _ => Need::unknown(),
    };
    let row = Row { present, file: file.display().to_string(), ..row };
    with_file(row, known, stored_at(file), file, need)
}

fn catalog_row(known: &CatalogModel, path: &Path, stored: Option<&StoredModel>) -> Row {
    let present = path.exists();
    let need = match present {
        true => Need::of_file(path, load_options(known.name), Some(known.memory_bytes)),
        false => Need::of_catalog(known),
    };
    let row = Row {
        name: known.name.to_owned(),
        present,
        file: path.display().to_string(),
        input_per_million: Some(known.input_per_million.to_owned()),
        output_per_million: Some(known.output_per_million.to_owned()),
        ..empty_row()
    };
    with_file(row, Some(known), stored, path, need)
}

/// A file that was imported, pulled from elsewhere, or put there by hand.
fn stored_row(stored: &StoredModel) -> Row {
    let need = match stored.bytes {
        Some(_) => Need::of_file(&stored.path, load_options(stored.name.as_str()), None),
        None => Need::unknown(),
    };
    let row = Row {
        name: stored.name.to_string(),
        present: stored.bytes.is_some(),
        file: stored.path.display().to_string(),
        ..empty_row()
    };
    with_file(row, None, Some(stored), &stored.path, need)
}

fn load_options(name: &str) -> LoadOptions {
    LoadOptions { name: name.to_owned(), ..LoadOptions::default() }
}

/// Adds what is known about the file.
fn with_file(
    row: Row,
    known: Option<&CatalogModel>,
    stored: Option<&StoredModel>,
    path: &Path,
    need: Need,
) -> Row {
    let stored_bytes = std::fs::metadata(path).ok().map(|metadata| metadata.len());
    let stored_sha256 = stored.and_then(|stored| Some(stored.sha256.as_ref()?.to_string()));
    let missing = known.filter(|_| stored_bytes.is_none());
    Row {
        bytes: stored_bytes.or(missing.map(|known| known.bytes)),
        partial_bytes: stored.and_then(|stored| stored.partial_bytes),
        licence: known.map(|known| known.licence),
        sha256: stored_sha256.or_else(|| missing.map(|known| known.sha256.to_owned())),
        verified: stored.is_some_and(|stored| stored.is_verified),
        memory_bytes: need.memory_bytes,
        fit: need.fit,
        problem: need.problem,
        ..row
    }
}

fn empty_row() -> Row {
    Row {
        name: String::new(),
        configured: false,
        present: false,
        file: String::new(),
        bytes: None,
        partial_bytes: None,
        licence: None,
        sha256: None,
        verified: false,
        memory_bytes: None,
        fit: Fit::Unknown,
        problem: None,
        input_per_million: None,
        cached_input_per_million: None,
        output_per_million: None,
    }
}

fn cells(row: &Row) -> Vec<String> {
    let state = match (row.configured, row.present, row.partial_bytes) {
        (true, true, _) => "served",
        (true, false, _) => "file missing",
        (false, true, _) => "pulled",
        (false, false, Some(_)) => "incomplete",
        (false, false, None) => "available",
    };
    let size = |bytes: Option<u64>| bytes.map_or_else(unknown, |bytes| HumanBytes(bytes).to_string());
    let text = |text: &Option<String>| text.clone().unwrap_or_else(unknown);
    vec![
        row.name.clone(),
        state.to_owned(),
        size(row.bytes),
        size(row.memory_bytes),
        row.fit.cell().to_owned(),
        row.licence.unwrap_or("–").to_owned(),
        text(&row.input_per_million),
        text(if row.cached_input_per_million.is_some() {
            &row.cached_input_per_million
        } else {
            &row.input_per_million
        }),
        text(&row.output_per_million),
        row.file.clone(),
    ]
}

fn unknown() -> String {
    "–".to_owned()
}
