//! A folder with a file for each letter, oldest name first. Only the folder's owner can read them: they hold codes. They go
//! after a day: nobody needs a code for longer, and addresses are nobody's to keep.

use chancery_domain::UnixMillis;
use std::fs::DirBuilder;
use std::io::{ErrorKind, Result, Write};
use std::path::Path;
use std::time::Duration;

const LETTERS_ARE_KEPT: Duration = Duration::from_secs(24 * 60 * 60);

pub(crate) fn keep(folder: &Path, letter: &[u8], at: UnixMillis) -> Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)?;
    // Temporary files are made with mode 0600, and renaming keeps it: a letter is there whole or not at all.
    let mut file = tempfile::Builder::new().prefix(".letter-").tempfile_in(folder)?;
    file.write_all(letter)?;
    let mark = file.path().file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let name = format!("{}-{}.eml", at.0, mark.trim_start_matches(".letter-"));
    file.persist(folder.join(name))?;
    Ok(())
}

/// Removes letters that are older than a day, by the time in their names, and touches no other file. Says how many.
pub(crate) fn forget_old(folder: &Path, now: UnixMillis) -> Result<u64> {
    let oldest = now.0.saturating_sub(i64::try_from(LETTERS_ARE_KEPT.as_millis()).unwrap_or(i64::MAX));
    let files = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        files => files?,
    };
    let mut forgotten = 0;
    for file in files {
        let file = file?;
        let sent_at = file.file_name().to_str().and_then(sent_at);
        if sent_at.is_some_and(|at| at <= oldest) {
            std::fs::remove_file(file.path())?;
            forgotten += 1;
        }
    }
    Ok(forgotten)
}

/// Of a letter's file, by its name.
fn sent_at(name: &str) -> Option<i64> {
    let (at, _) = name.strip_suffix(".eml")?.split_once('-')?;
    at.parse().ok()
}
