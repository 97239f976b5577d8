//! Queries for second factors: passkeys, secrets of authenticator apps, and recovery codes.

use crate::db::{COMMAND_RETRY_LIMIT, Conn, Db, FromRow, Query, Row, query};
use crate::secrets::column::TOTP_SECRET;
use crate::secrets::keyring::Keyring;
use crate::{
    AccountFactors, AddFactorOutcome, IsConfirmed, NewPasskey, NewTotpSecret, ProviderError,
    RemoveFactorOutcome, StoredPasskey, TotpSecret,
};
use chancery_domain::{TokenHash, UnixMillis};

/// More than anyone has devices. Each of them is sent to the browser with every challenge.
pub const MAX_PASSKEYS_PER_ACCOUNT: u64 = 20;

impl FromRow for StoredPasskey {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let last_used_at_ms: Option<i64> = row.get("last_used_at_ms")?;
        Ok(Self {
            credential_id: row.get("credential_id")?,
            subject: row.get("subject")?,
            name: row.get("name")?,
            credential: row.get("credential")?,
            created_at: row.time("created_at_ms")?,
            last_used_at: last_used_at_ms.map(UnixMillis),
        })
    }
}

/// The secret is still encrypted.
impl FromRow for TotpSecret {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            secret: row.get("secret")?,
            last_step: row.get("last_step")?,
            created_at: row.time("created_at_ms")?,
        })
    }
}

/// Changes nothing, but no other transaction can change the account's factors until this one ends.
const LOCK_ACCOUNT: &str =
    "UPDATE provider_accounts SET password_version = password_version WHERE subject = $1";
const PASSKEYS: &str = "SELECT * FROM passkeys WHERE subject = $1 ORDER BY created_at_ms, credential_id";
const PASSKEY: &str = "SELECT * FROM passkeys WHERE credential_id = $1";
const COUNT_PASSKEYS: &str = "SELECT COUNT(*) FROM passkeys WHERE subject = $1";
const ADD_PASSKEY: &str = "INSERT INTO passkeys (credential_id, subject, name, credential, created_at_ms) \
    VALUES ($1, $2, $3, $4, $5) ON CONFLICT (credential_id) DO NOTHING";
const RENAME_PASSKEY: &str = "UPDATE passkeys SET name = $3 WHERE subject = $1 AND credential_id = $2";
/// Only if the passkey has not been used meanwhile: a sign counter counts once.
const USE_PASSKEY: &str = "UPDATE passkeys SET credential = $3, last_used_at_ms = $4 \
    WHERE credential_id = $1 AND credential = $2";
const REMOVE_PASSKEY: &str = "DELETE FROM passkeys WHERE subject = $1 AND credential_id = $2";
const TOTP: &str = "SELECT * FROM totp_secrets WHERE subject = $1";
const COUNT_TOTP: &str = "SELECT COUNT(*) FROM totp_secrets WHERE subject = $1";
const ADD_TOTP: &str = "INSERT INTO totp_secrets (subject, secret, last_step, created_at_ms) VALUES ($1, $2, $3, $4) \
    ON CONFLICT (subject) DO NOTHING";
const ACCEPT_STEP: &str = "UPDATE totp_secrets SET last_step = $2 WHERE subject = $1 AND last_step < $2";
const REMOVE_TOTP: &str = "DELETE FROM totp_secrets WHERE subject = $1";
const COUNT_CODES: &str = "SELECT COUNT(*) FROM recovery_codes WHERE subject = $1";
const ADD_CODE: &str = "INSERT INTO recovery_codes (code_hash, subject) VALUES ($1, $2)";
const USE_CODE: &str = "DELETE FROM recovery_codes WHERE code_hash = $1 AND subject = $2";
const REMOVE_CODES: &str = "DELETE FROM recovery_codes WHERE subject = $1";

async fn count(conn: &mut Conn<'_>, sql: &'static str, subject: &str) -> Result<u64, sqlx::Error> {
    query(sql).bind(subject).fetch_one(conn).await
}

async fn count_factors(conn: &mut Conn<'_>, subject: &str) -> Result<u64, sqlx::Error> {
    Ok(count(conn, COUNT_PASSKEYS, subject).await? + count(conn, COUNT_TOTP, subject).await?)
}

pub(super) async fn lock_account(conn: &mut Conn<'_>, subject: &str) -> Result<(), sqlx::Error> {
    query(LOCK_ACCOUNT).bind(subject).execute(conn).await?;
    Ok(())
}

async fn set_recovery_codes(
    conn: &mut Conn<'_>,
    subject: &str,
    codes: &[TokenHash],
) -> Result<(), sqlx::Error> {
    query(REMOVE_CODES).bind(subject).execute(conn).await?;
    for code in codes {
        query(ADD_CODE).bind(code.0.as_slice()).bind(subject).execute(conn).await?;
    }
    Ok(())
}

/// Adds a factor, and the recovery codes if it is the first one.
async fn add(
    conn: &mut Conn<'_>,
    subject: &str,
    codes: &[TokenHash],
    insert: Query<'_>,
) -> Result<AddFactorOutcome, sqlx::Error> {
    let is_first = count_factors(conn, subject).await? == 0;
    if insert.execute(conn).await? == 0 {
        return Ok(AddFactorOutcome::AlreadyExists);
    }
    if is_first {
        set_recovery_codes(conn, subject, codes).await?;
    }
    Ok(AddFactorOutcome::Added { is_first })
}

pub(super) async fn read_factors(conn: &mut Conn<'_>, subject: &str) -> Result<AccountFactors, sqlx::Error> {
    let totp: Option<TotpSecret> = query(TOTP).bind(subject).fetch_optional(conn).await?;
    Ok(AccountFactors {
        passkeys: query(PASSKEYS).bind(subject).fetch_all(conn).await?,
        totp_created_at: totp.map(|totp| totp.created_at),
        recovery_codes: count(conn, COUNT_CODES, subject).await?,
    })
}

/// Removes a passkey, or the authenticator app. The recovery codes go with the last factor, and count with it.
async fn remove(
    conn: &mut Conn<'_>,
    subject: &str,
    passkey: Option<&[u8]>,
    must_keep_one: bool,
    is_confirmed: IsConfirmed<'_>,
) -> Result<RemoveFactorOutcome, sqlx::Error> {
    lock_account(conn, subject).await?;
    let factors = read_factors(conn, subject).await?;
    if must_keep_one && factors.count() <= 1 {
        return Ok(RemoveFactorOutcome::IsLast);
    }
    let (exists, delete) = match passkey {
        Some(id) => {
            let exists = factors.passkeys.iter().any(|passkey| passkey.credential_id == id);
            (exists, query(REMOVE_PASSKEY).bind(subject).bind(id))
        }
        None => (factors.totp_created_at.is_some(), query(REMOVE_TOTP).bind(subject)),
    };
    if !exists {
        return Ok(RemoveFactorOutcome::NotFound);
    }
    if !is_confirmed(1 + factors.recovery_codes_of_last()) {
        return Ok(RemoveFactorOutcome::Unconfirmed(factors));
    }
    delete.execute(conn).await?;
    if factors.count() <= 1 {
        query(REMOVE_CODES).bind(subject).execute(conn).await?;
    }
    Ok(RemoveFactorOutcome::Removed)
}

/// Second factors of accounts at the identity provider.
#[derive(Clone)]
pub struct SecondFactors {
    pub(crate) db: Db,
    pub(crate) keyring: Keyring,
}

impl SecondFactors {
    /// All factors of the account, from one snapshot.
    pub async fn account_factors(&self, subject: &str) -> Result<AccountFactors, ProviderError> {
        let read = self.db.snapshot(subject, |conn, subject| {
            Box::pin(async move { Ok(read_factors(conn, subject).await?) })
        });
        read.await
    }

    pub async fn add_passkey(&self, new: &NewPasskey) -> Result<AddFactorOutcome, ProviderError> {
        let added = self.db.run(new, |conn, new| {
            Box::pin(async move {
                lock_account(conn, &new.subject).await?;
                if count(conn, COUNT_PASSKEYS, &new.subject).await? >= MAX_PASSKEYS_PER_ACCOUNT {
                    return Ok(AddFactorOutcome::TooMany);
                }
                let insert = query(ADD_PASSKEY)
                    .bind(new.credential_id.as_slice())
                    .bind(new.subject.as_str())
                    .bind(new.name.as_str())
                    .bind(new.credential.as_str())
                    .bind(new.at.0);
                Ok(add(conn, &new.subject, &new.recovery_codes, insert).await?)
            })
        });
        added.await
    }

    /// Of any account.
    pub async fn passkey(&self, credential_id: &[u8]) -> Result<Option<StoredPasskey>, ProviderError> {
        Ok(self.db.fetch_optional(query(PASSKEY).bind(credential_id)).await?)
    }

    /// Returns whether the account has this passkey.
    pub async fn rename_passkey(
        &self,
        subject: &str,
        credential_id: &[u8],
        name: &str,
    ) -> Result<bool, ProviderError> {
        let rename = query(RENAME_PASSKEY).bind(subject).bind(credential_id).bind(name);
        Ok(self.db.execute(rename, COMMAND_RETRY_LIMIT).await? > 0)
    }

    /// Stores the credential after a use. False if it was used or removed since `used` was read: then the use is void.
    pub async fn record_passkey_use(
        &self,
        used: &StoredPasskey,
        credential: &str,
        at: UnixMillis,
    ) -> Result<bool, ProviderError> {
        let record = query(USE_PASSKEY)
            .bind(used.credential_id.as_slice())
            .bind(used.credential.as_str())
            .bind(credential)
            .bind(at.0);
        Ok(self.db.execute(record, COMMAND_RETRY_LIMIT).await? > 0)
    }

    pub async fn remove_passkey(
        &self,
        subject: &str,
        credential_id: &[u8],
        must_keep_one: bool,
        is_confirmed: IsConfirmed<'_>,
    ) -> Result<RemoveFactorOutcome, ProviderError> {
        let args = (subject, credential_id, must_keep_one, is_confirmed);
        let removed = self.db.run(&args, |conn, (subject, id, must_keep_one, is_confirmed)| {
            Box::pin(
                async move { Ok(remove(conn, subject, Some(*id), *must_keep_one, *is_confirmed).await?) },
            )
        });
        removed.await
    }

    /// An account has at most one authenticator app.
    pub async fn add_totp(&self, new: &NewTotpSecret) -> Result<AddFactorOutcome, ProviderError> {
        let args = (&self.keyring, new);
        let added = self.db.run(&args, |conn, (keyring, new)| {
            Box::pin(async move {
                lock_account(conn, &new.subject).await?;
                let sealed = keyring.seal(conn, TOTP_SECRET, new.subject.as_bytes(), &new.secret).await?;
                let insert =
                    query(ADD_TOTP).bind(new.subject.as_str()).bind(sealed).bind(new.step).bind(new.at.0);
                Ok(add(conn, &new.subject, &new.recovery_codes, insert).await?)
            })
        });
        added.await
    }

    pub async fn totp_secret(&self, subject: &str) -> Result<Option<TotpSecret>, ProviderError> {
        let stored: Option<TotpSecret> = self.db.fetch_optional(query(TOTP).bind(subject)).await?;
        let open = |stored: TotpSecret| -> Result<TotpSecret, ProviderError> {
            let secret = self.keyring.open(TOTP_SECRET, subject.as_bytes(), &stored.secret)?;
            Ok(TotpSecret { secret, ..stored })
        };
        stored.map(open).transpose()
    }

    /// Accepts the code of a time step. Each step is accepted at most once, and none that is older than the last one.
    pub async fn accept_totp_step(&self, subject: &str, step: i64) -> Result<bool, ProviderError> {
        let accept = query(ACCEPT_STEP).bind(subject).bind(step);
        Ok(self.db.execute(accept, COMMAND_RETRY_LIMIT).await? > 0)
    }

    pub async fn remove_totp(
        &self,
        subject: &str,
        must_keep_one: bool,
        is_confirmed: IsConfirmed<'_>,
    ) -> Result<RemoveFactorOutcome, ProviderError> {
        let args = (subject, must_keep_one, is_confirmed);
        let removed = self.db.run(&args, |conn, (subject, must_keep_one, is_confirmed)| {
            Box::pin(async move { Ok(remove(conn, subject, None, *must_keep_one, *is_confirmed).await?) })
        });
        removed.await
    }

    /// Removes the codes that are left and stores these. `NotFound` if the account has no factor.
    pub async fn replace_recovery_codes(
        &self,
        subject: &str,
        codes: &[TokenHash],
        is_confirmed: IsConfirmed<'_>,
    ) -> Result<RemoveFactorOutcome, ProviderError> {
        let args = (subject, codes, is_confirmed);
        let replaced = self.db.run(&args, |conn, (subject, codes, is_confirmed)| {
            Box::pin(async move {
                lock_account(conn, subject).await?;
                let factors = read_factors(conn, subject).await?;
                if factors.is_empty() {
                    return Ok(RemoveFactorOutcome::NotFound);
                }
                if !is_confirmed(factors.recovery_codes) {
                    return Ok(RemoveFactorOutcome::Unconfirmed(factors));
                }
                set_recovery_codes(conn, subject, codes).await?;
                Ok(RemoveFactorOutcome::Removed)
            })
        });
        replaced.await
    }

    /// Uses up a recovery code. Returns how many are left, or `None` if the account has no such code.
    pub async fn consume_recovery_code(
        &self,
        subject: &str,
        code: TokenHash,
    ) -> Result<Option<u64>, ProviderError> {
        let args = (subject, code);
        let consumed = self.db.run(&args, |conn, (subject, code)| {
            Box::pin(async move {
                let delete = query(USE_CODE).bind(code.0.as_slice()).bind(*subject);
                if delete.execute(conn).await? == 0 {
                    return Ok(None);
                }
                Ok(Some(count(conn, COUNT_CODES, subject).await?))
            })
        });
        consumed.await
    }
}
