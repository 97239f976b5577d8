//! Emails that were written to a folder instead of sent.

use std::path::{Path, PathBuf};

/// The oldest first; none where nobody has written one yet.
pub fn emails_in(outbox: &Path) -> Vec<String> {
    let Ok(files) = std::fs::read_dir(outbox) else { return Vec::new() };
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    // What is still being written has another name.
    files.retain(|file| file.extension().is_some_and(|extension| extension == "eml"));
    // By the names alone, two of one moment would have no order: tests stop the clock.
    files.sort_by_key(|file| std::fs::metadata(file).unwrap().modified().unwrap());
    files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect()
}
