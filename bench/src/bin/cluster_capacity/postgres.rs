//! One connection to the measured database, and the server's own statistics.

use chancery_bench::cpu;
use chancery_test_support::RawConnection;
use std::collections::BTreeMap;
use std::time::Duration;

pub struct Postgres {
    connection: RawConnection,
}

/// The position of the write-ahead log.
#[derive(Clone, Copy)]
pub struct Wal {
    pub bytes: i64,
    /// Full page images, written when a page first changes after a checkpoint.
    pub pages: i64,
}

impl Postgres {
    pub async fn connect(url: &str) -> Self {
        Self { connection: RawConnection::open(url).await }
    }

    /// Runs statements separated by `; ` one by one: sent together they would be one transaction, in which VACUUM cannot run.
    pub async fn run(&mut self, statements: impl Into<String>) {
        for statement in statements.into().split("; ") {
            self.connection.run(statement).await.unwrap();
        }
    }

    pub async fn number(&mut self, query: impl Into<String>) -> i64 {
        self.connection.number(&query.into()).await
    }

    pub async fn texts(&mut self, query: impl Into<String>) -> Vec<String> {
        self.connection.texts(&query.into()).await
    }

    pub async fn wal(&mut self) -> Wal {
        // Sessions publish their counters within a second.
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        let bytes = self.number("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint").await;
        let pages = self.number("SELECT wal_fpi FROM pg_stat_wal").await;
        Wal { bytes, pages }
    }

    /// Returns the CPU time so far of each session on this database and of the server's own processes. Processes that are not on
    /// this machine are missing.
    pub async fn processes(&mut self) -> BTreeMap<u32, Duration> {
        let query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() OR datname IS NULL";
        let processes =
            self.connection.texts(query).await.into_iter().map(|process| process.parse().unwrap());
        processes.filter_map(|process: u32| Some((process, cpu::of_process(process)?))).collect()
    }
}

/// Returns the CPU time used since then. A process that is new started at zero.
pub fn taken_since(before: &BTreeMap<u32, Duration>, after: &BTreeMap<u32, Duration>) -> Duration {
    let none = Duration::ZERO;
    after.iter().map(|(process, cpu)| cpu.saturating_sub(*before.get(process).unwrap_or(&none))).sum()
}
