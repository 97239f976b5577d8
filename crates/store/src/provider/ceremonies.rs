//! Queries for what is under way: browsers that add or use a factor, and sign-ins that wait for their second factor.

use crate::db::{COMMAND_RETRY_LIMIT, Db, FromRow, QueryError, Row, Tx, corrupt, from_row, query};
use crate::secrets::column::CEREMONY_STATE;
use crate::secrets::keyring::Keyring;
use crate::{CeremonyKind, FactorCeremony, PendingSecondFactor, ProviderAccount, ProviderError};
use chancery_domain::{LocalPath, TokenHash, UnixMillis};

/// The encrypted state of a ceremony, without what the caller knows.
struct StoredCeremony {
    subject: Option<String>,
    state: Vec<u8>,
    expires_at: UnixMillis,
}

impl StoredCeremony {
    fn open(
        self,
        key: &TokenHash,
        kind: CeremonyKind,
        keyring: &Keyring,
    ) -> Result<FactorCeremony, QueryError> {
        let state = keyring.open_text(CEREMONY_STATE, &key.0, &self.state)?;
        Ok(FactorCeremony { kind, subject: self.subject, state, expires_at: self.expires_at })
    }
}

from_row!(StoredCeremony { subject, state, expires_at: "expires_at_ms" });

/// A pending sign-in with its account.
struct PendingRow(ProviderAccount, PendingSecondFactor);

impl FromRow for PendingRow {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        let return_to: String = row.get("return_to")?;
        let account = ProviderAccount::from_row(row)?;
        let pending = PendingSecondFactor {
            subject: account.subject.clone(),
            password_version: account.password_version,
            return_to: LocalPath::parse(&return_to).ok_or_else(|| {
                corrupt("a sign-in's return path", format!("{return_to:?} is not a path of the provider"))
            })?,
            expires_at: row.get("expires_at_ms")?,
        };
        Ok(Self(account, pending))
    }
}

const BEGIN: &str = "INSERT INTO factor_ceremonies (key_hash, kind, subject, state, expires_at_ms) \
    VALUES ($1, $2, $3, $4, $5) ON CONFLICT (key_hash) DO UPDATE SET kind = excluded.kind, subject = excluded.subject, \
    state = excluded.state, expires_at_ms = excluded.expires_at_ms";
const FIND: &str = "SELECT subject, state, expires_at_ms FROM factor_ceremonies \
    WHERE key_hash = $1 AND kind = $2 AND expires_at_ms > $3";
const CONSUME: &str = "DELETE FROM factor_ceremonies WHERE key_hash = $1 AND kind = $2 \
    RETURNING subject, state, expires_at_ms";
const DELETE_EXPIRED: &str = "DELETE FROM factor_ceremonies WHERE key_hash IN \
    (SELECT key_hash FROM factor_ceremonies WHERE expires_at_ms <= $1 LIMIT $2) AND expires_at_ms <= $1";
const BEGIN_PENDING: &str = "INSERT INTO pending_second_factors (token_hash, subject, password_version, return_to, \
    expires_at_ms) VALUES ($1, $2, $3, $4, $5)";
const FIND_PENDING: &str = "SELECT p.return_to, p.expires_at_ms, a.* FROM pending_second_factors p \
    JOIN provider_accounts a ON a.subject = p.subject AND a.password_version = p.password_version \
    WHERE p.token_hash = $1 AND p.expires_at_ms > $2";
const CONSUME_PENDING: &str = "DELETE FROM pending_second_factors WHERE token_hash = $1";
const DELETE_EXPIRED_PENDING: &str = "DELETE FROM pending_second_factors WHERE token_hash IN \
    (SELECT token_hash FROM pending_second_factors WHERE expires_at_ms <= $1 LIMIT $2)";

/// Short-lived, one-use state of browsers that add or use a factor.
#[derive(Clone)]
pub struct FactorCeremonies {
    pub(crate) db: Db,
    pub(crate) keyring: Keyring,
}

impl FactorCeremonies {
    /// Replaces an earlier ceremony with the same key.
    pub async fn begin_ceremony(
        &self,
        key: TokenHash,
        ceremony: &FactorCeremony,
    ) -> Result<(), ProviderError> {
        let (keyring, ceremony) = (self.keyring.clone(), ceremony.clone());
        let step = move |tx: &mut Tx<'_>| {
            let state = keyring.seal(tx, CEREMONY_STATE, &key.0, ceremony.state.as_bytes())?;
            let begin = query(BEGIN)
                .bind(key.0.as_slice())
                .bind(ceremony.kind.as_str())
                .bind(ceremony.subject.as_deref())
                .bind(state)
                .bind(ceremony.expires_at.0);
            begin.execute(tx)
        };
        self.db.write(step).await?;
        Ok(())
    }

    /// Does not use it up.
    pub async fn find_ceremony(
        &self,
        key: TokenHash,
        kind: CeremonyKind,
        now: UnixMillis,
    ) -> Result<Option<FactorCeremony>, ProviderError> {
        let find = query(FIND).bind(key.0.as_slice()).bind(kind.as_str()).bind(now.0);
        let found: Option<StoredCeremony> = self.db.fetch_optional(find).await?;
        Ok(found.map(|found| found.open(&key, kind, &self.keyring)).transpose()?)
    }

    /// Returns it once. `None` if there is none of this kind, or it has expired.
    pub async fn consume_ceremony(
        &self,
        key: TokenHash,
        kind: CeremonyKind,
        now: UnixMillis,
    ) -> Result<Option<FactorCeremony>, ProviderError> {
        let consume = query(CONSUME).bind(key.0.as_slice()).bind(kind.as_str());
        let consumed: Vec<StoredCeremony> = self.db.write_returning(consume, COMMAND_RETRY_LIMIT).await?;
        let consumed = consumed.into_iter().next().filter(|consumed| consumed.expires_at > now);
        Ok(consumed.map(|consumed| consumed.open(&key, kind, &self.keyring)).transpose()?)
    }

    pub async fn begin_second_factor(
        &self,
        token: TokenHash,
        pending: &PendingSecondFactor,
    ) -> Result<(), ProviderError> {
        let begin = query(BEGIN_PENDING)
            .bind(token.0.as_slice())
            .bind(pending.subject.as_str())
            .bind(pending.password_version)
            .bind(pending.return_to.as_str())
            .bind(pending.expires_at.0);
        self.db.execute(begin, COMMAND_RETRY_LIMIT).await?;
        Ok(())
    }

    /// The sign-in and its account. `None` if it does not exist, has expired, or the password was changed since.
    pub async fn pending_second_factor(
        &self,
        token: TokenHash,
        now: UnixMillis,
    ) -> Result<Option<(ProviderAccount, PendingSecondFactor)>, ProviderError> {
        let find = query(FIND_PENDING).bind(token.0.as_slice()).bind(now.0);
        let found: Option<PendingRow> = self.db.fetch_optional(find).await?;
        Ok(found.map(|PendingRow(account, pending)| (account, pending)))
    }

    /// Uses up a pending sign-in. Only one of several concurrent calls gets true.
    pub async fn consume_second_factor(&self, token: TokenHash) -> Result<bool, ProviderError> {
        let consume = query(CONSUME_PENDING).bind(token.0.as_slice());
        Ok(self.db.execute(consume, COMMAND_RETRY_LIMIT).await? > 0)
    }

    /// Deletes up to `limit` expired ceremonies and returns how many.
    pub async fn delete_expired_ceremonies(&self, now: UnixMillis, limit: u32) -> Result<u64, ProviderError> {
        let delete = query(DELETE_EXPIRED).bind(now.0).bind(i64::from(limit));
        Ok(self.db.execute(delete, COMMAND_RETRY_LIMIT).await?)
    }

    /// Deletes up to `limit` expired sign-ins and returns how many.
    pub async fn delete_expired_second_factors(
        &self,
        now: UnixMillis,
        limit: u32,
    ) -> Result<u64, ProviderError> {
        let delete = query(DELETE_EXPIRED_PENDING).bind(now.0).bind(i64::from(limit));
        Ok(self.db.execute(delete, COMMAND_RETRY_LIMIT).await?)
    }
}
