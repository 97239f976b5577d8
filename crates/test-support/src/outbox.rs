//! Reads emails that were written to a directory instead of sent.

use std::path::{Path, PathBuf};

/// Oldest first; empty if the directory does not exist yet.
pub fn emails_in(outbox: &Path) -> Vec<String> {
    let Ok(files) = std::fs::read_dir(outbox) else { return Vec::new() };
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    // Files still being written have another extension.
    files.retain(|file| file.extension().is_some_and(|extension| extension == "eml"));
    // Tests stop the clock, so names alone would not order two emails of the same moment.
    files.sort_by_key(|file| std::fs::metadata(file).unwrap().modified().unwrap());
    files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect()
}
