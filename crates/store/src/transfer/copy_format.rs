//! PostgreSQL's binary COPY format, and an order-independent digest of rows. Sent and read-back rows have the same
//! bytes, so the digest compares them directly.

use sha2::{Digest, Sha256};

/// Header of a COPY stream: signature, no flags, no extension.
const COPY_HEADER: &[u8; 19] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";

/// The trailer, in place of the next row's column count.
const COPY_TRAILER: [u8; 2] = (-1_i16).to_be_bytes();

/// Encodes a stream.
#[derive(Default)]
pub(super) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(super) fn begin(&mut self) {
        self.bytes.extend_from_slice(COPY_HEADER);
    }

    pub(super) fn end(&mut self) {
        self.bytes.extend_from_slice(&COPY_TRAILER);
    }

    pub(super) fn begin_row(&mut self, columns: i16) {
        self.bytes.extend_from_slice(&columns.to_be_bytes());
    }

    pub(super) fn null(&mut self) {
        self.bytes.extend_from_slice(&(-1_i32).to_be_bytes());
    }

    pub(super) fn number(&mut self, number: i64) {
        self.short_column(&number.to_be_bytes());
    }

    pub(super) fn boolean(&mut self, is_set: bool) {
        self.short_column(&[u8::from(is_set)]);
    }

    /// Fails with the size if the value is too large for a row.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Result<(), usize> {
        let length = i32::try_from(bytes.len()).map_err(|_| bytes.len())?;
        self.bytes.extend_from_slice(&length.to_be_bytes());
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn short_column(&mut self, bytes: &[u8]) {
        // At most eight bytes, so the length always fits.
        self.bytes.extend_from_slice(&[0, 0, 0, bytes.len() as u8]);
        self.bytes.extend_from_slice(bytes);
    }

    /// What was written since the last `take`.
    pub(super) fn written(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

/// Splits a stream, in chunks of any size, into rows.
#[derive(Default)]
pub(super) struct Reader {
    unread: Vec<u8>,
    state: State,
}

#[derive(Default, PartialEq, Eq)]
enum State {
    #[default]
    BeforeHeader,
    InRows,
    Ended,
}

/// The data is not a valid COPY stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MalformedCopyStream;

impl Reader {
    /// Calls `row` with each complete row, including its leading column count.
    pub(super) fn take(
        &mut self,
        piece: &[u8],
        mut row: impl FnMut(&[u8]),
    ) -> Result<(), MalformedCopyStream> {
        self.unread.extend_from_slice(piece);
        let mut rest = self.unread.as_slice();
        if self.state == State::BeforeHeader {
            if rest.len() < COPY_HEADER.len() {
                return Ok(());
            }
            rest = rest.strip_prefix(COPY_HEADER.as_slice()).ok_or(MalformedCopyStream)?;
            self.state = State::InRows;
        }
        while self.state == State::InRows {
            match row_length(rest)? {
                Next::Row(length) => {
                    let (whole, after) = rest.split_at(length);
                    row(whole);
                    rest = after;
                }
                Next::Incomplete => break,
                Next::End => {
                    rest = &rest[COPY_TRAILER.len()..];
                    self.state = State::Ended;
                }
            }
        }
        let read = self.unread.len() - rest.len();
        self.unread.drain(..read);
        Ok(())
    }

    /// Whether the stream ended with the trailer, and nothing followed.
    pub(super) fn is_complete(&self) -> bool {
        self.state == State::Ended && self.unread.is_empty()
    }
}

enum Next {
    Row(usize),
    Incomplete,
    End,
}

fn row_length(bytes: &[u8]) -> Result<Next, MalformedCopyStream> {
    let Some((columns, mut rest)) = bytes.split_first_chunk() else { return Ok(Next::Incomplete) };
    if *columns == COPY_TRAILER {
        return Ok(Next::End);
    }
    for _ in 0..u16::try_from(i16::from_be_bytes(*columns)).map_err(|_| MalformedCopyStream)? {
        let Some((length, after)) = rest.split_first_chunk() else { return Ok(Next::Incomplete) };
        let length = match i32::from_be_bytes(*length) {
            -1 => 0,
            length => usize::try_from(length).map_err(|_| MalformedCopyStream)?,
        };
        let Some(after) = after.get(length..) else { return Ok(Next::Incomplete) };
        rest = after;
    }
    Ok(Next::Row(bytes.len() - rest.len()))
}

/// The number of rows, and the sum of their SHA-256 as 256-bit integers. Two tables with equal digests have the same
/// rows in any order. A sum and not XOR, which would cancel out duplicate rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RowsDigest {
    pub(super) rows: u64,
    /// Little-endian limbs.
    sum: [u64; 4],
}

impl RowsDigest {
    pub(super) fn add(&mut self, row: &[u8]) {
        self.rows += 1;
        let hash = Sha256::digest(row);
        let mut carry = false;
        for (part, bytes) in self.sum.iter_mut().zip(hash.as_chunks::<8>().0) {
            let (sum, over) = part.overflowing_add(u64::from_le_bytes(*bytes));
            let (sum, over_again) = sum.overflowing_add(u64::from(carry));
            (*part, carry) = (sum, over || over_again);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn digest(rows: &[Vec<u8>]) -> RowsDigest {
        let mut digest = RowsDigest::default();
        rows.iter().for_each(|row| digest.add(row));
        digest
    }

    fn written(columns: &[Option<Vec<u8>>]) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.begin_row(columns.len() as i16);
        for column in columns {
            match column {
                None => writer.null(),
                Some(bytes) => writer.bytes(bytes).unwrap(),
            }
        }
        writer.written().to_vec()
    }

    type Rows = Vec<Vec<Option<Vec<u8>>>>;

    fn rows() -> impl Strategy<Value = Rows> {
        let column = prop::option::of(prop::collection::vec(any::<u8>(), 0..40));
        prop::collection::vec(prop::collection::vec(column, 0..6), 0..20)
    }

    proptest! {
        #[test]
        fn reader_handles_any_chunking(rows in rows(), cuts in prop::collection::vec(1..50_usize, 1..40)) {
            let rows: Vec<Vec<u8>> = rows.iter().map(|row| written(row)).collect();
            let stream = [COPY_HEADER.to_vec(), rows.concat(), COPY_TRAILER.to_vec()].concat();
            let (mut reader, mut found, mut rest) = (Reader::default(), Vec::new(), stream.as_slice());
            for cut in cuts.iter().cycle() {
                let (piece, after) = rest.split_at((*cut).min(rest.len()));
                prop_assert!(!reader.is_complete());
                reader.take(piece, |row| found.push(row.to_vec())).unwrap();
                rest = after;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert!(reader.is_complete());
            prop_assert_eq!(found, rows);
        }

        #[test]
        fn digest_ignores_order_and_detects_any_change(
            rows in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..20), 1..20),
            turns in 0..20_usize,
            at in any::<prop::sample::Index>(),
        ) {
            let mut turned = rows.clone();
            turned.rotate_left(turns % rows.len());
            prop_assert_eq!(digest(&rows), digest(&turned));
            let index = at.index(rows.len());
            turned[index][0] ^= 1;
            prop_assert_ne!(digest(&rows), digest(&turned));
        }
    }

    #[test]
    fn digest_detects_duplicate_rows() {
        let row = vec![1, 2, 3];
        assert_ne!(digest(&[row.clone(), row.clone()]).sum, digest(&[]).sum);
        assert_ne!(digest(&[row.clone(), row.clone()]), digest(&[row]));
    }

    #[test]
    fn malformed_copy_stream_is_rejected() {
        assert_eq!(Reader::default().take(&[0; 19], |_| {}), Err(MalformedCopyStream));
        let mut reader = Reader::default();
        reader.take(COPY_HEADER, |_| {}).unwrap();
        assert_eq!(reader.take(&(-7_i16).to_be_bytes(), |_| {}), Err(MalformedCopyStream));
    }

    #[test]
    fn numbers_and_booleans_match_postgres_binary_format() {
        let mut writer = Writer::default();
        writer.begin_row(2);
        writer.number(-2);
        writer.boolean(true);
        let number = [[0, 0, 0, 8].as_slice(), &[0xff; 7], &[0xfe]].concat();
        assert_eq!(writer.written(), [[0, 2].as_slice(), &number, &[0, 0, 0, 1, 1]].concat());
    }
}
