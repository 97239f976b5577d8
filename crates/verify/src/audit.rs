//! Recomputes the audit's chains.

use crate::chain::{ChainedTable, EndFlaw, Flaw, walk};
use crate::{Findings, VerifyError};
use chancery_domain::{AuditRow, ChainHash, ChainHead, WriterId};
use chancery_store::{ChainedAuditRow, DbError, VerifyStore};

/// Rows that are read at once.
const PAGE_ROWS: u32 = 2_000;
const MAX_FINDINGS_TOLD: usize = 50;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditVerification {
    pub rows: u64,
    /// Where each writer's chain ends. Whoever notes these elsewhere can tell later that nothing before them was
    /// rewritten.
    pub chains: Vec<(WriterId, ChainHead)>,
    pub findings: Findings,
}

/// `progress` is told the number of rows read so far.
pub async fn verify_audit(
    store: &VerifyStore,
    progress: impl FnMut(u64),
) -> Result<AuditVerification, VerifyError> {
    let mut findings = Findings::at_most(MAX_FINDINGS_TOLD);
    let walked = walk(&AuditTable(store), &mut findings, |_, _| Ok(()), progress).await?;
    Ok(AuditVerification { rows: walked.rows, chains: walked.chains, findings })
}

struct AuditTable<'a>(&'a VerifyStore);

impl ChainedTable for AuditTable<'_> {
    type Link = ChainedAuditRow;
    type Row = AuditRow;

    fn parts(link: &ChainedAuditRow) -> (&AuditRow, u64, ChainHash) {
        (&link.row, link.place, link.hash)
    }

    async fn writer_after(&self, writer: Option<WriterId>) -> Result<Option<WriterId>, DbError> {
        self.0.audit_chains.audit_writer_after(writer).await
    }

    async fn links_after(
        &self,
        writer: WriterId,
        last: Option<&ChainedAuditRow>,
    ) -> Result<Vec<ChainedAuditRow>, DbError> {
        self.0.audit_chains.audit_rows(writer, last.map_or(0, |last| last.place + 1), PAGE_ROWS).await
    }

    async fn head(&self, writer: WriterId) -> Result<Option<ChainHead>, DbError> {
        self.0.audit_chains.audit_chain_head(writer).await
    }

    fn describe(writer: WriterId, flaw: Flaw<'_, ChainedAuditRow>) -> String {
        match flaw {
            Flaw::Gap { link, missing } => {
                format!("{}: number {missing} before it is missing", row_name(writer, link))
            }
            Flaw::PlaceTaken(link) | Flaw::Altered(link) => format!(
                "{}: it is not what was written there, or does not follow what was written before it",
                row_name(writer, link)
            ),
            Flaw::End { last, rows, flaw } => {
                let last = last.map_or("no row".to_owned(), |last| row_name(writer, last));
                match flaw {
                    EndFlaw::NoSuchWriter => format!("{last}: there is no such writer"),
                    EndFlaw::CutOff { written } => format!(
                        "audit of writer {writer}: it wrote {written} rows, and those from number {rows} on are missing"
                    ),
                    EndFlaw::TooLong { written } => format!("{last}: its writer wrote only {written} rows"),
                    EndFlaw::OtherRow => format!("{last}: it is not the one that its writer ended with"),
                }
            }
        }
    }
}

/// Which row, for somebody who looks for it: the request, what was asked and when.
fn row_name(writer: WriterId, link: &ChainedAuditRow) -> String {
    let ChainedAuditRow { row, place, .. } = link;
    format!(
        "audit row {place} of writer {writer} ({}, {}, {})",
        row.request_id(),
        row.action_name(),
        row.at().to_iso()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::findings_in;
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
            let row = AuditRow::decision(asked, Decision::Allowed);
            head = head.followed_by(WRITER, &row);
            chained.push(ChainedAuditRow { row, place, hash: head.hash });
        }
        (chained, head)
    }

    fn findings(rows: &[ChainedAuditRow], end: Option<ChainHead>) -> Vec<String> {
        findings_in::<AuditTable<'_>>(WRITER, rows.to_vec(), end)
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
        let asked = rows[2].row.as_decision().unwrap().asked.clone();
        rows[2].row = AuditRow::decision(asked, Decision::Refused);
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
