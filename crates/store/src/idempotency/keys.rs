//! The queries about idempotency keys.
//!
//! 1. A key is claimed by adding its row; of many who do so at once, the table's own key lets one.
//! 2. A row is dead when its time is up, or when its request is under way in a process that has not said for a while
//!    that it lives. A dead row counts as absent, and whoever claims its key removes it first.
//! 3. Settling turns the row from "under way" into "finished" in the transaction that adds the ledger's row. Where
//!    somebody removed it by (2), nothing is written. So there is never a second row in the ledger for one key.

use crate::db::Db;
use crate::db::error_codes::STATEMENT_TIMEOUT;
use crate::db::{FromRow, Row, corrupt, query};
use crate::leases::lease::Lease;
use crate::ledger::chains::ROW;
use crate::{Claim, Claimed, DbError, FinishedReply, KeptKey, KeyHolder};
use chancery_domain::{AccountId, Fingerprint, IdempotencyKey, RequestId, UnixMillis};
use std::sync::Arc;

/// How often a key is tried again that was free a moment ago and is not any more.
const MAX_ATTEMPTS: u32 = 10;

const CLAIM: &str = "INSERT INTO idempotency_keys \
    (account_id, idempotency_key, fingerprint, request_id, writer_id, expires_at_ms) \
    VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (account_id, idempotency_key) DO NOTHING";

/// The row `k` is dead at the moment $3.
const DELETE_DEAD: &str = "DELETE FROM idempotency_keys AS k WHERE k.account_id = $1 AND k.idempotency_key = $2 AND \
    (k.expires_at_ms <= $3 OR (k.writer_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM writer_leases w \
    WHERE w.writer_id = k.writer_id AND w.alive_until_ms > $3)))";

const HOLDER: &str = "SELECT k.fingerprint, k.request_id, k.output_text, k.cached_tokens FROM idempotency_keys k \
    WHERE k.account_id = $1 AND k.idempotency_key = $2 AND NOT \
    (k.expires_at_ms <= $3 OR (k.writer_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM writer_leases w \
    WHERE w.writer_id = k.writer_id AND w.alive_until_ms > $3)))";

const FREE: &str = "DELETE FROM idempotency_keys \
    WHERE account_id = $1 AND idempotency_key = $2 AND request_id = $3 AND writer_id IS NOT NULL";

pub(crate) const FINISH: &str = "UPDATE idempotency_keys \
    SET writer_id = NULL, output_text = $4, cached_tokens = $5, expires_at_ms = $6 \
    WHERE account_id = $1 AND idempotency_key = $2 AND request_id = $3 AND writer_id IS NOT NULL";

/// Those of dead processes stay until their own time is up, which is soon: nobody minds them. The time is compared once
/// more at the end, for a request that took too long may be settled meanwhile.
const DELETE_EXPIRED: &str = "DELETE FROM idempotency_keys WHERE (account_id, idempotency_key) IN \
    (SELECT account_id, idempotency_key FROM idempotency_keys WHERE expires_at_ms <= $1 \
     ORDER BY expires_at_ms LIMIT $2) AND expires_at_ms <= $1";

const FINISHED_PAGE: &str = "SELECT k.account_id, k.idempotency_key, k.request_id, l.account_id AS billed_account_id \
    FROM idempotency_keys k LEFT JOIN ledger l ON l.request_id = k.request_id \
    WHERE k.writer_id IS NULL AND (k.account_id, k.idempotency_key) > ($1, $2) \
    ORDER BY k.account_id, k.idempotency_key LIMIT $3";

struct Holder {
    fingerprint: Fingerprint,
    request_id: String,
    /// Its text and cached tokens. None while the request is under way.
    reply: Option<(String, u32)>,
}

fn corrupt_reply(request_id: &str, why: &str) -> sqlx::Error {
    corrupt("an idempotency key's reply", format!("request {request_id}: {why}"))
}

impl FromRow for Holder {
    const NAMED_BY: Option<&'static str> = Some("request_id");

    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let request_id: String = row.get("request_id")?;
        let corrupt = |why| corrupt_reply(&request_id, why);
        let fingerprint: Vec<u8> = row.get("fingerprint")?;
        let fingerprint = fingerprint.try_into().map_err(|_| corrupt("its fingerprint is not 32 bytes"))?;
        let (text, cached_tokens): (Option<Vec<u8>>, Option<i64>) =
            (row.get("output_text")?, row.get("cached_tokens")?);
        let reply = match (text, cached_tokens) {
            (Some(text), Some(cached_tokens)) => Some((
                String::from_utf8(text).map_err(|_| corrupt("its text is not UTF-8"))?,
                u32::try_from(cached_tokens).map_err(|_| corrupt("its cached tokens are out of range"))?,
            )),
            _ => None,
        };
        Ok(Self { fingerprint: Fingerprint(fingerprint), request_id, reply })
    }
}

impl FromRow for KeptKey {
    const NAMED_BY: Option<&'static str> = Some("request_id");

    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let billed_account: Option<i64> = row.get("billed_account_id")?;
        Ok(Self {
            account: AccountId(row.get("account_id")?),
            key: IdempotencyKey::from_stored(row.get("idempotency_key")?),
            request_id: RequestId::from_stored(row.get("request_id")?),
            billed_account: billed_account.map(AccountId),
        })
    }
}

/// Keys by which an account's callers name their requests: of all requests under one key, one row at most reaches the
/// ledger. A key is free when nobody has it, when its time is up, or when its request is under way in a dead process.
#[derive(Clone)]
pub struct IdempotencyKeys {
    pub(crate) db: Db,
    pub(crate) lease: Arc<Lease>,
}

impl IdempotencyKeys {
    /// Who has the key, if anybody.
    pub async fn key_holder(
        &self,
        account: AccountId,
        key: &IdempotencyKey,
        now: UnixMillis,
    ) -> Result<Option<KeyHolder>, DbError> {
        let holder = query(HOLDER).bind(account.0).bind(key.as_str()).bind(now.0);
        let Some(holder) = self.db.fetch_optional(holder).await? else { return Ok(None) };
        let Holder { fingerprint, request_id, reply } = holder;
        let Some((output_text, cached_tokens)) = reply else {
            return Ok(Some(KeyHolder { fingerprint, reply: None }));
        };
        let row = self.db.fetch_optional(query(ROW).bind(request_id.as_str())).await?;
        let row = row.ok_or_else(|| corrupt_reply(&request_id, "it is not in the ledger"))?;
        Ok(Some(KeyHolder { fingerprint, reply: Some(FinishedReply { row, output_text, cached_tokens }) }))
    }

    /// Takes the key if it is free. However many do so at once, one succeeds.
    pub async fn claim_key(&self, claim: &Claim) -> Result<Claimed, DbError> {
        let Claim { account, key, fingerprint, request_id, now, expires_at } = claim;
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
                return Ok(Claimed::Yes);
            }
            let delete = query(DELETE_DEAD).bind(account.0).bind(key.as_str()).bind(now.0);
            if self.db.execute(delete, STATEMENT_TIMEOUT).await? == 0
                && let Some(holder) = self.key_holder(*account, key, *now).await?
            {
                return Ok(Claimed::HeldBy(holder));
            }
        }
        Err(DbError::Unavailable("an idempotency key changes hands all the time".to_owned()))
    }

    /// For a request that comes to nothing. A key that is no longer its own, or whose request has ended, stays.
    pub async fn free_key(&self, claim: &Claim) -> Result<(), DbError> {
        let free = query(FREE).bind(claim.account.0).bind(claim.key.as_str()).bind(claim.request_id.as_str());
        self.db.execute(free, STATEMENT_TIMEOUT).await?;
        Ok(())
    }

    /// Removes up to `limit` keys whose time is up, with their replies, and says how many there were.
    pub async fn forget_expired_keys(&self, now: UnixMillis, limit: u32) -> Result<u64, DbError> {
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
    /// The keys whose requests have ended, by account and key, a page at a time: up to `limit` after the given one.
    pub async fn kept_keys(&self, after: Option<&KeptKey>, limit: u32) -> Result<Vec<KeptKey>, DbError> {
        let (account, key) = after.map_or((i64::MIN, ""), |last| (last.account.0, last.key.as_str()));
        let page = query(FINISHED_PAGE).bind(account).bind(key).bind(i64::from(limit));
        Ok(self.db.long_fetch_all(page).await?)
    }
}
