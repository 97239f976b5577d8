//! The file that `chancery client import` or `export` is given: its format, and its text if it is not too large.

use anyhow::{Context, bail};
use chancery_client_files::Format;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The largest file that can be imported: it is held in memory and written in one transaction.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// The format given with `--format`, or else that of the file's extension.
pub fn format_of(path: &Path, given: Option<Format>) -> anyhow::Result<Format> {
    let extension = path.extension().and_then(|extension| extension.to_str()).map(str::to_ascii_lowercase);
    match (given, extension.as_deref()) {
        (Some(given), _) => Ok(given),
        (None, Some("jsonl" | "ndjson")) => Ok(Format::Jsonl),
        (None, Some("csv")) => Ok(Format::Csv),
        (None, _) if is_standard(path) => {
            bail!("a name of `-` does not say the format; add `--format jsonl` or `--format csv`")
        }
        (None, _) => bail!(
            "{} ends neither in .jsonl nor in .csv; name it so, or add `--format jsonl` or `--format csv`",
            path.display()
        ),
    }
}

/// Whether standard input or output is meant.
pub fn is_standard(path: &Path) -> bool {
    path == Path::new("-")
}

pub fn read_source(path: &Path) -> anyhow::Result<String> {
    let bytes = if is_standard(path) {
        within_bound(std::io::stdin().lock()).context("standard input cannot be read")?
    } else {
        let cannot_be_read = || format!("{} cannot be read", path.display());
        let file = File::open(path).with_context(cannot_be_read)?;
        within_bound(file).with_context(cannot_be_read)?
    };
    text_of(bytes)
}

fn within_bound(source: impl Read) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        bail!("it has more than {} MiB; cut it into several files", MAX_FILE_BYTES >> 20);
    }
    Ok(bytes)
}

/// UTF-8, with or without the mark that some programs put before it.
fn text_of(mut bytes: Vec<u8>) -> anyhow::Result<String> {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        bail!("the file is UTF-16; save it as UTF-8 (in Excel: \"CSV UTF-8\")");
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
    fn the_mark_before_utf8_is_no_part_of_the_text() {
        assert_eq!(text_of("\u{feff}name".into()).unwrap(), "name");
        assert_eq!(text_of("name\u{feff}".into()).unwrap(), "name\u{feff}");
    }

    #[test]
    fn a_file_that_is_not_utf8_is_refused_with_the_line() {
        let error = text_of(b"name\nCaf\xe9\n".to_vec()).unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("UTF-8"), "{error}");
        let error = text_of(b"\xff\xfen\0a\0".to_vec()).unwrap_err().to_string();
        assert!(error.contains("UTF-16"), "{error}");
    }
}
