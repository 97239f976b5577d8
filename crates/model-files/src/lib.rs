//! Model files on this machine: the catalogue of models that are known by name, downloads that can be continued, imports,
//! and the folder that holds the files.
//!
//! It deliberately writes to no terminal, reads no configuration, and does not look into model files beyond their first
//! four bytes: the engine does.

mod checksum;
mod disk;
mod download;
mod error;
mod folder;
mod hugging_face;
mod limits;
mod name;
mod package;
mod partial;
mod progress;
mod pull;
mod reference;

pub mod catalog;

pub use checksum::{InvalidSha256, Sha256Hex};
pub use error::{FolderError, HumanBytes, SourceError};
pub use folder::{ModelFolder, StoreOutcome, Stored, StoredModel};
pub use name::{InvalidName, ModelName};
pub use progress::{NoProgress, Progress, Stage};
pub use pull::PullRequest;
pub use reference::{HuggingFaceFile, InvalidReference, ModelReference, RemoteFile};

#[cfg(test)]
mod tests;
