//! Queries for idempotency keys.
//!
//! 1. A key is claimed by inserting its row; of concurrent claims, the primary key lets one succeed.
//! 2. A row is dead when it has expired, or when its request runs in a process whose lease has expired. A dead row
//!    counts as absent, and the next claim deletes it first.
//! 3. Settling turns the row from "in progress" into "finished" in the transaction that adds the ledger row. If the row
//!    was deleted by (2), nothing is written. So there is never a second ledger row for one key.

use crate::db::error_codes::STATEMENT_TIMEOUT;
use crate::db::{Db, FromRow, QueryError, Row, corrupt, from_row, query};
use crate::leases::lease::Lease;
use crate::ledger::chains::ROW;
use crate::{ClaimOutcome, DbError, FinishedKey, FinishedReply, IdempotencyRecord, KeyClaim};
use chancery_domain::{AccountId, Fingerprint, IdempotencyKey, UnixMillis};
use std::sync::Arc;

/// How often to retry a key that was free a moment ago but no longer is.
const MAX_ATTEMPTS: u32 = 10;

const CLAIM: &str = "INSERT INTO idempotency_keys \
    (account_id, idempotency_key, fingerprint, request_id, writer_id, expires_at_ms) \
    VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (account_id, idempotency_key) DO NOTHING";

/// Deletes row `k` if it is dead at time `$3`.
const DELETE_ORPHANED: &str = "DELETE FROM idempotency_keys AS k WHERE k.account_id = $1 AND k.idempotency_key = $2 AND \
    (k.expires_at_ms <= $3 OR (k.writer_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM writer_leases w \
    WHERE w.writer_id = k.writer_id AND w.lease_expires_at_ms > $3)))";

const FIND_RECORD: &str = "SELECT k.fingerprint, k.request_id, k.reasoning_text, k.output_text, k.logprobs, \
    k.reasoning_tokens FROM idempotency_keys k \
    WHERE k.account_id = $1 AND k.idempotency_key = $2 AND NOT \
    (k.expires_at_ms <= $3 OR (k.writer_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM writer_leases w \
    WHERE w.writer_id = k.writer_id AND w.lease_expires_at_ms > $3)))";

const RELEASE_KEY: &str = "DELETE FROM idempotency_keys \
    WHERE account_id = $1 AND idempotency_key = $2 AND request_id = $3 AND writer_id IS NOT NULL";

pub(crate) const FINISH: &str = "UPDATE idempotency_keys \
    SET writer_id = NULL, reasoning_text = $4, output_text = $5, logprobs = $6, reasoning_tokens = $7, \
        expires_at_ms = $8 \
    WHERE account_id = $1 AND idempotency_key = $2 AND request_id = $3 AND writer_id IS NOT NULL";

/// Keys of dead processes also stay until they expire, which is soon and does no harm. The time is compared again at
/// the end, because a slow request may be settled meanwhile.
const DELETE_EXPIRED: &str = "DELETE FROM idempotency_keys WHERE (account_id, idempotency_key) IN \
    (SELECT account_id, idempotency_key FROM idempotency_keys WHERE expires_at_ms <= $1 \
     ORDER BY expires_at_ms LIMIT $2) AND expires_at_ms <= $1";

const FINISHED_PAGE: &str = "SELECT k.account_id, k.idempotency_key, k.request_id, l.account_id AS billed_account_id \
    FROM idempotency_keys k LEFT JOIN ledger l ON l.request_id = k.request_id \
    WHERE k.writer_id IS NULL AND (k.account_id, k.idempotency_key) > ($1, $2) \
    ORDER BY k.account_id, k.idempotency_key LIMIT $3";

struct StoredRecord {
    fingerprint: Fingerprint,
    request_id: String,
    /// `None` while the request is in progress.
    reply: Option<StoredText>,
}

/// What the ledger row does not have.
struct StoredText {
    reasoning_text: String,
    output_text: String,
    logprobs: Option<Vec<u8>>,
    reasoning_tokens: u32,
}

fn corrupt_reply(request_id: &str, why: &str) -> QueryError {
    corrupt("an idempotency key's reply", format!("request {request_id}: {why}"))
}

impl FromRow for StoredRecord {
    const ROW_LABEL_COLUMN: Option<&'static str> = Some("request_id");

    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        let request_id: String = row.get("request_id")?;
        let corrupt = |why| corrupt_reply(&request_id, why);
        let fingerprint: Vec<u8> = row.get("fingerprint")?;
        let fingerprint = fingerprint.try_into().map_err(|_| corrupt("its fingerprint is not 32 bytes"))?;
        let texts: (Option<Vec<u8>>, Option<Vec<u8>>) = (row.get("reasoning_text")?, row.get("output_text")?);
        let reasoning_tokens: Option<i64> = row.get("reasoning_tokens")?;
        let text = |text: Vec<u8>| String::from_utf8(text).map_err(|_| corrupt("its text is not UTF-8"));
        let tokens =
            |count: i64| u32::try_from(count).map_err(|_| corrupt("its token counts are out of range"));
        let reply = match (texts, reasoning_tokens) {
            ((Some(reasoning_text), Some(output_text)), Some(reasoning_tokens)) => Some(StoredText {
                reasoning_text: text(reasoning_text)?,
                output_text: text(output_text)?,
                logprobs: row.get("logprobs")?,
                reasoning_tokens: tokens(reasoning_tokens)?,
            }),
            _ => None,
        };
        Ok(Self { fingerprint: Fingerprint(fingerprint), request_id, reply })
    }
}

from_row!(
    FinishedKey {
        account: "account_id",
        key: "idempotency_key",
        request_id,
        billed_account: "billed_account_id"
    },
    "request_id"
);

/// Idempotency keys of an account: of all requests under one key, at most one reaches the ledger. A key is free if
/// nobody holds it, if it has expired, or if its request runs in a dead process.
#[derive(Clone)]
pub struct IdempotencyKeys {
    pub(crate) db: Db,
    pub(crate) lease: Arc<Lease>,
}

impl IdempotencyKeys {
    /// The request that holds the key, if any.
    pub async fn idempotency_record(
        &self,
        account: AccountId,
        key: &IdempotencyKey,
        now: UnixMillis,
    ) -> Result<Option<IdempotencyRecord>, DbError> {
        let record = query(FIND_RECORD).bind(account.0).bind(key.as_str()).bind(now.0);
        let Some(record) = self.db.fetch_optional(record).await? else { return Ok(None) };
        let StoredRecord { fingerprint, request_id, reply } = record;
        let Some(StoredText { reasoning_text, output_text, logprobs, reasoning_tokens }) = reply else {
            return Ok(Some(IdempotencyRecord { fingerprint, reply: None }));
        };
        let row = self.db.fetch_optional(query(ROW).bind(request_id.as_str())).await?;
        let row = row.ok_or_else(|| corrupt_reply(&request_id, "it is not in the ledger"))?;
        Ok(Some(IdempotencyRecord {
            fingerprint,
            reply: Some(FinishedReply { row, reasoning_text, output_text, logprobs, reasoning_tokens }),
        }))
    }

    /// Claims the key if it is free. Only one of several concurrent calls succeeds.
    pub async fn claim_key(&self, claim: &KeyClaim) -> Result<ClaimOutcome, DbError> {
        let KeyClaim { account, key, fingerprint, request_id, now, expires_at } = claim;
        self.lease.renew(*now).await?;
        for _ in 0..MAX_ATTEMPTS {
            let add = query(CLAIM)
                .bind(account.0)
                .bind(key.as_str())
                .bind(fingerprint.0.as_slice())
                .bind(request_id.as_str())
                .bind(self.lease.writer.0)
                .bind(expires_at.0);
            if self.db.execute(add, STATEMENT_TIMEOUT).await? == 1 {
                return Ok(ClaimOutcome::Claimed);
            }
            let delete = query(DELETE_ORPHANED).bind(account.0).bind(key.as_str()).bind(now.0);
            if self.db.execute(delete, STATEMENT_TIMEOUT).await? == 0
                && let Some(record) = self.idempotency_record(*account, key, *now).await?
            {
                return Ok(ClaimOutcome::AlreadyClaimed(Box::new(record)));
            }
        }
        Err(DbError::Unavailable("idempotency key claim kept conflicting".to_owned()))
    }

    /// Frees the key of a failed request. A key that it no longer holds, or whose request has finished, stays.
    pub async fn release_key(&self, claim: &KeyClaim) -> Result<(), DbError> {
        let release =
            query(RELEASE_KEY).bind(claim.account.0).bind(claim.key.as_str()).bind(claim.request_id.as_str());
        self.db.execute(release, STATEMENT_TIMEOUT).await?;
        Ok(())
    }

    /// Deletes up to `limit` expired keys with their replies, and returns how many.
    pub async fn delete_expired_keys(&self, now: UnixMillis, limit: u32) -> Result<u64, DbError> {
        let delete = query(DELETE_EXPIRED).bind(now.0).bind(i64::from(limit));
        Ok(self.db.execute(delete, STATEMENT_TIMEOUT).await?)
    }
}

/// Stored replies of finished requests, for `verify`.
#[derive(Clone)]
pub struct StoredReplies {
    pub(crate) db: Db,
}

impl StoredReplies {
    /// The keys of finished requests by account and key, paginated: up to `limit` after the given one.
    pub async fn finished_keys(
        &self,
        after: Option<&FinishedKey>,
        limit: u32,
    ) -> Result<Vec<FinishedKey>, DbError> {
        let (account, key) = after.map_or((i64::MIN, ""), |last| (last.account.0, last.key.as_str()));
        let page = query(FINISHED_PAGE).bind(account).bind(key).bind(i64::from(limit));
        Ok(self.db.fetch_report(page).await?)
    }
}
