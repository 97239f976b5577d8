//! Errors of loading a model. `ModelFileError` says what is wrong in the file; `LoadError` adds which file and what to do.

use crate::plan::InsufficientMemory;
use std::io;
use std::path::{Path, PathBuf};

/// What is wrong with a model file, independent of its path.
#[derive(Debug, thiserror::Error)]
pub enum ModelFileError {
    #[error("cannot read the file: {0}")]
    Unreadable(#[from] io::Error),
    /// The file violates the format: truncated, corrupted, or malicious.
    #[error("file is corrupt: {0}; download it again")]
    Malformed(String),
    /// The file is valid, but needs something that this engine does not support.
    #[error("unsupported: {0}; use an upstream engine for this model (`engine = \"upstream\"`)")]
    Unsupported(String),
}

impl ModelFileError {
    pub(crate) fn malformed(what: impl Into<String>) -> Self {
        Self::Malformed(what.into())
    }

    pub(crate) fn unsupported(what: impl Into<String>) -> Self {
        Self::Unsupported(what.into())
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("model file not found: {}; download it with `chancery model pull NAME`", path.display())]
    NotFound { path: PathBuf },
    #[error("cannot load model file {}: {error}", path.display())]
    Rejected { path: PathBuf, error: ModelFileError },
    #[error(
        "model file {} changed since it was loaded; restore it, or send SIGHUP to the server to load the new one",
        path.display()
    )]
    Changed { path: PathBuf },
    #[error("invalid `{option}` {requested} for {}: {reason}", path.display())]
    InvalidOption { path: PathBuf, option: &'static str, requested: u64, reason: String },
    #[error("{0}")]
    Memory(InsufficientMemory),
    #[error("invalid `CHANCERY_KERNEL` `{requested}`: {reason}")]
    Kernel { requested: String, reason: String },
    #[error("cannot start the engine threads: {0}")]
    Threads(#[source] io::Error),
}

impl LoadError {
    pub(crate) fn rejected(path: &Path, error: ModelFileError) -> Self {
        match error {
            ModelFileError::Unreadable(error) if error.kind() == io::ErrorKind::NotFound => {
                Self::NotFound { path: path.to_owned() }
            }
            error => Self::Rejected { path: path.to_owned(), error },
        }
    }
}
