//! Gives the stylesheet's address its version.

use std::hash::{DefaultHasher, Hash, Hasher};

fn main() -> std::io::Result<()> {
    const FILE: &str = "assets/chancery.css";
    println!("cargo::rerun-if-changed={FILE}");
    let mut hasher = DefaultHasher::new();
    std::fs::read(FILE)?.hash(&mut hasher);
    println!("cargo::rustc-env=CHANCERY_STYLESHEET_VERSION={:016x}", hasher.finish());
    Ok(())
}
