//! The folder that everything lives in: made if it is missing, checked to be writable, and held by one server at a time.

use anyhow::{Context, bail};
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Proof that the folder is there and can be written.
#[derive(Clone, Debug)]
pub struct DataFolder {
    path: PathBuf,
}

/// Held while a server runs on the folder; the operating system lets go of it when the process ends, however it ends.
#[derive(Debug)]
pub struct ServerLock {
    _file: File,
}

impl DataFolder {
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let fix = "choose another folder with --data, or `data` in the configuration";
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder
            .create(path)
            .with_context(|| format!("the data folder {} cannot be made ({fix})", path.display()))?;
        tempfile::tempfile_in(path)
            .and_then(|mut file| file.write_all(b"writable"))
            .with_context(|| format!("the data folder {} cannot be written ({fix})", path.display()))?;
        Ok(Self { path: path.to_owned() })
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A second server on the same folder is refused.
    pub fn lock_for_serving(&self) -> anyhow::Result<ServerLock> {
        let path = self.join("serve.lock");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("{} cannot be opened", path.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(ServerLock { _file: file }),
            Err(TryLockError::WouldBlock) => bail!(
                "another chancery server runs on the data folder {}; stop it, or give this one a folder of its own with --data",
                self.path.display()
            ),
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("{} cannot be locked", path.display()))
            }
        }
    }

    /// Writes a file that only its owner can read, whole or not at all.
    pub fn write_private(&self, name: &str, contents: &[u8]) -> anyhow::Result<()> {
        let path = self.join(name);
        let write = || -> anyhow::Result<()> {
            // Temporary files are made with mode 0600, and renaming keeps it.
            let mut file = tempfile::NamedTempFile::new_in(&self.path)?;
            file.write_all(contents)?;
            file.as_file().sync_all()?;
            file.persist(&path)?;
            Ok(())
        };
        write().with_context(|| format!("{} cannot be written", path.display()))
    }
}
