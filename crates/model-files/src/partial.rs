//! An unfinished download: the bytes so far in `NAME.gguf.partial`, and in a small JSON file beside it what is needed to
//! continue. The JSON is written before the bytes that it describes.

use crate::disk::Disk;
use crate::error::FolderError;
use crate::limits::{DISK_MARGIN_BYTES, MAX_RECORD_BYTES};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PartialState {
    /// The source of the bytes. Another source starts again.
    pub origin: String,
    /// The server's strong validator, for `If-Range`.
    #[serde(default)]
    pub etag: Option<String>,
    #[serde(default)]
    pub total_bytes: Option<u64>,
    /// The checksum that the server states.
    #[serde(default)]
    pub stated_sha256: Option<String>,
    /// Lengths of the parts that are already joined.
    #[serde(default)]
    pub part_bytes: Vec<u64>,
}

#[derive(Debug)]
pub(crate) struct Partial<'a> {
    path: PathBuf,
    state_path: PathBuf,
    disk: &'a dyn Disk,
}

impl<'a> Partial<'a> {
    /// `target` is the path of the finished file.
    pub fn of(target: &Path, disk: &'a dyn Disk) -> Self {
        Self { path: with_suffix(target, ".partial"), state_path: with_suffix(target, ".partial.json"), disk }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn len(&self) -> u64 {
        std::fs::metadata(&self.path).map_or(0, |metadata| metadata.len())
    }

    /// `None` if there is nothing to continue from this source.
    pub fn state(&self, origin: &str) -> Option<PartialState> {
        let state: PartialState = read_json(&self.state_path)?;
        (state.origin == origin && self.path.exists()).then_some(state)
    }

    pub fn write_state(&self, state: &PartialState) -> Result<(), FolderError> {
        write_json(&self.state_path, state)
    }

    /// Opens the file for bytes after the first `len`; what is behind them is cut off.
    pub fn open_at(&self, len: u64) -> Result<File, FolderError> {
        let open = || -> io::Result<File> {
            let mut file =
                OpenOptions::new().create(true).truncate(false).write(true).read(true).open(&self.path)?;
            file.set_len(len)?;
            file.seek(SeekFrom::Start(len))?;
            Ok(file)
        };
        open().map_err(FolderError::io("write", &self.path))
    }

    /// A full disk ends the download and leaves the bytes so far.
    pub fn write(&self, file: &mut File, bytes: &[u8]) -> Result<(), FolderError> {
        self.disk.write(file, bytes).map_err(|error| match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                FolderError::DiskFull { path: self.path.clone(), stored_bytes: self.len() }
            }
            _ => FolderError::Io { action: "write", path: self.path.clone(), error },
        })
    }

    pub fn ensure_space(&self, new_bytes: u64) -> Result<(), FolderError> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        ensure_space(self.disk, folder, new_bytes)
    }

    pub fn begins_like_gguf(&self) -> Result<bool, FolderError> {
        begins_like_gguf(&self.path)
    }

    pub fn remove(&self) -> Result<(), FolderError> {
        remove_if_present(&self.state_path)?;
        remove_if_present(&self.path).map(drop)
    }

    /// Moves the finished file to its place; the state is no longer needed.
    pub fn rename_to(&self, target: &Path) -> Result<(), FolderError> {
        std::fs::rename(&self.path, target).map_err(FolderError::io("write", target))?;
        remove_if_present(&self.state_path)?;
        Ok(())
    }
}

pub(crate) fn ensure_space(disk: &dyn Disk, folder: &Path, new_bytes: u64) -> Result<(), FolderError> {
    let free_bytes = disk.free_bytes(folder).map_err(FolderError::io("read the free space of", folder))?;
    let needed_bytes = new_bytes.saturating_add(DISK_MARGIN_BYTES);
    match free_bytes < needed_bytes {
        true => Err(FolderError::DiskSpace { folder: folder.to_owned(), needed_bytes, free_bytes }),
        false => Ok(()),
    }
}

pub(crate) fn begins_like_gguf(path: &Path) -> Result<bool, FolderError> {
    let mut magic = [0; 4];
    let mut file = File::open(path).map_err(FolderError::io("read", path))?;
    match file.read_exact(&mut magic) {
        Ok(()) => Ok(magic == *b"GGUF"),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(FolderError::io("read", path)(error)),
    }
}

/// Returns how many bytes were there.
pub(crate) fn remove_if_present(path: &Path) -> Result<u64, FolderError> {
    let bytes = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    match std::fs::remove_file(path) {
        Ok(()) => Ok(bytes),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
        Err(error) => Err(FolderError::io("remove", path)(error)),
    }
}

pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// `None` if the file is missing, too large or invalid: it is only a help.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    let mut text = Vec::new();
    File::open(path).ok()?.take(MAX_RECORD_BYTES).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Replaces the file in one step.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), FolderError> {
    let write = || -> io::Result<()> {
        let text = serde_json::to_vec(value)?;
        let new = with_suffix(path, ".new");
        std::fs::write(&new, text)?;
        std::fs::rename(&new, path)
    };
    write().map_err(FolderError::io("write", path))
}
