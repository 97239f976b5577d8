//! Files that a command is asked to write: each appears under its name once it is whole, and never over another unasked. `-` is
//! standard output.

use crate::client_file::is_standard;
use anyhow::{Context, bail};
use std::io::Write;
use std::path::Path;
use tempfile::NamedTempFile;

pub fn write(path: &Path, content: &[u8], may_replace: bool) -> anyhow::Result<()> {
    if is_standard(path) {
        let mut out = std::io::stdout();
        return out
            .write_all(content)
            .and_then(|()| out.flush())
            .context("standard output cannot be written");
    }
    let mut file = create(path, may_replace)?;
    file.write_all(content).with_context(|| cannot_be_written(path))?;
    persist(file, path, may_replace)
}

/// A temporary file beside `path` that only its owner can read. It is deleted unless `persist` is called.
pub fn create(path: &Path, may_replace: bool) -> anyhow::Result<NamedTempFile> {
    if path.exists() && !may_replace {
        bail!("{} is there already; choose another name, or replace it with `--force`", path.display());
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    NamedTempFile::new_in(folder).with_context(|| cannot_be_written(path))
}

/// Syncs the file and renames it to `path`.
pub fn persist(file: NamedTempFile, path: &Path, may_replace: bool) -> anyhow::Result<()> {
    file.as_file().sync_all().with_context(|| cannot_be_written(path))?;
    let persisted = if may_replace { file.persist(path) } else { file.persist_noclobber(path) };
    persisted.with_context(|| cannot_be_written(path))?;
    Ok(())
}

pub fn cannot_be_written(path: &Path) -> String {
    format!("{} cannot be written", path.display())
}
