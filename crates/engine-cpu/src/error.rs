//! Why a model does not load. `Fault` says what is wrong in the bytes; `LoadError` adds which file and what to do.

use crate::plan::Shortage;
use std::io;
use std::path::{Path, PathBuf};

/// What is wrong with a model file, apart from where the file lies.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    #[error("it could not be read: {0}")]
    Unreadable(#[from] io::Error),
    /// The file breaks its own format: cut short, damaged, or made to harm.
    #[error("the file is damaged: {0}; fetch it again")]
    Malformed(String),
    /// The file is sound, but asks for something this engine does not do.
    #[error("{0}; run this model on an upstream engine instead (`engine = \"upstream\"`)")]
    Unsupported(String),
}

impl Fault {
    pub(crate) fn malformed(what: impl Into<String>) -> Self {
        Self::Malformed(what.into())
    }

    pub(crate) fn unsupported(what: impl Into<String>) -> Self {
        Self::Unsupported(what.into())
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("there is no model file at {}; fetch it with `chancery model pull NAME`", path.display())]
    NotFound { path: PathBuf },
    #[error("the model file {} was refused: {fault}", path.display())]
    Refused { path: PathBuf, fault: Fault },
    #[error(
        "the model file {} is not the one that was loaded; put that one back, or restart the server to serve this one",
        path.display()
    )]
    Changed { path: PathBuf },
    #[error("`{option}` cannot be {asked} for {}: {reason}", path.display())]
    Option { path: PathBuf, option: &'static str, asked: u64, reason: String },
    #[error("{0}")]
    Memory(Shortage),
    #[error("`CHANCERY_KERNEL` cannot be `{asked}`: {reason}")]
    Kernel { asked: String, reason: String },
    #[error("the engine's threads could not be started: {0}")]
    Threads(#[source] io::Error),
}

impl LoadError {
    pub(crate) fn refused(path: &Path, fault: Fault) -> Self {
        match fault {
            Fault::Unreadable(error) if error.kind() == io::ErrorKind::NotFound => {
                Self::NotFound { path: path.to_owned() }
            }
            fault => Self::Refused { path: path.to_owned(), fault },
        }
    }
}
