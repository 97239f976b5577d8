//! The end of the audit chain of one connection that writes. Only that connection moves it, so it is read once, and written once
//! for all steps of a commit.

use super::error_codes::QueryError;
use super::query::query;
use super::row::corrupt;
use super::tx::Tx;
use chancery_domain::{ChainHead, WriterId};

const READ: &str = "SELECT row_count, head FROM audit_writers WHERE id = $1";

/// Changes nothing unless the chain has as many rows as before. A stored hash that was changed meanwhile is not used: the rows
/// continue from the known one, so that `chancery verify` finds the change.
const MOVE: &str = "INSERT INTO audit_writers (id, row_count, head) VALUES ($1, $2, $3) \
    ON CONFLICT (id) DO UPDATE SET row_count = excluded.row_count, head = excluded.head \
    WHERE audit_writers.row_count = $4";

impl Tx<'_> {
    pub(crate) fn audit_writer(&self) -> WriterId {
        self.chain.writer
    }

    pub(crate) fn chain_head(&mut self) -> Result<ChainHead, QueryError> {
        if let Some(head) = self.chain.head {
            return Ok(head);
        }
        let head = query(READ).bind(self.chain.writer.0).fetch_optional(self)?.unwrap_or_default();
        self.chain.head = Some(head);
        self.chain.stored = Some(head);
        Ok(head)
    }

    /// The rows up to this head are written; `save_chain_head` follows before the commit.
    pub(crate) fn set_chain_head(&mut self, head: ChainHead) {
        self.chain.head = Some(head);
    }

    /// Writes the head, if it has moved.
    pub(super) fn save_chain_head(&mut self) -> Result<(), QueryError> {
        let (Some(after), Some(before)) = (self.chain.head, self.chain.stored) else { return Ok(()) };
        if after == before {
            return Ok(());
        }
        let rows = |head: ChainHead| i64::try_from(head.rows).map_err(|error| corrupt("a chain", error));
        let moved = query(MOVE)
            .bind(self.chain.writer.0)
            .bind(rows(after)?)
            .bind(after.hash.0.as_slice())
            .bind(rows(before)?)
            .execute(self)?;
        if moved != 1 {
            return self.checked(Err(QueryError::ConnectionLost("audit chain head conflict".to_owned())));
        }
        self.chain.stored = Some(after);
        Ok(())
    }
}
