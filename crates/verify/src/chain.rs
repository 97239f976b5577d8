//! Walks the hash chains of a table, one per writer process. A row that was changed, moved, removed or inserted no longer
//! matches the hashes. Rows missing at the end are detected because the chain head is stored separately.
//!
//! A server may add rows meanwhile, each together with its chain head. A head that is read after the rows is therefore never
//! behind them.

use crate::{Findings, VerifyError};
use chancery_domain::{ChainHash, ChainHead, ChainRow, WriterId};
use chancery_store::DbError;

/// A table whose rows form hash chains.
pub(crate) trait ChainedTable {
    /// A row with its position in its writer's chain.
    type Link;
    type Row: ChainRow;

    fn parts(link: &Self::Link) -> (&Self::Row, u64, ChainHash);

    async fn next_writer(&self, writer: Option<WriterId>) -> Result<Option<WriterId>, DbError>;

    /// Up to a page of the writer's rows after the given one, ordered by position.
    async fn links_after(
        &self,
        writer: WriterId,
        last: Option<&Self::Link>,
    ) -> Result<Vec<Self::Link>, DbError>;

    /// The stored head of the writer's chain.
    async fn head(&self, writer: WriterId) -> Result<Option<ChainHead>, DbError>;

    /// The hash that the row must have as the next of the chain.
    fn expected_hash(writer: WriterId, chain: &ChainHead, row: &Self::Row) -> ChainHash {
        chain.next_hash(writer, row)
    }

    fn describe(writer: WriterId, chain_error: ChainError<'_, Self::Link>) -> String;
}

/// How a chain is broken.
pub(crate) enum ChainError<'a, L> {
    /// Another row has the same position.
    DuplicatePosition(&'a L),
    /// The row at position `missing`, before this one, does not exist.
    Gap { link: &'a L, missing: u64 },
    /// The row, or the chain before it, is not what was written.
    Altered(&'a L),
    /// The stored head does not match the last row.
    Head { last: Option<&'a L>, rows: u64, error: HeadError },
}

pub(crate) enum HeadError {
    UnknownWriter,
    /// The writer wrote this many rows, and there are fewer.
    Truncated {
        written: u64,
    },
    /// The writer wrote this many rows, and there are more.
    BeyondHead {
        written: u64,
    },
    /// The last row is not the last one that the writer wrote.
    HeadMismatch,
}

#[derive(Debug, Default)]
pub(crate) struct ChainSummary {
    pub(crate) rows: u64,
    /// The head of each writer's chain.
    pub(crate) chains: Vec<(WriterId, ChainHead)>,
}

/// Calls `visit` with every row before its link is checked, and `progress` with the number of rows so far.
pub(crate) async fn verify_chains<T: ChainedTable>(
    table: &T,
    findings: &mut Findings,
    mut visit: impl FnMut(&T::Row, &mut Findings) -> Result<(), VerifyError>,
    mut progress: impl FnMut(u64),
) -> Result<ChainSummary, VerifyError> {
    let mut summary = ChainSummary::default();
    let mut last_writer = None;
    while let Some(writer) = table.next_writer(last_writer).await? {
        last_writer = Some(writer);
        let mut chain = Chain::<T>::of(writer);
        let mut end: Option<ChainHead> = None;
        loop {
            let page = table.links_after(writer, chain.last.as_ref()).await?;
            summary.rows += page.len() as u64;
            let is_empty = page.is_empty();
            for link in page {
                visit(T::parts(&link).0, findings)?;
                chain.append(link, findings);
            }
            progress(summary.rows);
            // The writer may have added rows before its head was read; then read those too.
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
        summary.chains.push((writer, chain.head));
    }
    Ok(summary)
}

/// One writer's chain, as far as it has been walked.
struct Chain<T: ChainedTable> {
    writer: WriterId,
    head: ChainHead,
    last: Option<T::Link>,
}

impl<T: ChainedTable> Chain<T> {
    fn of(writer: WriterId) -> Self {
        Self { writer, head: ChainHead::default(), last: None }
    }

    /// Reports a row that is not the next of the chain. The check continues from this row, so that one change is not reported
    /// again for every row after it.
    fn append(&mut self, link: T::Link, findings: &mut Findings) {
        let (row, position, hash) = T::parts(&link);
        let missing = self.head.rows;
        let chain_error = if position < missing {
            Some(ChainError::DuplicatePosition(&link))
        } else if position > missing {
            Some(ChainError::Gap { link: &link, missing })
        } else if hash != T::expected_hash(self.writer, &self.head, row) {
            Some(ChainError::Altered(&link))
        } else {
            None
        };
        if let Some(chain_error) = chain_error {
            findings.add(T::describe(self.writer, chain_error));
        }
        if position >= missing {
            self.head = ChainHead { rows: position + 1, hash };
        }
        self.last = Some(link);
    }

    fn check_end(&self, end: Option<ChainHead>, findings: &mut Findings) {
        let ChainHead { rows, hash } = self.head;
        let error = match end {
            None => HeadError::UnknownWriter,
            Some(end) if end.rows > rows => HeadError::Truncated { written: end.rows },
            Some(end) if end.rows < rows => HeadError::BeyondHead { written: end.rows },
            Some(end) if end.hash != hash => HeadError::HeadMismatch,
            Some(_) => return,
        };
        let chain_error = ChainError::Head { last: self.last.as_ref(), rows, error };
        findings.add(T::describe(self.writer, chain_error));
    }
}

#[cfg(test)]
pub(crate) fn findings_in<T: ChainedTable>(
    writer: WriterId,
    links: Vec<T::Link>,
    end: Option<ChainHead>,
) -> Vec<String> {
    let mut findings = Findings::with_limit(100);
    let mut chain = Chain::<T>::of(writer);
    links.into_iter().for_each(|link| chain.append(link, &mut findings));
    chain.check_end(end, &mut findings);
    findings.reported
}
