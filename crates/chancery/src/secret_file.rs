//! A secret in a file of its own: one line, and nothing else.

use anyhow::bail;
use std::path::Path;

/// More is another file.
const MAX_BYTES: u64 = 4_096;

pub fn read(path: &Path) -> anyhow::Result<String> {
    let bytes = std::fs::metadata(path)?.len();
    if bytes > MAX_BYTES {
        bail!("it has {bytes} bytes; a secret is one line");
    }
    let text = std::fs::read_to_string(path)?;
    let secret = text.trim_end_matches(['\r', '\n']);
    if secret.is_empty() || secret.chars().any(char::is_control) {
        bail!("it must have one line, the secret");
    }
    Ok(secret.to_owned())
}
