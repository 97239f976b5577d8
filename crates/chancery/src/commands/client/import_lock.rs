//! Large imports into a SQLite file need exclusive access. An import is one write transaction, and SQLite has one writer at a
//! time. A server waits five seconds to write usage before it abandons the reply. PostgreSQL has no such limit.

use anyhow::bail;
use chancery_domain::group_thousands;
use chancery_store::{DatabaseUrl, LimitStorage, OpenError, ServingLock};

/// The largest import that may run beside a server. A debug build writes it in one to two seconds on two busy cores, well
/// within the five that the server waits.
const MAX_ONLINE_CLIENTS: u64 = 1000;
const MAX_ONLINE_ENTRIES: u64 = 5000;
/// Size of the whole file. Each text is written twice: as the current text and as its first version.
const MAX_ONLINE_BYTES: u64 = 8 << 20;

#[derive(Clone, Copy, Debug)]
pub struct ImportSize {
    pub clients: u64,
    pub entries: u64,
    pub bytes: u64,
}

impl ImportSize {
    fn is_large(self) -> bool {
        self.clients > MAX_ONLINE_CLIENTS
            || self.entries > MAX_ONLINE_ENTRIES
            || self.bytes > MAX_ONLINE_BYTES
    }
}

/// Locks the database file against servers if the import is large; fails if one is running.
pub async fn lock_if_large(url: &DatabaseUrl, size: ImportSize) -> anyhow::Result<Option<ServingLock>> {
    if url.is_shared() || !size.is_large() {
        return Ok(None);
    }
    match ServingLock::take(url, LimitStorage::InMemory).await {
        Ok(lock) => Ok(Some(lock)),
        Err(OpenError::DatabaseFileInUse { file }) => {
            let (clients, entries) =
                (group_thousands(MAX_ONLINE_CLIENTS), group_thousands(MAX_ONLINE_ENTRIES));
            bail!(
                "{} is in use by a server or another large import, which this import would block; stop the server, or split the file into at most {clients} clients, {entries} entries and {} MiB each",
                file.display(),
                MAX_ONLINE_BYTES >> 20,
            )
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: ImportSize =
        ImportSize { clients: MAX_ONLINE_CLIENTS, entries: MAX_ONLINE_ENTRIES, bytes: MAX_ONLINE_BYTES };

    #[tokio::test]
    async fn only_large_imports_lock_out_running_servers() {
        let folder = tempfile::tempdir().unwrap();
        let url = DatabaseUrl::sqlite_file(&folder.path().join("chancery.db"));
        let larger = [
            ImportSize { clients: WITHIN.clients + 1, ..WITHIN },
            ImportSize { entries: WITHIN.entries + 1, ..WITHIN },
            ImportSize { bytes: WITHIN.bytes + 1, ..WITHIN },
        ];
        let server = ServingLock::take(&url, LimitStorage::InMemory).await.unwrap();
        assert!(lock_if_large(&url, WITHIN).await.unwrap().is_none());
        for size in larger {
            let error = lock_if_large(&url, size).await.unwrap_err().to_string();
            assert!(error.contains("stop the server, or split the file"), "{error}");
        }
        server.release().await;
        for size in larger {
            let alone = lock_if_large(&url, size).await.unwrap();
            assert!(alone.is_some() && ServingLock::take(&url, LimitStorage::InMemory).await.is_err());
        }
    }
}
