//! Prepares the assets that are served: the stylesheet without its comments, and a version for each asset's URL.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::PathBuf;

const STYLESHEET: &str = "assets/chancery.css";
const FAVICON: &str = "assets/favicon.svg";

fn main() -> io::Result<()> {
    let stylesheet = without_comments(&read(STYLESHEET)?);
    let folder = PathBuf::from(std::env::var("OUT_DIR").map_err(io::Error::other)?);
    std::fs::write(folder.join("chancery.css"), &stylesheet)?;
    set_version("CHANCERY_STYLESHEET_VERSION", &stylesheet);
    set_version("CHANCERY_FAVICON_VERSION", &read(FAVICON)?);
    Ok(())
}

fn read(file: &str) -> io::Result<String> {
    println!("cargo::rerun-if-changed={file}");
    std::fs::read_to_string(file)
}

fn set_version(variable: &str, text: &str) {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    println!("cargo::rustc-env={variable}={:016x}", hasher.finish());
}

/// The rules without comments and indentation: a third of the compressed bytes. No string of ours contains `/*`.
fn without_comments(css: &str) -> String {
    let mut parts = css.split("/*");
    let mut rules = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        rules.push_str(part.split_once("*/").map_or("", |(_, rest)| rest));
    }
    let lines = rules.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.flat_map(|line| [line, "\n"]).collect()
}
