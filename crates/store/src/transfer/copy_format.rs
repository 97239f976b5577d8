//! Rows as PostgreSQL's COPY takes and gives them in its binary format, and a digest of many rows that does not depend on
//! their order. What was sent and what is read back have the same bytes, so comparing them needs no other form.

use sha2::{Digest, Sha256};

/// What a stream of rows begins with: a signature, no flags, and no extension.
pub(super) const BEGINNING: &[u8; 19] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";

/// Stands where the next row's number of columns would.
pub(super) const END: [u8; 2] = (-1_i16).to_be_bytes();

/// One after the other, columns of rows. `None` is NULL.
#[derive(Default)]
pub(super) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(super) fn begin_row(&mut self, columns: i16) {
        self.bytes.extend_from_slice(&columns.to_be_bytes());
    }

    pub(super) fn null(&mut self) {
        self.bytes.extend_from_slice(&(-1_i32).to_be_bytes());
    }

    pub(super) fn number(&mut self, number: i64) {
        self.column_of_few(&number.to_be_bytes());
    }

    pub(super) fn flag(&mut self, is_set: bool) {
        self.column_of_few(&[u8::from(is_set)]);
    }

    /// Refuses, with its size, what no row can hold.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Result<(), usize> {
        let length = i32::try_from(bytes.len()).map_err(|_| bytes.len())?;
        self.bytes.extend_from_slice(&length.to_be_bytes());
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn column_of_few(&mut self, bytes: &[u8]) {
        // At most eight bytes, so that the length always fits.
        self.bytes.extend_from_slice(&[0, 0, 0, bytes.len() as u8]);
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn written(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
    }
}

/// Finds the rows in a stream that comes in pieces of any size.
#[derive(Default)]
pub(super) struct Reader {
    unread: Vec<u8>,
    state: State,
}

#[derive(Default, PartialEq, Eq)]
enum State {
    #[default]
    BeforeBeginning,
    InRows,
    Ended,
}

/// What came is not what a stream of rows looks like.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotRows;

impl Reader {
    /// Hands on each row that is whole by now, with the number of its columns in front.
    pub(super) fn take(&mut self, piece: &[u8], mut row: impl FnMut(&[u8])) -> Result<(), NotRows> {
        self.unread.extend_from_slice(piece);
        let mut rest = self.unread.as_slice();
        if self.state == State::BeforeBeginning {
            if rest.len() < BEGINNING.len() {
                return Ok(());
            }
            rest = rest.strip_prefix(BEGINNING.as_slice()).ok_or(NotRows)?;
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
                    rest = &rest[END.len()..];
                    self.state = State::Ended;
                }
            }
        }
        let read = self.unread.len() - rest.len();
        self.unread.drain(..read);
        Ok(())
    }

    /// Whether the stream came to its own end, and nothing after it.
    pub(super) fn is_complete(&self) -> bool {
        self.state == State::Ended && self.unread.is_empty()
    }
}

enum Next {
    Row(usize),
    Incomplete,
    End,
}

fn row_length(bytes: &[u8]) -> Result<Next, NotRows> {
    let Some((columns, mut rest)) = bytes.split_first_chunk() else { return Ok(Next::Incomplete) };
    if *columns == END {
        return Ok(Next::End);
    }
    for _ in 0..u16::try_from(i16::from_be_bytes(*columns)).map_err(|_| NotRows)? {
        let Some((length, after)) = rest.split_first_chunk() else { return Ok(Next::Incomplete) };
        let length = match i32::from_be_bytes(*length) {
            -1 => 0,
            length => usize::try_from(length).map_err(|_| NotRows)?,
        };
        let Some(after) = after.get(length..) else { return Ok(Next::Incomplete) };
        rest = after;
    }
    Ok(Next::Row(bytes.len() - rest.len()))
}

/// How many rows, and the sum of their SHA-256 as numbers of 256 bits: two tables with the same have the same rows, in
/// whatever order. A sum and not an exclusive or, for there a row that is there twice would leave no trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RowsDigest {
    pub(super) rows: u64,
    /// The least significant part first.
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
        fn rows_are_found_again_however_the_stream_is_cut(rows in rows(), cuts in prop::collection::vec(1..50_usize, 1..40)) {
            let rows: Vec<Vec<u8>> = rows.iter().map(|row| written(row)).collect();
            let stream = [BEGINNING.to_vec(), rows.concat(), END.to_vec()].concat();
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
        fn a_digest_is_the_same_in_any_order_and_another_when_any_byte_is(
            rows in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..20), 1..20),
            turns in 0..20_usize,
            at in any::<prop::sample::Index>(),
        ) {
            let mut turned = rows.clone();
            turned.rotate_left(turns % rows.len());
            prop_assert_eq!(digest(&rows), digest(&turned));
            let place = at.index(rows.len());
            turned[place][0] ^= 1;
            prop_assert_ne!(digest(&rows), digest(&turned));
        }
    }

    #[test]
    fn a_row_that_is_there_twice_is_not_one_that_is_there_never() {
        let row = vec![1, 2, 3];
        assert_ne!(digest(&[row.clone(), row.clone()]).sum, digest(&[]).sum);
        assert_ne!(digest(&[row.clone(), row.clone()]), digest(&[row]));
    }

    #[test]
    fn what_is_no_stream_of_rows_is_refused() {
        assert_eq!(Reader::default().take(&[0; 19], |_| {}), Err(NotRows));
        let mut reader = Reader::default();
        reader.take(BEGINNING, |_| {}).unwrap();
        assert_eq!(reader.take(&(-7_i16).to_be_bytes(), |_| {}), Err(NotRows));
    }

    #[test]
    fn numbers_and_flags_are_written_as_postgresql_writes_them() {
        let mut writer = Writer::default();
        writer.begin_row(2);
        writer.number(-2);
        writer.flag(true);
        let number = [[0, 0, 0, 8].as_slice(), &[0xff; 7], &[0xfe]].concat();
        assert_eq!(writer.written(), [[0, 2].as_slice(), &number, &[0, 0, 0, 1, 1]].concat());
    }
}
