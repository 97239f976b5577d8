//! All bounds of model files and downloads.

use std::time::Duration;

/// The largest file that is downloaded where the size is not known beforehand.
pub const MAX_FILE_BYTES: u64 = 1 << 40;
/// Stays free on the disk after a download or a copy.
pub const DISK_MARGIN_BYTES: u64 = 64 << 20;
pub const MAX_NAME_BYTES: usize = 64;
pub const MAX_REDIRECTS: usize = 5;
/// Short, because the next source may be reachable.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time without a single byte after which a connection counts as broken.
pub const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Attempts in a row that bring no new byte, after which a source has failed.
pub const MAX_STALLED_ATTEMPTS: u32 = 4;
pub const RETRY_DELAY: Duration = Duration::from_secs(1);
/// How often the size of pip's download is read.
pub const PIP_POLL: Duration = Duration::from_millis(200);
/// What a package may have beyond the bytes of the whole model, before its download is stopped.
pub const MAX_PACKAGE_OVERHEAD_BYTES: u64 = 1 << 24;
/// Characters of pip's own error in ours.
pub const MAX_PIP_ERROR_CHARS: usize = 300;
/// Larger state files and records are ignored: neither comes near it.
pub const MAX_RECORD_BYTES: u64 = 1 << 16;
pub const COPY_BUFFER_BYTES: usize = 1 << 20;

const _: () = assert!(COPY_BUFFER_BYTES as u64 <= DISK_MARGIN_BYTES);
const _: () = assert!(DISK_MARGIN_BYTES < MAX_FILE_BYTES);
