//! `chancery model`: downloads, imports, and removes model files on this machine. The list is in `model_list.rs`.

use super::model_list;
use crate::cli::{GlobalArgs, Model as Command};
use crate::config::Loaded;
use crate::download_progress::DownloadProgress;
use crate::output::outln;
use anyhow::{Context, bail};
use chancery_engine_cpu::{Gguf, LoadError, LoadOptions, Plan};
use chancery_model_files::catalog::CatalogModel;
use chancery_model_files::{
    HumanBytes, ModelFolder, ModelName, ModelReference, PullRequest, Sha256Hex, StoreOutcome, Stored,
};
use std::path::{Path, PathBuf};

pub fn run(global_args: &GlobalArgs, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Pull { reference, name, sha256, allow_http } => {
            let file = match reference.parse::<ModelReference>()? {
                ModelReference::Catalog(known) => return pull_known(known, name.as_ref(), sha256.as_ref()),
                ModelReference::Remote(file) => file,
            };
            if !allow_http {
                file.ensure_encrypted()?;
            }
            let name = name.map_or_else(|| file.default_name(), Ok)?;
            pull_file(&PullRequest { file, name, expected_sha256: sha256, allow_http })
        }
        Command::Import { file, name, sha256 } => import(&file, name, sha256.as_ref()),
        Command::List { json } => model_list::run(global_args, json),
        Command::Remove { name, force } => remove(global_args, &name, force),
    }
}

fn pull_known(
    known: &CatalogModel,
    name: Option<&ModelName>,
    sha256: Option<&Sha256Hex>,
) -> anyhow::Result<()> {
    if name.is_some_and(|name| name.as_str() != known.name) {
        bail!("--name is for Hugging Face files and URLs: {} keeps its name; leave it out", known.name);
    }
    if sha256.is_some_and(|sha256| sha256.as_str() != known.sha256) {
        bail!("--sha256 differs from the catalogue: {} has {}; leave it out", known.name, known.sha256);
    }
    let stored = ModelFolder::default().pull(known, &DownloadProgress::new())?;
    match stored.outcome {
        StoreOutcome::AlreadyPresent => eprintln!("{} is already downloaded", known.name),
        StoreOutcome::Stored => eprintln!("{} downloaded and verified", known.name),
    }
    print_path(&stored);
    Ok(())
}

fn pull_file(request: &PullRequest) -> anyhow::Result<()> {
    let stored = ModelFolder::default().pull_file(request, &DownloadProgress::new())?;
    let name = &request.name;
    match (stored.outcome, stored.is_verified) {
        (StoreOutcome::AlreadyPresent, _) => {
            eprintln!(
                "{name} is already downloaded; to download it again, run `chancery model remove {name}`"
            );
        }
        (StoreOutcome::Stored, true) => eprintln!("{name} downloaded and verified"),
        (StoreOutcome::Stored, false) => eprintln!(
            "{name} downloaded; its checksum was not checked, because none is known (`--sha256`): SHA-256 is {}",
            stored.sha256
        ),
    }
    describe_use(name, &stored);
    print_path(&stored);
    Ok(())
}

fn import(file: &Path, name: Option<ModelName>, sha256: Option<&Sha256Hex>) -> anyhow::Result<()> {
    let name = match name {
        Some(name) => name,
        None => default_name(file)?,
    };
    // The whole header, so that a broken file is rejected here rather than at the next start.
    Gguf::open(file).map_err(|error| match error {
        LoadError::NotFound { path } => anyhow::anyhow!("file not found: {}", path.display()),
        error => error.into(),
    })?;
    let stored = ModelFolder::default().import(file, &name, sha256, &DownloadProgress::new())?;
    match stored.outcome {
        StoreOutcome::AlreadyPresent => eprintln!("{name} is already imported"),
        StoreOutcome::Stored => eprintln!("{name} imported; SHA-256 is {}", stored.sha256),
    }
    describe_use(&name, &stored);
    print_path(&stored);
    Ok(())
}

fn default_name(file: &Path) -> anyhow::Result<ModelName> {
    let stem = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let stem = stem.strip_suffix(".gguf").unwrap_or(stem);
    stem.parse::<ModelName>().context("the file name is no valid model name; choose one with `--name`")
}

/// Says how to serve the file, or why the embedded engine cannot.
fn describe_use(name: &ModelName, stored: &Stored) {
    let options = LoadOptions { name: name.to_string(), ..LoadOptions::default() };
    match Plan::for_models(&[(stored.path.clone(), options)]) {
        Ok(_) => eprintln!("to serve it, add it to [[models]] with name = \"{name}\" and its prices"),
        Err(error) => eprintln!("warning: the embedded engine cannot serve it on this machine: {error}"),
    }
}

/// Only the path goes to standard output, for scripts.
fn print_path(stored: &Stored) {
    outln!("{}", stored.path.display());
}

fn remove(global_args: &GlobalArgs, name: &ModelName, force: bool) -> anyhow::Result<()> {
    let folder = ModelFolder::default();
    if !force {
        let config = Loaded::read(global_args.config.as_deref(), global_args.data.as_deref())?.config;
        let path: PathBuf = folder.path(name.as_str());
        let configured =
            config.models.iter().find(|model| model.embedded().is_some_and(|embedded| embedded.file == path));
        if let Some(configured) = configured {
            bail!(
                "the configured model {} uses {}; remove it from [[models]] first, or use `--force`",
                configured.name,
                path.display()
            );
        }
    }
    let freed_bytes = folder.remove(name)?;
    outln!("{name} removed, {} freed", HumanBytes(freed_bytes));
    Ok(())
}
