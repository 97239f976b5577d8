//! Files that a command is asked to write: each appears under its name once it is whole, and never over another unasked. `-` is
//! standard output.

use crate::client_file::is_standard;
use anyhow::{Context, bail};
use std::io::Write;
use std::path::Path;

pub fn write(path: &Path, content: &[u8], may_replace: bool) -> anyhow::Result<()> {
    if is_standard(path) {
        let mut out = std::io::stdout();
        return out
            .write_all(content)
            .and_then(|()| out.flush())
            .context("standard output cannot be written");
    }
    if path.exists() && !may_replace {
        bail!("{} is there already; choose another name, or replace it with `--force`", path.display());
    }
    let cannot_be_written = || format!("{} cannot be written", path.display());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Beside its final place, readable for its maker alone, and gone if this fails.
    let mut scratch = tempfile::NamedTempFile::new_in(folder).with_context(cannot_be_written)?;
    scratch.write_all(content).with_context(cannot_be_written)?;
    scratch.as_file().sync_all().with_context(cannot_be_written)?;
    match may_replace {
        true => scratch.persist(path).with_context(cannot_be_written)?,
        false => scratch.persist_noclobber(path).with_context(cannot_be_written)?,
    };
    Ok(())
}
