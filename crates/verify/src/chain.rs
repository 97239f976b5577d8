//! Walks the hash chains of a table, one for each process that wrote it. A row that was changed, moved, removed or put in
//! between no longer fits the hashes, and rows missing at the end are missed because the end is kept apart.
//!
//! A server may add rows meanwhile, each together with its chain's end: an end that is read after the rows is as far as
//! they are or further.

use crate::{Findings, VerifyError};
use chancery_domain::{ChainHash, ChainHead, Chained, WriterId};
use chancery_store::DbError;

/// A table whose rows are chained.
pub(crate) trait ChainedTable {
    /// A row with its place in its writer's chain.
    type Link;
    type Row: Chained;

    fn parts(link: &Self::Link) -> (&Self::Row, u64, ChainHash);

    async fn writer_after(&self, writer: Option<WriterId>) -> Result<Option<WriterId>, DbError>;

    /// Up to a page of the writer's rows in order of their places, from after the given one on.
    async fn links_after(
        &self,
        writer: WriterId,
        last: Option<&Self::Link>,
    ) -> Result<Vec<Self::Link>, DbError>;

    /// Where the writer's chain is said to end.
    async fn head(&self, writer: WriterId) -> Result<Option<ChainHead>, DbError>;

    /// The hash that the row must have if it comes next.
    fn expected_hash(writer: WriterId, chain: &ChainHead, row: &Self::Row) -> ChainHash {
        chain.hash_of_next(writer, row)
    }

    fn describe(writer: WriterId, flaw: Flaw<'_, Self::Link>) -> String;
}

/// How a chain is broken.
pub(crate) enum Flaw<'a, L> {
    /// Another row has its place.
    PlaceTaken(&'a L),
    /// The row of this place before it is missing.
    Gap { link: &'a L, missing: u64 },
    /// It is not what was written, or does not follow what was written before it.
    Altered(&'a L),
    /// The end of the chain is not where the last row is.
    End { last: Option<&'a L>, rows: u64, flaw: EndFlaw },
}

pub(crate) enum EndFlaw {
    NoSuchWriter,
    /// The writer wrote this many rows, and there are fewer.
    CutOff {
        written: u64,
    },
    /// The writer wrote this many rows, and there are more.
    TooLong {
        written: u64,
    },
    /// The last row is not the one that the writer ended with.
    OtherRow,
}

/// What there was to walk.
#[derive(Debug, Default)]
pub(crate) struct Walked {
    pub(crate) rows: u64,
    /// Where each writer's chain ends.
    pub(crate) chains: Vec<(WriterId, ChainHead)>,
}

/// Calls `visit` with every row before its link is checked, and `progress` with the number of rows so far.
pub(crate) async fn walk<T: ChainedTable>(
    table: &T,
    findings: &mut Findings,
    mut visit: impl FnMut(&T::Row, &mut Findings) -> Result<(), VerifyError>,
    mut progress: impl FnMut(u64),
) -> Result<Walked, VerifyError> {
    let mut walked = Walked::default();
    let mut last_writer = None;
    while let Some(writer) = table.writer_after(last_writer).await? {
        last_writer = Some(writer);
        let mut chain = Chain::<T>::of(writer);
        let mut end: Option<ChainHead> = None;
        loop {
            let page = table.links_after(writer, chain.last.as_ref()).await?;
            walked.rows += page.len() as u64;
            let is_empty = page.is_empty();
            for link in page {
                visit(T::parts(&link).0, findings)?;
                chain.follow(link, findings);
            }
            progress(walked.rows);
            // The writer may have gone on before its end was read; then there are more rows by now.
            let is_behind = |end: Option<ChainHead>| end.is_some_and(|end| end.rows > chain.head.rows);
            if is_empty {
                if is_behind(end) {
                    break;
                }
                end = table.head(writer).await?;
                if !is_behind(end) {
                    break;
                }
            }
        }
        chain.check_end(end, findings);
        walked.chains.push((writer, chain.head));
    }
    Ok(walked)
}

/// One writer's chain as far as it was walked.
struct Chain<T: ChainedTable> {
    writer: WriterId,
    head: ChainHead,
    last: Option<T::Link>,
}

impl<T: ChainedTable> Chain<T> {
    fn of(writer: WriterId) -> Self {
        Self { writer, head: ChainHead::default(), last: None }
    }

    /// Whether the row is the next of the chain; afterwards the chain is followed from this row on, so that one change
    /// is not told again for every row after it.
    fn follow(&mut self, link: T::Link, findings: &mut Findings) {
        let (row, place, hash) = T::parts(&link);
        let missing = self.head.rows;
        let flaw = if place < missing {
            Some(Flaw::PlaceTaken(&link))
        } else if place > missing {
            Some(Flaw::Gap { link: &link, missing })
        } else if hash != T::expected_hash(self.writer, &self.head, row) {
            Some(Flaw::Altered(&link))
        } else {
            None
        };
        if let Some(flaw) = flaw {
            findings.add(T::describe(self.writer, flaw));
        }
        if place >= missing {
            self.head = ChainHead { rows: place + 1, hash };
        }
        self.last = Some(link);
    }

    fn check_end(&self, end: Option<ChainHead>, findings: &mut Findings) {
        let ChainHead { rows, hash } = self.head;
        let flaw = match end {
            None => EndFlaw::NoSuchWriter,
            Some(end) if end.rows > rows => EndFlaw::CutOff { written: end.rows },
            Some(end) if end.rows < rows => EndFlaw::TooLong { written: end.rows },
            Some(end) if end.hash != hash => EndFlaw::OtherRow,
            Some(_) => return,
        };
        let flaw = Flaw::End { last: self.last.as_ref(), rows, flaw };
        findings.add(T::describe(self.writer, flaw));
    }
}

#[cfg(test)]
pub(crate) fn findings_in<T: ChainedTable>(
    writer: WriterId,
    links: Vec<T::Link>,
    end: Option<ChainHead>,
) -> Vec<String> {
    let mut findings = Findings::at_most(100);
    let mut chain = Chain::<T>::of(writer);
    links.into_iter().for_each(|link| chain.follow(link, &mut findings));
    chain.check_end(end, &mut findings);
    findings.told
}
