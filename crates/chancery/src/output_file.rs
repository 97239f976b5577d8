//! Output files of commands. A file appears under its name only when complete, and overwrites another only on request. `-`
//! means standard output.

use crate::client_file::is_stdio;
use anyhow::{Context, bail};
use std::io::Write;
use std::path::Path;
use tempfile::NamedTempFile;

pub fn write(path: &Path, content: &[u8], overwrite: bool) -> anyhow::Result<()> {
    if is_stdio(path) {
        let mut out = std::io::stdout();
        return out.write_all(content).and_then(|()| out.flush()).context("cannot write to standard output");
    }
    let mut file = create(path, overwrite)?;
    file.write_all(content).with_context(|| write_error(path))?;
    persist(file, path, overwrite)
}

/// A temporary file beside `path` that only its owner can read. It is deleted unless `persist` is called.
pub fn create(path: &Path, overwrite: bool) -> anyhow::Result<NamedTempFile> {
    if path.exists() && !overwrite {
        bail!("{} already exists; choose another name, or overwrite it with `--force`", path.display());
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    NamedTempFile::new_in(folder).with_context(|| write_error(path))
}

/// Syncs the file and renames it to `path`.
pub fn persist(file: NamedTempFile, path: &Path, overwrite: bool) -> anyhow::Result<()> {
    file.as_file().sync_all().with_context(|| write_error(path))?;
    let persisted = if overwrite { file.persist(path) } else { file.persist_noclobber(path) };
    persisted.with_context(|| write_error(path))?;
    Ok(())
}

pub fn write_error(path: &Path) -> String {
    format!("cannot write {}", path.display())
}
