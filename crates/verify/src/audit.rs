//! Recomputes the audit's chains, one for each process that wrote it, and names what differs: a row that was changed, moved,
//! removed or put in between no longer fits the hashes, and rows missing at the end are missed because the end is kept apart.
//!
//! A server may add rows meanwhile, each together with its chain's end; an end that is read after the rows is as far as they
//! are or further.

use chancery_domain::{ChainHead, WriterId};
use chancery_store::{ChainedAuditRow, Store, StoreError};

/// Rows that are read at once.
const PAGE_ROWS: u32 = 2_000;
/// How many findings are told; of the others the number is enough.
const FINDINGS: usize = 50;

/// What was looked at and what was found. No findings means that everything agrees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditVerification {
    pub rows: u64,
    /// Where each writer's chain ends. Whoever notes these elsewhere can tell later that nothing before them was rewritten.
    pub chains: Vec<(WriterId, ChainHead)>,
    /// The first of them, in the order of the rows.
    pub findings: Vec<String>,
    /// How many more there are.
    pub more_findings: u64,
}

/// `progress` is told the number of rows read so far.
pub async fn verify_audit(
    store: &dyn Store,
    mut progress: impl FnMut(u64),
) -> Result<AuditVerification, StoreError> {
    let mut found = AuditVerification::default();
    let mut last = None;
    while let Some(writer) = store.audit_writer_after(last).await? {
        last = Some(writer);
        found.read_chain(store, writer, &mut progress).await?;
    }
    Ok(found)
}

impl AuditVerification {
    fn finds(&mut self, finding: String) {
        if self.findings.len() < FINDINGS {
            self.findings.push(finding);
        } else {
            self.more_findings += 1;
        }
    }

    async fn read_chain(
        &mut self,
        store: &dyn Store,
        writer: WriterId,
        progress: &mut impl FnMut(u64),
    ) -> Result<(), StoreError> {
        let mut chain = ChainHead::default();
        let mut last: Option<ChainedAuditRow> = None;
        let mut end = None;
        loop {
            let page = store.audit_rows(writer, chain.rows, PAGE_ROWS).await?;
            page.iter().for_each(|row| self.check_link(writer, &mut chain, row));
            self.rows += page.len() as u64;
            progress(self.rows);
            match page.into_iter().next_back() {
                Some(row) => last = Some(row),
                // The writer may have gone on before its end was read; then there are more rows by now.
                None if end.is_some_and(|end: ChainHead| end.rows > chain.rows) => break,
                None => {
                    end = store.audit_chain_head(writer).await?;
                    if end.is_none_or(|end| end.rows <= chain.rows) {
                        break;
                    }
                }
            }
        }
        self.check_end(writer, chain, end, last.as_ref());
        self.chains.push((writer, chain));
        Ok(())
    }

    /// Whether the row is the next of the chain; afterwards the chain is followed from this row on, so that one change
    /// is not told again for every row after it.
    fn check_link(&mut self, writer: WriterId, chain: &mut ChainHead, chained: &ChainedAuditRow) {
        let ChainedAuditRow { row, place, hash } = chained;
        if *place > chain.rows {
            let missing = chain.rows;
            self.finds(format!("{}: number {missing} before it is missing", in_words(writer, chained)));
        } else if *hash != chain.hash_of_next(writer, row) {
            self.finds(format!(
                "{}: it is not what was written there, or does not follow what was written before it",
                in_words(writer, chained)
            ));
        }
        *chain = ChainHead { rows: place + 1, hash: *hash };
    }

    fn check_end(
        &mut self,
        writer: WriterId,
        chain: ChainHead,
        end: Option<ChainHead>,
        last: Option<&ChainedAuditRow>,
    ) {
        let last = last.map_or("no row".to_owned(), |last| in_words(writer, last));
        match end {
            None => self.finds(format!("{last}: there is no such writer")),
            Some(end) if end.rows > chain.rows => self.finds(format!(
                "audit of writer {writer}: it wrote {} rows, and those from number {} on are missing",
                end.rows, chain.rows
            )),
            Some(end) if end.rows < chain.rows => {
                self.finds(format!("{last}: its writer wrote only {} rows", end.rows));
            }
            Some(end) if end.hash != chain.hash => {
                self.finds(format!("{last}: it is not the one that its writer ended with"));
            }
            Some(_) => {}
        }
    }
}

/// Which row, for somebody who looks for it: the request, what was asked and when.
fn in_words(writer: WriterId, chained: &ChainedAuditRow) -> String {
    let ChainedAuditRow { row, place, .. } = chained;
    let asked = &row.asked;
    format!(
        "audit row {place} of writer {writer} ({}, {}, {})",
        asked.request_id,
        asked.action,
        asked.at.to_iso()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{
        Action, Asked, Asker, AuditRow, ClientId, Decision, PersonId, RequestId, Role, UnixMillis,
    };

    const WRITER: WriterId = WriterId(7);

    /// A chain of as many rows, as a writer makes it.
    fn written(rows: u64) -> (Vec<ChainedAuditRow>, ChainHead) {
        let mut head = ChainHead::default();
        let mut chained = Vec::new();
        for place in 0..rows {
            let asked = Asked {
                by: Asker::Person { id: PersonId(3), role: Role::Consultant },
                action: Action::ReadClient,
                client: Some(ClientId(1042)),
                at: UnixMillis(1_794_744_000_000),
                request_id: RequestId::from_stored(format!("req_{place}")),
            };
            let row = AuditRow { asked, decision: Decision::Allowed };
            head = head.followed_by(WRITER, &row);
            chained.push(ChainedAuditRow { row, place, hash: head.hash });
        }
        (chained, head)
    }

    fn findings(rows: &[ChainedAuditRow], end: Option<ChainHead>) -> Vec<String> {
        let mut found = AuditVerification::default();
        let mut chain = ChainHead::default();
        rows.iter().for_each(|row| found.check_link(WRITER, &mut chain, row));
        found.check_end(WRITER, chain, end, rows.last());
        found.findings
    }

    #[test]
    fn rows_as_they_were_written_agree() {
        let (rows, end) = written(5);
        assert_eq!(findings(&rows, Some(end)), Vec::<String>::new());
        assert_eq!(findings(&[], Some(ChainHead::default())), Vec::<String>::new());
    }

    #[test]
    fn a_row_that_was_changed_is_named_and_no_other() {
        let (mut rows, end) = written(5);
        rows[2].row.decision = Decision::Refused;
        let found = findings(&rows, Some(end));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("audit row 2 of writer 7 (req_2, readClient, "), "{found:?}");
    }

    #[test]
    fn a_row_that_is_missing_is_missed_wherever_it_stood() {
        let (rows, end) = written(5);
        let in_the_middle: Vec<_> = [&rows[..2], &rows[3..]].concat();
        assert!(findings(&in_the_middle, Some(end))[0].contains("number 2 before it is missing"));
        assert!(findings(&rows[..4], Some(end))[0].contains("those from number 4 on are missing"));
        assert!(findings(&[], Some(end))[0].contains("those from number 0 on are missing"));
    }

    #[test]
    fn rows_of_a_writer_that_never_was_or_past_its_end_are_named() {
        let (rows, _) = written(3);
        let (_, shorter) = written(2);
        assert!(findings(&rows, None)[0].contains("there is no such writer"));
        assert!(findings(&rows, Some(shorter))[0].contains("its writer wrote only 2 rows"));
        let other = ChainHead { rows: 3, ..shorter };
        assert!(findings(&rows, Some(other))[0].contains("not the one that its writer ended with"));
    }
}
