//! Computes a version for the URLs of the scripts.

use std::hash::{DefaultHasher, Hash, Hasher};

fn main() -> std::io::Result<()> {
    const FOLDER: &str = "assets";
    println!("cargo::rerun-if-changed={FOLDER}");
    let mut files: Vec<_> = std::fs::read_dir(FOLDER)?.collect::<Result<_, _>>()?;
    files.sort_by_key(std::fs::DirEntry::path);
    let mut hasher = DefaultHasher::new();
    for file in files {
        file.file_name().hash(&mut hasher);
        std::fs::read(file.path())?.hash(&mut hasher);
    }
    println!("cargo::rustc-env=CHANCERY_AUTH_SCRIPTS_VERSION={:016x}", hasher.finish());
    Ok(())
}
