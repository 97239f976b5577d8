//! Computes a version for each asset's URL.

use std::hash::{DefaultHasher, Hash, Hasher};

/// Each asset, and the environment variable with its version.
const ASSETS: [(&str, &str); 2] = [
    ("assets/chancery.css", "CHANCERY_STYLESHEET_VERSION"),
    ("assets/favicon.svg", "CHANCERY_FAVICON_VERSION"),
];

fn main() -> std::io::Result<()> {
    for (file, variable) in ASSETS {
        println!("cargo::rerun-if-changed={file}");
        let mut hasher = DefaultHasher::new();
        std::fs::read(file)?.hash(&mut hasher);
        println!("cargo::rustc-env={variable}={:016x}", hasher.finish());
    }
    Ok(())
}
