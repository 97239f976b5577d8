//! The data directory: created if missing, checked to be writable, and locked by one server at a time.

use anyhow::{Context, bail};
use chancery_store::{DatabaseUrl, DbError, OpenError, Store};
use chancery_transparency::{CHECKPOINT_FOLDER, checkpoints_know_rows};
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Proof that the directory exists and is writable.
#[derive(Clone, Debug)]
pub struct DataDir {
    path: PathBuf,
}

/// Locked while a server uses the directory. The operating system releases the lock when the process exits, even on a
/// crash.
#[derive(Debug)]
pub struct ServerLock {
    _file: File,
}

impl DataDir {
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let fix = "set another directory with --data, or `data` in the configuration";
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder
            .create(path)
            .with_context(|| format!("cannot create the data directory {} ({fix})", path.display()))?;
        tempfile::tempfile_in(path)
            .and_then(|mut file| file.write_all(b"writable"))
            .with_context(|| format!("cannot write to the data directory {} ({fix})", path.display()))?;
        Ok(Self { path: path.to_owned() })
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the database, and creates it if there is none. Every command that may create it does so here: an empty database
    /// beside the checkpoints of another is a lost one, not a new firm.
    pub async fn open_database(&self, url: &DatabaseUrl) -> anyhow::Result<Store> {
        if !checkpoints_know_rows(&self.path)? {
            return Ok(Store::open(url).await?);
        }
        match Store::open_existing(url).await {
            Ok(store) if has_rows(&store).await? => Ok(store),
            Ok(_) | Err(OpenError::NoDatabase { .. }) => bail!(
                "the database {url} is empty, but this directory has checkpoints of an earlier one; restore a backup of the database, or move {} away to start a new firm",
                self.join(CHECKPOINT_FOLDER).display()
            ),
            Err(error) => Err(error.into()),
        }
    }

    /// Fails if another server already uses the directory.
    pub fn lock_for_serving(&self) -> anyhow::Result<ServerLock> {
        let path = self.join("serve.lock");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(ServerLock { _file: file }),
            Err(TryLockError::WouldBlock) => bail!(
                "another chancery server is using the data directory {}; stop it, or use another directory with --data",
                self.path.display()
            ),
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| format!("cannot lock {}", path.display()))
            }
        }
    }

    /// Atomically writes a file that only its owner can read.
    pub fn write_owner_only(&self, name: &str, contents: &[u8]) -> anyhow::Result<()> {
        let path = self.join(name);
        let write = || -> anyhow::Result<()> {
            // Temporary files are created with mode 0600, and renaming preserves it.
            let mut file = tempfile::NamedTempFile::new_in(&self.path)?;
            file.write_all(contents)?;
            file.as_file().sync_all()?;
            file.persist(&path)?;
            Ok(())
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Whether the ledger or the audit log has any.
async fn has_rows(store: &Store) -> Result<bool, DbError> {
    Ok(store.audit_chains.next_audit_writer(None).await?.is_some()
        || store.ledger_chains.next_writer(None).await?.is_some())
}
