//! Prepares the scripts that are served: ours without their comments, and a version for the URLs of all.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::PathBuf;

/// Our scripts, and the files of each.
const SCRIPTS: [(&str, &[&str]); 2] =
    [("portal.js", &["assets/portal.js"]), ("draft.js", &["assets/draft.js", "assets/autosave.js"])];
/// Served as published.
const HTMX: &str = "assets/htmx-2.0.11.min.js";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=assets");
    let folder = PathBuf::from(std::env::var("OUT_DIR").map_err(io::Error::other)?);
    let mut hasher = DefaultHasher::new();
    std::fs::read(HTMX)?.hash(&mut hasher);
    for (script, files) in SCRIPTS {
        let mut text = String::new();
        for file in files {
            text.push_str(&without_comments(&std::fs::read_to_string(file)?)?);
        }
        std::fs::write(folder.join(script), &text)?;
        text.hash(&mut hasher);
    }
    println!("cargo::rustc-env=CHANCERY_SCRIPTS_VERSION={:016x}", hasher.finish());
    Ok(())
}

/// The script without indentation and lines that are comments, a quarter of the compressed bytes.
fn without_comments(script: &str) -> io::Result<String> {
    let is_comment = |line: &str| line.starts_with("//") || line.starts_with("/*");
    let mut code = String::new();
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        // Lines of a longer comment or string would be taken for code, or lose their indentation.
        let is_whole = !line.starts_with("/*") || line.ends_with("*/");
        if !is_whole || line.matches('`').count() % 2 == 1 {
            return Err(io::Error::other(format!("a comment or a template string spans lines: {line}")));
        }
        if !is_comment(line) {
            code.push_str(line);
            code.push('\n');
        }
    }
    Ok(code)
}
