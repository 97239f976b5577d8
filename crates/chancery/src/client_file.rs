//! The file passed to `chancery client import` or `export`: its format and, for imports, its bytes within a
//! size limit.

use crate::data_dir::DataDir;
use anyhow::{Context, bail};
use chancery_client_files::Format;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;
use tempfile::NamedTempFile;

/// Imports are written in one transaction.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Returns the `--format` value, or else the format implied by the file extension.
pub fn format_of(path: &Path, given: Option<Format>) -> anyhow::Result<Format> {
    let extension = path.extension().and_then(|extension| extension.to_str()).map(str::to_ascii_lowercase);
    match (given, extension.as_deref()) {
        (Some(given), _) => Ok(given),
        (None, Some("jsonl" | "ndjson")) => Ok(Format::Jsonl),
        (None, Some("csv")) => Ok(Format::Csv),
        (None, _) if is_stdio(path) => {
            bail!("unknown format for `-`; add `--format jsonl` or `--format csv`")
        }
        (None, _) => bail!(
            "unknown format: {} has no .jsonl or .csv extension; rename it, or add `--format jsonl` or `--format csv`",
            path.display()
        ),
    }
}

/// Returns whether the path is `-`: standard input or output.
pub fn is_stdio(path: &Path) -> bool {
    path == Path::new("-")
}

/// The file of an import. It is read twice: first checked, then written. A pipe is copied to the data directory: the system's
/// temporary folder may be small, in memory, or on a disk that is not encrypted.
pub struct ImportFile {
    file: File,
    pub bytes: u64,
}

impl ImportFile {
    /// `data` is the data directory.
    pub fn open(path: &Path, data: &Path) -> anyhow::Result<Self> {
        if is_stdio(path) {
            return Self::copy_of(std::io::stdin().lock(), data).context("cannot read standard input");
        }
        let open = || {
            let file = File::open(path)?;
            let metadata = file.metadata()?;
            if !metadata.is_file() {
                return Self::copy_of(file, data);
            }
            ensure_size(metadata.len())?;
            Ok(Self { file, bytes: metadata.len() })
        };
        open().with_context(|| format!("cannot read {}", path.display()))
    }

    fn copy_of(source: impl Read, data: &Path) -> anyhow::Result<Self> {
        // Temporary files are created with mode 0600. This one loses its name at once, and is gone when it is closed.
        let mut file = NamedTempFile::new_in(DataDir::open(data)?.path())?.into_file();
        let bytes = std::io::copy(&mut source.take(MAX_FILE_BYTES + 1), &mut file)?;
        ensure_size(bytes)?;
        Ok(Self { file, bytes })
    }

    /// Reads from the start.
    pub fn reader(&self) -> std::io::Result<impl Read> {
        (&self.file).rewind()?;
        Ok((&self.file).take(MAX_FILE_BYTES))
    }
}

fn ensure_size(bytes: u64) -> anyhow::Result<()> {
    if bytes > MAX_FILE_BYTES {
        bail!("file is larger than {} MiB; split it", MAX_FILE_BYTES >> 20);
    }
    Ok(())
}
