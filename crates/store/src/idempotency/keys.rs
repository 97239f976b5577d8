//! The queries about idempotency keys.
//!
//! 1. A key is claimed by adding its row; of many who do so at once, the table's own key lets one.
//! 2. A row is dead when its time is up, or when its request is under way in a process that has not said for a while
//!    that it lives. A dead row counts as absent, and whoever claims its key removes it first.
//! 3. Settling turns the row from "under way" into "finished" in the transaction that adds the ledger's row. Where
//!    somebody removed it by (2), nothing is written. So there is never a second row in the ledger for one key.

use crate::db::both::{for_both_stores, stored_row};
use crate::db::error_codes::{STATEMENT_TIMEOUT, answer, explain, long_answer};
use crate::db::retry::patiently;
use crate::ledger::queries::{STORED, StoredUsageRow};
use crate::{Claim, Claimed, FinishedReply, IdempotencyKeys, KeptKey, KeyHolder, Leases, StoreError};
use chancery_domain::{AccountId, Fingerprint, IdempotencyKey, RequestId, UnixMillis};

/// How often a key is tried again that was free a moment ago and is not any more.
const MAX_TRIES: u32 = 10;

/// Whether the row `k` is dead at the moment that the parameter gives.
macro_rules! is_dead {
    ($now:literal) => {
        concat!(
            "(k.expires_at_ms <= ",
            $now,
            " OR (k.writer_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM writer_leases w \
             WHERE w.writer_id = k.writer_id AND w.alive_until_ms > ",
            $now,
            ")))"
        )
    };
}

const CLAIM: &str = "INSERT INTO idempotency_keys \
    (account_id, idempotency_key, fingerprint, request_id, writer_id, expires_at_ms) \
    VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (account_id, idempotency_key) DO NOTHING";

const REMOVE_DEAD: &str = concat!(
    "DELETE FROM idempotency_keys AS k WHERE k.account_id = $1 AND k.idempotency_key = $2 AND ",
    is_dead!("$3")
);

const HOLDER: &str = concat!(
    "SELECT k.fingerprint, k.request_id, k.output_text, k.cached_tokens FROM idempotency_keys k \
     WHERE k.account_id = $1 AND k.idempotency_key = $2 AND NOT ",
    is_dead!("$3")
);

const FREE: &str = "DELETE FROM idempotency_keys \
    WHERE account_id = $1 AND idempotency_key = $2 AND request_id = $3 AND writer_id IS NOT NULL";

pub(crate) const FINISH: &str = "UPDATE idempotency_keys \
    SET writer_id = NULL, output_text = $4, cached_tokens = $5, expires_at_ms = $6 \
    WHERE account_id = $1 AND idempotency_key = $2 AND request_id = $3 AND writer_id IS NOT NULL";

/// Those of dead processes stay until their own time is up, which is soon: nobody minds them. The time is compared once
/// more at the end, for a request that took too long may be settled meanwhile.
const FORGET_EXPIRED: &str = "DELETE FROM idempotency_keys WHERE (account_id, idempotency_key) IN \
    (SELECT account_id, idempotency_key FROM idempotency_keys WHERE expires_at_ms <= $1 \
     ORDER BY expires_at_ms LIMIT $2) AND expires_at_ms <= $1";

const FINISHED_PAGE: &str = "SELECT k.account_id, k.idempotency_key, k.request_id, l.account_id AS billed_account_id \
    FROM idempotency_keys k LEFT JOIN ledger l ON l.request_id = k.request_id \
    WHERE k.writer_id IS NULL AND (k.account_id, k.idempotency_key) > ($1, $2) \
    ORDER BY k.account_id, k.idempotency_key LIMIT $3";

stored_row! {
    struct StoredHolder named by request_id {
        fingerprint: Vec<u8>,
        request_id: String,
        output_text: Option<Vec<u8>>,
        cached_tokens: Option<i64>,
    }
}

impl StoredHolder {
    fn corrupt(&self, why: &str) -> StoreError {
        StoreError::Corrupt {
            what: "an idempotency key's reply",
            why: format!("request {}: {why}", self.request_id),
        }
    }

    fn fingerprint(&self) -> Result<Fingerprint, StoreError> {
        let bytes = self.fingerprint.as_slice().try_into();
        bytes.map(Fingerprint).map_err(|_| self.corrupt("its fingerprint is not 32 bytes"))
    }

    /// None while the request is under way.
    fn text_and_cached_tokens(&self) -> Result<Option<(String, u32)>, StoreError> {
        let (Some(text), Some(cached_tokens)) = (&self.output_text, self.cached_tokens) else {
            return Ok(None);
        };
        let text = String::from_utf8(text.clone()).map_err(|_| self.corrupt("its text is not UTF-8"))?;
        let cached_tokens =
            u32::try_from(cached_tokens).map_err(|_| self.corrupt("its cached tokens are out of range"))?;
        Ok(Some((text, cached_tokens)))
    }
}

stored_row! {
    struct StoredKeptKey named by request_id {
        account_id: i64,
        idempotency_key: String,
        request_id: String,
        billed_account_id: Option<i64>,
    }
}

impl StoredKeptKey {
    fn into_kept_key(self) -> KeptKey {
        KeptKey {
            account: AccountId(self.account_id),
            key: IdempotencyKey::from_stored(self.idempotency_key),
            request_id: RequestId::from_stored(self.request_id),
            billed_account: self.billed_account_id.map(AccountId),
        }
    }
}

for_both_stores! {
    impl IdempotencyKeys {
        async fn key_holder(
            &self,
            account: AccountId,
            key: &IdempotencyKey,
            now: UnixMillis,
        ) -> Result<Option<KeyHolder>, StoreError> {
            let holder = sqlx::query_as(HOLDER).bind(account.0).bind(key.as_str()).bind(now.0);
            let holder: Option<StoredHolder> = answer(holder.fetch_optional(&self.reader)).await?;
            let Some(holder) = holder else { return Ok(None) };
            let fingerprint = holder.fingerprint()?;
            let Some((output_text, cached_tokens)) = holder.text_and_cached_tokens()? else {
                return Ok(Some(KeyHolder { fingerprint, reply: None }));
            };
            let row = sqlx::query_as(STORED).bind(holder.request_id.as_str()).fetch_optional(&self.reader);
            let row: Option<StoredUsageRow> = answer(row).await?;
            let row = row.ok_or_else(|| holder.corrupt("it is not in the ledger"))?.into_usage_row()?;
            Ok(Some(KeyHolder { fingerprint, reply: Some(FinishedReply { row, output_text, cached_tokens }) }))
        }

        async fn claim_key(&self, claim: &Claim) -> Result<Claimed, StoreError> {
            let Claim { account, key, fingerprint, request_id, now, expires_at } = claim;
            self.renew_lease(*now).await?;
            for _ in 0..MAX_TRIES {
                let claimed = patiently!(STATEMENT_TIMEOUT, self.writer().await?, |connection| {
                    sqlx::query(CLAIM)
                        .bind(account.0)
                        .bind(key.as_str())
                        .bind(fingerprint.0.as_slice())
                        .bind(request_id.as_str())
                        .bind(self.lease.writer.0)
                        .bind(expires_at.0)
                        .execute(&mut *connection)
                });
                if claimed.map_err(|error| explain(&error))?.rows_affected() == 1 {
                    return Ok(Claimed::Yes);
                }
                let removed = patiently!(STATEMENT_TIMEOUT, self.writer().await?, |connection| {
                    sqlx::query(REMOVE_DEAD).bind(account.0).bind(key.as_str()).bind(now.0).execute(&mut *connection)
                });
                if removed.map_err(|error| explain(&error))?.rows_affected() == 0
                    && let Some(holder) = self.key_holder(*account, key, *now).await?
                {
                    return Ok(Claimed::HeldBy(holder));
                }
            }
            Err(StoreError::Unavailable("an idempotency key changes hands all the time".to_owned()))
        }

        async fn free_key(&self, claim: &Claim) -> Result<(), StoreError> {
            let freed = patiently!(STATEMENT_TIMEOUT, self.writer().await?, |connection| {
                sqlx::query(FREE)
                    .bind(claim.account.0)
                    .bind(claim.key.as_str())
                    .bind(claim.request_id.as_str())
                    .execute(&mut *connection)
            });
            freed.map(|_| ()).map_err(|error| explain(&error))
        }

        async fn forget_expired_keys(&self, now: UnixMillis, limit: u32) -> Result<u64, StoreError> {
            let forgotten = patiently!(STATEMENT_TIMEOUT, self.writer().await?, |connection| {
                sqlx::query(FORGET_EXPIRED).bind(now.0).bind(i64::from(limit)).execute(&mut *connection)
            });
            forgotten.map(|done| done.rows_affected()).map_err(|error| explain(&error))
        }

        async fn kept_keys(&self, after: Option<&KeptKey>, limit: u32) -> Result<Vec<KeptKey>, StoreError> {
            let (account, key) = after.map_or((i64::MIN, ""), |last| (last.account.0, last.key.as_str()));
            let page = sqlx::query_as(FINISHED_PAGE)
                .bind(account)
                .bind(key)
                .bind(i64::from(limit))
                .fetch_all(&self.long_reader);
            let rows: Vec<StoredKeptKey> = long_answer(page).await?;
            Ok(rows.into_iter().map(StoredKeptKey::into_kept_key).collect())
        }
    }
}
