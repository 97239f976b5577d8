//! What the disk alone takes to make a small write durable: the part of a request's latency that no gateway with a durable ledger
//! can avoid.

use chancery_bench::Outcome;
use chancery_bench::summary::{percentile, us};
use chancery_domain::{Clock, SystemClock};
use std::io::{Seek as _, Write as _};

const WRITES: usize = 200;
/// A page of SQLite's write-ahead log, with its header.
const WRITTEN_BYTES: usize = 4_096 + 24;

#[derive(Clone, Copy, Debug)]
pub struct Flush {
    pub median_us: f64,
}

impl Flush {
    /// Writes and flushes in the folder for temporary files, where the servers have their databases. SQLite writes its log again
    /// from the start when it is full, so this writes where the file has bytes already: a file that grows takes longer to flush.
    pub fn measure() -> Outcome<Self> {
        let mut file = tempfile::tempfile()?;
        let bytes = vec![7; WRITTEN_BYTES];
        file.write_all(&vec![0; WRITES * WRITTEN_BYTES])?;
        file.sync_all()?;
        file.rewind()?;
        let mut times = Vec::with_capacity(WRITES);
        for _ in 0..WRITES {
            let began = SystemClock.monotonic();
            file.write_all(&bytes)?;
            file.sync_data()?;
            times.push(SystemClock.monotonic() - began);
        }
        times.sort_unstable();
        Ok(Self { median_us: us(percentile(&times, 50).unwrap_or_default()) })
    }
}
