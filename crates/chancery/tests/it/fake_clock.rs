//! A system clock that a test moves under a running server. Debian's libfaketime gives the real binary the wrong time.
//! It leaves the monotonic clock alone, as setting a clock does.

use crate::server::Firm;
use std::path::PathBuf;

/// The clock of one firm's servers and commands.
pub struct FakeClock(PathBuf);

impl FakeClock {
    /// Begins with the real time.
    pub fn of(firm: Firm) -> (Firm, Self) {
        let clock = Self(firm.folder.path().join("clock"));
        clock.set(0);
        let firm = firm
            .with("LD_PRELOAD", library().to_str().unwrap())
            .with("FAKETIME_TIMESTAMP_FILE", clock.0.to_str().unwrap())
            .with("FAKETIME_NO_CACHE", "1")
            .with("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .with("NO_FAKE_STAT", "1");
        (firm, clock)
    }

    /// Sets how far it is from the real time. Takes effect the next time the clock is read.
    pub fn set(&self, offset_s: i64) {
        let new = self.0.with_extension("new");
        std::fs::write(&new, format!("{offset_s:+}\n")).unwrap();
        std::fs::rename(new, &self.0).unwrap();
    }
}

/// The thread-safe build of libfaketime.
fn library() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").unwrap().map(|entry| entry.unwrap().path());
    let mut files = folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1"));
    files.find(|file| file.exists()).expect("libfaketime is installed by `make test`")
}
