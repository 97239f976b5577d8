//! The file passed to `chancery client import` or `export`: its format and, for imports, its text within a size
//! limit.

use anyhow::{Context, bail};
use chancery_client_files::Format;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Imports are read into memory and written in one transaction.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Returns the `--format` value, or else the format implied by the file extension.
pub fn format_of(path: &Path, given: Option<Format>) -> anyhow::Result<Format> {
    let extension = path.extension().and_then(|extension| extension.to_str()).map(str::to_ascii_lowercase);
    match (given, extension.as_deref()) {
        (Some(given), _) => Ok(given),
        (None, Some("jsonl" | "ndjson")) => Ok(Format::Jsonl),
        (None, Some("csv")) => Ok(Format::Csv),
        (None, _) if is_stdio(path) => {
            bail!("unknown format for `-`; add `--format jsonl` or `--format csv`")
        }
        (None, _) => bail!(
            "unknown format: {} has no .jsonl or .csv extension; rename it, or add `--format jsonl` or `--format csv`",
            path.display()
        ),
    }
}

/// Returns whether the path is `-`: standard input or output.
pub fn is_stdio(path: &Path) -> bool {
    path == Path::new("-")
}

pub fn read_source(path: &Path) -> anyhow::Result<String> {
    let bytes = if is_stdio(path) {
        read_bounded(std::io::stdin().lock()).context("cannot read standard input")?
    } else {
        let read_error = || format!("cannot read {}", path.display());
        let file = File::open(path).with_context(read_error)?;
        read_bounded(file).with_context(read_error)?
    };
    decode_utf8(bytes)
}

fn read_bounded(source: impl Read) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        bail!("file is larger than {} MiB; split it", MAX_FILE_BYTES >> 20);
    }
    Ok(bytes)
}

/// Accepts UTF-8 with or without a byte order mark.
fn decode_utf8(mut bytes: Vec<u8>) -> anyhow::Result<String> {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        bail!("file is UTF-16; save it as UTF-8 (in Excel: \"CSV UTF-8\")");
    }
    if bytes.starts_with("\u{feff}".as_bytes()) {
        bytes.drain(..'\u{feff}'.len_utf8());
    }
    String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        anyhow::anyhow!("line {line} is not UTF-8; save the file as UTF-8 (in Excel: \"CSV UTF-8\")")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utf8_bom_is_stripped() {
        assert_eq!(decode_utf8("\u{feff}name".into()).unwrap(), "name");
        assert_eq!(decode_utf8("name\u{feff}".into()).unwrap(), "name\u{feff}");
    }

    #[test]
    fn non_utf8_file_is_rejected_with_its_line() {
        let error = decode_utf8(b"name\nCaf\xe9\n".to_vec()).unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("UTF-8"), "{error}");
        let error = decode_utf8(b"\xff\xfen\0a\0".to_vec()).unwrap_err().to_string();
        assert!(error.contains("UTF-16"), "{error}");
    }
}
