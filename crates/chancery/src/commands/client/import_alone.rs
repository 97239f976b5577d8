//! Large imports into a SQLite file run alone. An import is one writing transaction, a SQLite file has one writer at a time,
//! and a server waits five seconds to write what it bills before it gives the reply up. PostgreSQL is free of it.

use anyhow::bail;
use chancery_domain::grouped;
use chancery_store::{DatabaseUrl, LimitsKept, OpenError, ServingLock};

/// What may be imported beside a server. A debug build writes it in one to two seconds on two busy cores, of the five that the
/// server waits.
const MAX_CLIENTS_BESIDE: u64 = 1000;
const MAX_ENTRIES_BESIDE: u64 = 5000;
/// Of the whole file. Texts are written twice, as they are and as their first version.
const MAX_BYTES_BESIDE: u64 = 8 << 20;

/// How much a file brings.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub clients: u64,
    pub entries: u64,
    pub bytes: u64,
}

impl Size {
    fn is_large(self) -> bool {
        self.clients > MAX_CLIENTS_BESIDE
            || self.entries > MAX_ENTRIES_BESIDE
            || self.bytes > MAX_BYTES_BESIDE
    }
}

/// Keeps servers away from the file while it is held, if the import is large. Refused where one runs already.
pub async fn alone_if_large(url: &DatabaseUrl, size: Size) -> anyhow::Result<Option<ServingLock>> {
    if url.is_shared() || !size.is_large() {
        return Ok(None);
    }
    match ServingLock::take(url, LimitsKept::InMemory).await {
        Ok(lock) => Ok(Some(lock)),
        Err(OpenError::FileIsServed { file }) => {
            let (clients, entries) = (grouped(MAX_CLIENTS_BESIDE), grouped(MAX_ENTRIES_BESIDE));
            bail!(
                "a server, or another large import, runs on {}, and this import would keep it from writing for too long: beside a server, a file has at most {clients} clients, {entries} entries and {} MiB; stop the server first, or split the file",
                file.display(),
                MAX_BYTES_BESIDE >> 20,
            )
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Size =
        Size { clients: MAX_CLIENTS_BESIDE, entries: MAX_ENTRIES_BESIDE, bytes: MAX_BYTES_BESIDE };

    #[tokio::test]
    async fn only_a_large_import_is_refused_where_a_server_runs_and_keeps_servers_away() {
        let folder = tempfile::tempdir().unwrap();
        let url = DatabaseUrl::sqlite_file(&folder.path().join("chancery.db"));
        let larger = [
            Size { clients: WITHIN.clients + 1, ..WITHIN },
            Size { entries: WITHIN.entries + 1, ..WITHIN },
            Size { bytes: WITHIN.bytes + 1, ..WITHIN },
        ];
        let server = ServingLock::take(&url, LimitsKept::InMemory).await.unwrap();
        assert!(alone_if_large(&url, WITHIN).await.unwrap().is_none());
        for size in larger {
            let told = alone_if_large(&url, size).await.unwrap_err().to_string();
            assert!(told.contains("stop the server first, or split the file"), "{told}");
        }
        server.release().await;
        for size in larger {
            let alone = alone_if_large(&url, size).await.unwrap();
            assert!(alone.is_some() && ServingLock::take(&url, LimitsKept::InMemory).await.is_err());
        }
    }
}
