//! A folder with one file per email; names sort by time. The files contain codes, so only the folder's owner can read them. They
//! are deleted after a day: codes expire sooner, and addresses should not be retained.

use chancery_domain::UnixMillis;
use std::fs::DirBuilder;
use std::io::{ErrorKind, Result, Write};
use std::path::Path;
use std::time::Duration;

const EMAIL_RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

pub(crate) fn store_email(folder: &Path, email: &[u8], at: UnixMillis) -> Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)?;
    // Temporary files have mode 0600, which a rename preserves. The rename makes the email appear complete or not at all.
    let mut file = tempfile::Builder::new().prefix(".letter-").tempfile_in(folder)?;
    file.write_all(email)?;
    let suffix = file.path().file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let name = format!("{}-{}.eml", at.0, suffix.trim_start_matches(".letter-"));
    file.persist(folder.join(name))?;
    Ok(())
}

/// Deletes emails older than a day, by the time in their names, and no other files. Returns their number.
pub(crate) fn delete_expired(folder: &Path, now: UnixMillis) -> Result<u64> {
    let oldest = now.0.saturating_sub(i64::try_from(EMAIL_RETENTION.as_millis()).unwrap_or(i64::MAX));
    let files = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        files => files?,
    };
    let mut deleted = 0;
    for file in files {
        let file = file?;
        let sent_at = file.file_name().to_str().and_then(sent_at);
        if sent_at.is_some_and(|at| at <= oldest) {
            std::fs::remove_file(file.path())?;
            deleted += 1;
        }
    }
    Ok(deleted)
}

/// The time in the name of an email's file.
fn sent_at(name: &str) -> Option<i64> {
    let (at, _) = name.strip_suffix(".eml")?.split_once('-')?;
    at.parse().ok()
}
