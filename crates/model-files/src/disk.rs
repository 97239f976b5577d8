//! What downloads need of the disk: free space and writes. A trait, so that a full disk can be tested without one.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

pub(crate) trait Disk: fmt::Debug + Send + Sync {
    /// Bytes that this user can still write to the file system of `folder`.
    fn free_bytes(&self, folder: &Path) -> io::Result<u64>;
    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()>;
}

#[derive(Debug)]
pub(crate) struct RealDisk;

impl Disk for RealDisk {
    fn free_bytes(&self, folder: &Path) -> io::Result<u64> {
        let status = rustix::fs::statvfs(folder)?;
        Ok(status.f_bavail.saturating_mul(status.f_frsize))
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }
}
