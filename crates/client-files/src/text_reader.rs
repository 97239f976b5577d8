//! Reads a file as UTF-8, without its byte order mark, through one buffer. Bounds the bytes of a row before anything parses
//! it, so that neither a long line nor an unclosed quote is ever in memory. Knows nothing of the formats.

use chancery_domain::{
    MAX_ADDRESS_CHARS, MAX_CLIENT_NAME_CHARS, MAX_CONTACT_FIELD_CHARS, MAX_ENTRY_TEXT_CHARS,
    MAX_ENTRY_TITLE_CHARS, group_thousands,
};
use std::cell::Cell;
use std::io::{self, BufRead, Error, ErrorKind, Read};
use std::rc::Rc;

/// More than valid values need in a row: a CSV row, an entry in JSON, or the fields of a client before or after its entries. It
/// is the sum of the limits of all fields, in characters of up to 12 bytes (in JSON, `\ud83d\ude00`).
const MAX_ROW_BYTES: usize = 12
    * (MAX_CLIENT_NAME_CHARS
        + 3 * MAX_CONTACT_FIELD_CHARS
        + MAX_ADDRESS_CHARS
        + MAX_ENTRY_TITLE_CHARS
        + MAX_ENTRY_TEXT_CHARS
        + MAX_OTHER_CHARS);
/// The addresses of owner and author, days, amounts, numbers, flags, and the names of the fields.
const MAX_OTHER_CHARS: usize = 2000;

const BUFFER_BYTES: usize = 64 * 1024;
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// What the current row may still have. Shared with its parser, which says where a row begins.
#[derive(Clone, Debug)]
pub struct RowBytes(Rc<Cell<usize>>);

impl RowBytes {
    /// Begins a row. Returns the bytes of the previous one.
    pub fn begin(&self) -> usize {
        MAX_ROW_BYTES.saturating_sub(self.0.replace(MAX_ROW_BYTES))
    }

    /// For a row that is skipped.
    pub fn lift(&self) {
        self.0.set(usize::MAX);
    }
}

pub struct TextReader<R> {
    source: R,
    buffer: Vec<u8>,
    /// `buffer[at..valid]` is text that was not consumed yet, `buffer[valid..end]` the start of a character.
    at: usize,
    valid: usize,
    end: usize,
    consumed: u64,
    row: RowBytes,
}

impl<R: Read> TextReader<R> {
    pub fn new(source: R) -> Self {
        let row = RowBytes(Rc::new(Cell::new(MAX_ROW_BYTES)));
        Self { source, buffer: vec![0; BUFFER_BYTES], at: 0, valid: 0, end: 0, consumed: 0, row }
    }

    pub fn row_bytes(&self) -> RowBytes {
        self.row.clone()
    }

    /// Bytes so far, without the byte order mark.
    pub fn consumed(&self) -> u64 {
        self.consumed
    }

    fn fill(&mut self) -> io::Result<()> {
        self.buffer.copy_within(self.valid..self.end, 0);
        (self.at, self.valid, self.end) = (0, 0, self.end - self.valid);
        loop {
            let read = self.source.read(&mut self.buffer[self.end..])?;
            self.end += read;
            let text = &self.buffer[..self.end];
            let is_start = self.consumed == 0;
            self.at = if is_start && text.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
            self.valid = match std::str::from_utf8(text) {
                Ok(text) => text.len(),
                Err(_)
                    if is_start && (text.starts_with(&[0xff, 0xfe]) || text.starts_with(&[0xfe, 0xff])) =>
                {
                    return Err(not_utf8("UTF-16"));
                }
                Err(error)
                    if error.valid_up_to() == self.at && (read == 0 || error.error_len().is_some()) =>
                {
                    return Err(not_utf8("not UTF-8"));
                }
                Err(error) => error.valid_up_to(),
            };
            if self.at < self.valid || read == 0 {
                return Ok(());
            }
        }
    }
}

fn not_utf8(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("{what}; save the file as UTF-8 (in Excel: \"CSV UTF-8\")"))
}

impl<R: Read> BufRead for TextReader<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at == self.valid {
            self.fill()?;
        }
        let text = &self.buffer[self.at..self.valid];
        let allowed = self.row.0.get();
        if allowed == 0 && !text.is_empty() {
            let max = group_thousands(MAX_ROW_BYTES as u64);
            let what = format!(
                "too long: more than {max} bytes, which no client or entry needs; close quotes (\"), end the line, or shorten it"
            );
            return Err(Error::new(ErrorKind::FileTooLarge, what));
        }
        Ok(&text[..text.len().min(allowed)])
    }

    fn consume(&mut self, bytes: usize) {
        self.at += bytes;
        self.consumed += bytes as u64;
        self.row.0.set(self.row.0.get() - bytes);
    }
}

impl<R: Read> Read for TextReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(out)?;
        self.consume(read);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns at most three bytes at a time.
    struct Trickle<'a>(&'a [u8]);

    impl Read for Trickle<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let length = out.len().min(3);
            self.0.read(&mut out[..length])
        }
    }

    fn read(bytes: &[u8]) -> Result<String, String> {
        let mut text = String::new();
        let mut reader = TextReader::new(Trickle(bytes));
        reader.read_to_string(&mut text).map_err(|error| error.to_string())?;
        assert_eq!(reader.consumed(), text.len() as u64);
        Ok(text)
    }

    #[test]
    fn utf8_bom_is_stripped() {
        for text in ["", "name", "name\u{feff}"] {
            assert_eq!(read(format!("\u{feff}{text}").as_bytes()).unwrap(), text);
        }
    }

    #[test]
    fn other_encodings_are_rejected() {
        for bytes in [b"name\nCaf\xe9\n".as_slice(), b"Caf\xe9", b"\xe9", b"Caf\xc3", b"\xef\xbb\xbf\xe9\n"] {
            assert!(read(bytes).unwrap_err().starts_with("not UTF-8; save the file as UTF-8"), "{bytes:?}");
        }
        assert!(read(b"\xff\xfen\0a\0").unwrap_err().starts_with("UTF-16; save the file as UTF-8"));
    }

    #[test]
    fn row_has_at_most_its_bytes() {
        let text = "x".repeat(MAX_ROW_BYTES);
        let mut reader = TextReader::new(text.as_bytes().chain(text.as_bytes()));
        let mut row = vec![0; MAX_ROW_BYTES];
        reader.read_exact(&mut row).unwrap();
        assert_eq!(reader.read(&mut [0]).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert_eq!(reader.row_bytes().begin(), MAX_ROW_BYTES);
        reader.read_exact(&mut row).unwrap();
        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "the end of the file");
    }

    proptest! {
        #[test]
        fn text_is_read_as_it_is(text in "[a-zé中\u{1f4dc}]{0,40}") {
            prop_assert_eq!(read(text.as_bytes()), Ok(text));
        }
    }
}
