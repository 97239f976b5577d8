//! Reads a secret from a file that contains one line and nothing else.

use anyhow::bail;
use std::path::Path;

/// A larger file is not a secret file.
const MAX_BYTES: u64 = 4_096;

pub fn read(path: &Path) -> anyhow::Result<String> {
    let bytes = std::fs::metadata(path)?.len();
    if bytes > MAX_BYTES {
        bail!("file has {bytes} bytes; expected one line with the secret");
    }
    let text = std::fs::read_to_string(path)?;
    let secret = text.trim_end_matches(['\r', '\n']);
    if secret.is_empty() || secret.chars().any(char::is_control) {
        bail!("file must contain one line with the secret");
    }
    Ok(secret.to_owned())
}
