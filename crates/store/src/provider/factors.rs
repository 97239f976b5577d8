//! Queries for second factors: passkeys, secrets of authenticator apps, and recovery codes.

use crate::db::{COMMAND_RETRY_LIMIT, Db, Query, QueryError, Tx, from_row, query};
use crate::secrets::column::TOTP_SECRET;
use crate::secrets::keyring::Keyring;
use crate::{
    AccountFactors, AddFactorOutcome, IsConfirmed, NewPasskey, NewTotpSecret, ProviderError,
    RemoveFactorOutcome, StoredPasskey, TotpSecret,
};
use chancery_domain::{TokenHash, UnixMillis};

/// More than anyone has devices. Each of them is sent to the browser with every challenge.
pub const MAX_PASSKEYS_PER_ACCOUNT: u64 = 20;

from_row!(StoredPasskey {
    credential_id,
    subject,
    name,
    credential,
    created_at: "created_at_ms",
    last_used_at: "last_used_at_ms"
});

// The secret is still encrypted.
from_row!(TotpSecret { secret, last_step, created_at: "created_at_ms" });

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

fn count(tx: &mut Tx<'_>, sql: &'static str, subject: &str) -> Result<u64, QueryError> {
    query(sql).bind(subject).fetch_one(tx)
}

fn count_factors(tx: &mut Tx<'_>, subject: &str) -> Result<u64, QueryError> {
    Ok(count(tx, COUNT_PASSKEYS, subject)? + count(tx, COUNT_TOTP, subject)?)
}

pub(super) fn lock_account(tx: &mut Tx<'_>, subject: &str) -> Result<(), QueryError> {
    query(LOCK_ACCOUNT).bind(subject).execute(tx)?;
    Ok(())
}

fn set_recovery_codes(tx: &mut Tx<'_>, subject: &str, codes: &[TokenHash]) -> Result<(), QueryError> {
    query(REMOVE_CODES).bind(subject).execute(tx)?;
    for code in codes {
        query(ADD_CODE).bind(code.0.as_slice()).bind(subject).execute(tx)?;
    }
    Ok(())
}

/// Adds a factor, and the recovery codes if it is the first one.
fn add(
    tx: &mut Tx<'_>,
    subject: &str,
    codes: &[TokenHash],
    insert: &Query,
) -> Result<AddFactorOutcome, QueryError> {
    let is_first = count_factors(tx, subject)? == 0;
    if insert.execute(tx)? == 0 {
        return Ok(AddFactorOutcome::AlreadyExists);
    }
    if is_first {
        set_recovery_codes(tx, subject, codes)?;
    }
    Ok(AddFactorOutcome::Added { is_first })
}

pub(super) fn read_factors(tx: &mut Tx<'_>, subject: &str) -> Result<AccountFactors, QueryError> {
    let totp: Option<TotpSecret> = query(TOTP).bind(subject).fetch_optional(tx)?;
    Ok(AccountFactors {
        passkeys: query(PASSKEYS).bind(subject).fetch_all(tx)?,
        totp_created_at: totp.map(|totp| totp.created_at),
        recovery_codes: count(tx, COUNT_CODES, subject)?,
    })
}

/// Removes a passkey, or the authenticator app. The recovery codes go with the last factor, and count with it.
fn remove(
    tx: &mut Tx<'_>,
    subject: &str,
    passkey: Option<&[u8]>,
    must_keep_one: bool,
    is_confirmed: &IsConfirmed,
) -> Result<RemoveFactorOutcome, QueryError> {
    lock_account(tx, subject)?;
    let factors = read_factors(tx, subject)?;
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
    delete.execute(tx)?;
    if factors.count() <= 1 {
        query(REMOVE_CODES).bind(subject).execute(tx)?;
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
        let subject = subject.to_owned();
        Ok(self.db.read(move |tx| read_factors(tx, &subject)).await?)
    }

    pub async fn add_passkey(&self, new: &NewPasskey) -> Result<AddFactorOutcome, ProviderError> {
        let new = new.clone();
        let step = move |tx: &mut Tx<'_>| {
            lock_account(tx, &new.subject)?;
            if count(tx, COUNT_PASSKEYS, &new.subject)? >= MAX_PASSKEYS_PER_ACCOUNT {
                return Ok(AddFactorOutcome::TooMany);
            }
            let insert = query(ADD_PASSKEY)
                .bind(new.credential_id.as_slice())
                .bind(new.subject.as_str())
                .bind(new.name.as_str())
                .bind(new.credential.as_str())
                .bind(new.at.0);
            add(tx, &new.subject, &new.recovery_codes, &insert)
        };
        Ok(self.db.write(step).await?)
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
        is_confirmed: IsConfirmed,
    ) -> Result<RemoveFactorOutcome, ProviderError> {
        let (subject, id) = (subject.to_owned(), credential_id.to_owned());
        let step = move |tx: &mut Tx<'_>| remove(tx, &subject, Some(&id), must_keep_one, &is_confirmed);
        Ok(self.db.write(step).await?)
    }

    /// An account has at most one authenticator app.
    pub async fn add_totp(&self, new: &NewTotpSecret) -> Result<AddFactorOutcome, ProviderError> {
        let (keyring, new) = (self.keyring.clone(), new.clone());
        let step = move |tx: &mut Tx<'_>| {
            lock_account(tx, &new.subject)?;
            let sealed = keyring.seal(tx, TOTP_SECRET, new.subject.as_bytes(), &new.secret)?;
            let insert =
                query(ADD_TOTP).bind(new.subject.as_str()).bind(sealed).bind(new.step).bind(new.at.0);
            add(tx, &new.subject, &new.recovery_codes, &insert)
        };
        Ok(self.db.write(step).await?)
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
        is_confirmed: IsConfirmed,
    ) -> Result<RemoveFactorOutcome, ProviderError> {
        let subject = subject.to_owned();
        let step = move |tx: &mut Tx<'_>| remove(tx, &subject, None, must_keep_one, &is_confirmed);
        Ok(self.db.write(step).await?)
    }

    /// Removes the codes that are left and stores these. `NotFound` if the account has no factor.
    pub async fn replace_recovery_codes(
        &self,
        subject: &str,
        codes: &[TokenHash],
        is_confirmed: IsConfirmed,
    ) -> Result<RemoveFactorOutcome, ProviderError> {
        let (subject, codes) = (subject.to_owned(), codes.to_owned());
        let step = move |tx: &mut Tx<'_>| {
            lock_account(tx, &subject)?;
            let factors = read_factors(tx, &subject)?;
            if factors.is_empty() {
                return Ok(RemoveFactorOutcome::NotFound);
            }
            if !is_confirmed(factors.recovery_codes) {
                return Ok(RemoveFactorOutcome::Unconfirmed(factors));
            }
            set_recovery_codes(tx, &subject, &codes)?;
            Ok(RemoveFactorOutcome::Removed)
        };
        self.db.write(step).await
    }

    /// Uses up a recovery code. Returns how many are left, or `None` if the account has no such code.
    pub async fn consume_recovery_code(
        &self,
        subject: &str,
        code: TokenHash,
    ) -> Result<Option<u64>, ProviderError> {
        let subject = subject.to_owned();
        self.db
            .write(move |tx| {
                let delete = query(USE_CODE).bind(code.0.as_slice()).bind(subject.as_str());
                if delete.execute(tx)? == 0 {
                    return Ok(None);
                }
                Ok(Some(count(tx, COUNT_CODES, &subject)?))
            })
            .await
    }
}
