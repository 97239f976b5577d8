//! The queries about the audit: pages for people, newest first by the time of the decision, and chains for those who verify
//! them.

use crate::audit::chain::{AuditChain, HEAD, StoredAuditRow, StoredChainedAuditRow};
use crate::audit::step::{Stopped, decided};
use crate::clients::rows::person_ref;
use crate::db::both::{Statement, for_both_connections, for_both_stores, stored_row};
use crate::db::error_codes::{answer, long_answer};
use crate::db::transaction::BeginWriting;
use crate::ledger::batch::stored_count;
use crate::ledger::queries::StoredHead;
use crate::people::team::Team;
use crate::{
    AUDIT_ROWS_PER_PAGE, Audit, AuditLine, AuditPlace, AuditQuery, AuditTurn, ChainedAuditRow, StoreError,
    TeamMember,
};
use chancery_domain::{ChainHead, SessionTimes, WriterId};
use chancery_policy::{ManageTeam, Permit, ReadAudit, ReadTeam};

const NEWEST_FIRST: &str = " ORDER BY a.at_ms DESC, a.id DESC LIMIT ";
const OLDEST_FIRST: &str = " ORDER BY a.at_ms, a.id LIMIT ";
const AT: &str = "SELECT at_ms FROM audit_rows WHERE id = $1";

/// Of those that have rows and those that have an end, which should be the same.
const NEXT_WRITER: &str = "SELECT MIN(id) FROM (SELECT MIN(writer_id) AS id FROM audit_rows WHERE writer_id > $1 \
    UNION ALL SELECT MIN(id) FROM audit_writers WHERE id > $1) AS next";

const CHAIN_PAGE: &str =
    "SELECT * FROM audit_rows WHERE writer_id = $1 AND place >= $2 ORDER BY place LIMIT $3";

stored_row! {
    struct StoredAuditLine {
        id: i64,
        person_email: Option<String>,
        ..row: StoredAuditRow,
    }
}

impl StoredAuditLine {
    fn into_line(self) -> Result<AuditLine, StoreError> {
        let person = match (self.row.person_id, &self.person_email) {
            (Some(id), Some(email)) => Some(person_ref(id, email)?),
            _ => None,
        };
        Ok(AuditLine { place: AuditPlace(self.id), row: self.row.into_audit_row()?, person })
    }
}

#[async_trait::async_trait]
pub(crate) trait AuditPages {
    async fn audit_page(&mut self, query: &AuditQuery) -> Result<Vec<AuditLine>, Stopped>;
}

for_both_connections! {
    impl AuditPages {
        async fn audit_page(&mut self, query: &AuditQuery) -> Result<Vec<AuditLine>, Stopped> {
            let AuditQuery { person, client, action, decision, from, until, turn } = query;
            let mut read = Statement::<Self>::new(
                "SELECT a.id, a.at_ms, a.asker, a.person_id, a.action, a.client_id, a.request_id, a.decision, \
                 p.email AS person_email FROM audit_rows a LEFT JOIN people p ON p.id = a.person_id WHERE a.at_ms >= ",
            );
            read.push_bind(from.map_or(i64::MIN, |from| from.0));
            if let Some(until) = until {
                read.push(" AND a.at_ms < ").push_bind(until.0);
            }
            if let Some(person) = person {
                read.push(" AND a.person_id = ").push_bind(person.0);
            }
            if let Some(client) = client {
                read.push(" AND a.client_id = ").push_bind(client.0);
            }
            if let Some(action) = action {
                read.push(" AND a.action = ").push_bind(action.as_str());
            }
            if let Some(decision) = decision {
                read.push(" AND a.decision = ").push_bind(decision.as_str());
            }
            let (AuditPlace(place), compared, order) = match turn {
                None => (AuditPlace(0), None, NEWEST_FIRST),
                Some(AuditTurn::Before(place)) => (*place, Some(" AND (a.at_ms, a.id) < ("), NEWEST_FIRST),
                Some(AuditTurn::After(place)) => (*place, Some(" AND (a.at_ms, a.id) > ("), OLDEST_FIRST),
            };
            if let Some(compared) = compared {
                let at: Option<i64> = sqlx::query_scalar(AT).bind(place).fetch_optional(&mut *self).await?;
                let Some(at) = at else { return Ok(Vec::new()) };
                read.push(compared).push_bind(at).push(", ").push_bind(place).push(")");
            }
            read.push(order).push_bind(i64::from(AUDIT_ROWS_PER_PAGE));
            let mut rows: Vec<StoredAuditLine> = read.build_query_as().fetch_all(&mut *self).await?;
            if let Some(AuditTurn::After(_)) = turn {
                // The nearest were read first.
                rows.reverse();
            }
            let lines: Result<Vec<AuditLine>, StoreError> = rows.into_iter().map(StoredAuditLine::into_line).collect();
            Ok(lines?)
        }
    }
}

for_both_stores! {
    impl Audit {
        async fn read_audit(
            &self,
            permit: &Permit<ReadAudit>,
            query: &AuditQuery,
        ) -> Result<Vec<AuditLine>, StoreError> {
            let row = [permit.to_audit_row()];
            let noted: Result<(), StoreError> =
                decided!(self, |transaction| transaction.link(self.lease.writer, &row));
            noted?;
            // A filter that few rows fit may look at very many, and nobody's record waits for that.
            self.read_more_audit(permit, query).await
        }

        async fn read_more_audit(
            &self,
            _permit: &Permit<ReadAudit>,
            query: &AuditQuery,
        ) -> Result<Vec<AuditLine>, StoreError> {
            let page = async {
                let mut connection = self.long_reader.acquire().await?;
                match connection.audit_page(query).await {
                    Ok(lines) => Ok(Ok(lines)),
                    Err(Stopped::Rejected(error)) => Ok(Err(error)),
                    Err(Stopped::Database(error)) => Err(error),
                }
            };
            long_answer(page).await?
        }

        async fn read_team(
            &self,
            permit: Permit<ReadTeam>,
            times: SessionTimes,
        ) -> Result<Vec<TeamMember>, StoreError> {
            let row = [permit.to_audit_row()];
            decided!(self, |transaction| async {
                transaction.link(self.lease.writer, &row).await?;
                transaction.members(times, permit.asked().at).await
            })
        }

        async fn note_managing_team(&self, permit: Permit<ManageTeam>) -> Result<(), StoreError> {
            let row = [permit.to_audit_row()];
            decided!(self, |transaction| transaction.link(self.lease.writer, &row))
        }

        async fn audit_writer_after(&self, writer: Option<WriterId>) -> Result<Option<WriterId>, StoreError> {
            let after = writer.map_or(i64::MIN, |writer| writer.0);
            let next = sqlx::query_scalar(NEXT_WRITER).bind(after).fetch_one(&self.long_reader);
            let next: Option<i64> = long_answer(next).await?;
            Ok(next.map(WriterId))
        }

        async fn audit_chain_head(&self, writer: WriterId) -> Result<Option<ChainHead>, StoreError> {
            let head = sqlx::query_as(HEAD).bind(writer.0).fetch_optional(&self.reader);
            answer(head).await?.map(StoredHead::into_chain_head).transpose()
        }

        async fn audit_rows(
            &self,
            writer: WriterId,
            from: u64,
            limit: u32,
        ) -> Result<Vec<ChainedAuditRow>, StoreError> {
            let page = sqlx::query_as(CHAIN_PAGE)
                .bind(writer.0)
                .bind(stored_count(from))
                .bind(i64::from(limit))
                .fetch_all(&self.long_reader);
            let rows: Vec<StoredChainedAuditRow> = long_answer(page).await?;
            rows.into_iter().map(StoredChainedAuditRow::into_chained_row).collect()
        }
    }
}
