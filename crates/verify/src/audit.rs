//! Recomputes the hash chains of the audit log.

use crate::chain::{ChainError, ChainedTable, HeadError, verify_chains};
use crate::{Findings, VerifyError};
use chancery_domain::{AuditRow, ChainHash, ChainHead, WriterId};
use chancery_store::{ChainedAuditRow, DbError, VerifyStore};

/// Rows per page.
const PAGE_ROWS: u32 = 2_000;
const MAX_REPORTED_FINDINGS: usize = 50;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditVerification {
    pub rows: u64,
    /// The end of each writer's chain. Storing these elsewhere lets an auditor prove later that nothing before them was rewritten.
    pub chains: Vec<(WriterId, ChainHead)>,
    pub findings: Findings,
}

/// Calls `progress` with the number of rows read so far.
pub async fn verify_audit(
    store: &VerifyStore,
    progress: impl FnMut(u64),
) -> Result<AuditVerification, VerifyError> {
    let mut findings = Findings::with_limit(MAX_REPORTED_FINDINGS);
    let summary = verify_chains(&AuditTable(store), &mut findings, |_, _| Ok(()), progress).await?;
    Ok(AuditVerification { rows: summary.rows, chains: summary.chains, findings })
}

struct AuditTable<'a>(&'a VerifyStore);

impl ChainedTable for AuditTable<'_> {
    type Link = ChainedAuditRow;
    type Row = AuditRow;

    fn parts(link: &ChainedAuditRow) -> (&AuditRow, u64, ChainHash) {
        (&link.row, link.position, link.hash)
    }

    async fn next_writer(&self, writer: Option<WriterId>) -> Result<Option<WriterId>, DbError> {
        self.0.audit_chains.next_audit_writer(writer).await
    }

    async fn links_after(
        &self,
        writer: WriterId,
        last: Option<&ChainedAuditRow>,
    ) -> Result<Vec<ChainedAuditRow>, DbError> {
        self.0.audit_chains.audit_rows(writer, last.map_or(0, |last| last.position + 1), PAGE_ROWS).await
    }

    async fn head(&self, writer: WriterId) -> Result<Option<ChainHead>, DbError> {
        self.0.audit_chains.audit_chain_head(writer).await
    }

    fn describe(writer: WriterId, chain_error: ChainError<'_, ChainedAuditRow>) -> String {
        match chain_error {
            ChainError::Gap { link, missing } => {
                format!("{}: row {missing} before it is missing", row_name(writer, link))
            }
            ChainError::DuplicatePosition(link) | ChainError::Altered(link) => format!(
                "{}: hash mismatch, the row or the chain before it was altered",
                row_name(writer, link)
            ),
            ChainError::Head { last, rows, error } => {
                let last = last.map_or("no row".to_owned(), |last| row_name(writer, last));
                match error {
                    HeadError::UnknownWriter => format!("{last}: unknown writer"),
                    HeadError::Truncated { written } => format!(
                        "audit writer {writer}: {written} rows written, rows from {rows} on are missing"
                    ),
                    HeadError::BeyondHead { written } => {
                        format!("{last}: beyond the {written} rows its writer wrote")
                    }
                    HeadError::HeadMismatch => format!("{last}: does not match the recorded chain head"),
                }
            }
        }
    }
}

/// Names the row so that it can be found: its request, action and time.
fn row_name(writer: WriterId, link: &ChainedAuditRow) -> String {
    let ChainedAuditRow { row, position, .. } = link;
    format!(
        "audit row {position} of writer {writer} ({}, {}, {})",
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
        AccessRequest, Action, AuditRow, ClientId, Decision, PersonId, Principal, RequestId, Role, UnixMillis,
    };

    const WRITER: WriterId = WriterId(7);

    /// A valid chain of `rows` rows, as a writer creates it.
    fn written(rows: u64) -> (Vec<ChainedAuditRow>, ChainHead) {
        let mut head = ChainHead::default();
        let mut chained = Vec::new();
        for position in 0..rows {
            let access_request = AccessRequest {
                by: Principal::Person { id: PersonId(3), role: Role::Consultant },
                action: Action::ReadClient,
                client: Some(ClientId(1042)),
                at: UnixMillis(1_794_744_000_000),
                request_id: RequestId::from_stored(format!("req_{position}")),
            };
            let row = AuditRow::decision(access_request, Decision::Allowed);
            head = head.with_row(WRITER, &row);
            chained.push(ChainedAuditRow { row, position, hash: head.hash });
        }
        (chained, head)
    }

    fn findings(rows: &[ChainedAuditRow], end: Option<ChainHead>) -> Vec<String> {
        findings_in::<AuditTable<'_>>(WRITER, rows.to_vec(), end)
    }

    #[test]
    fn untouched_audit_rows_verify() {
        let (rows, end) = written(5);
        assert_eq!(findings(&rows, Some(end)), Vec::<String>::new());
        assert_eq!(findings(&[], Some(ChainHead::default())), Vec::<String>::new());
    }

    #[test]
    fn only_the_changed_audit_row_is_reported() {
        let (mut rows, end) = written(5);
        let access_request = rows[2].row.as_decision().unwrap().access_request.clone();
        rows[2].row = AuditRow::decision(access_request, Decision::Denied);
        let found = findings(&rows, Some(end));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("audit row 2 of writer 7 (req_2, readClient, "), "{found:?}");
    }

    #[test]
    fn missing_audit_row_is_reported_at_any_index() {
        let (rows, end) = written(5);
        let in_the_middle: Vec<_> = [&rows[..2], &rows[3..]].concat();
        assert!(findings(&in_the_middle, Some(end))[0].contains("row 2 before it is missing"));
        assert!(findings(&rows[..4], Some(end))[0].contains("rows from 4 on are missing"));
        assert!(findings(&[], Some(end))[0].contains("rows from 0 on are missing"));
    }

    #[test]
    fn rows_of_an_unknown_writer_or_past_its_head_are_reported() {
        let (rows, _) = written(3);
        let (_, shorter) = written(2);
        assert!(findings(&rows, None)[0].contains("unknown writer"));
        assert!(findings(&rows, Some(shorter))[0].contains("beyond the 2 rows its writer wrote"));
        let other = ChainHead { rows: 3, ..shorter };
        assert!(findings(&rows, Some(other))[0].contains("does not match the recorded chain head"));
    }
}
