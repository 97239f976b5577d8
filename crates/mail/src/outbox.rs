//! A folder with a file for each letter, oldest name first. Only the folder's owner can read them: they hold codes.

use chancery_domain::UnixMillis;
use std::fs::DirBuilder;
use std::io::{Result, Write};
use std::path::Path;

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
