//! Queries for the identity provider's accounts.

use super::sessions::{NO_SID, end_sessions_of_subject};
use super::{known_devices, proofs};
use crate::DbError;
use crate::db::error_codes::map_unless_unique_violation;
use crate::db::{COMMAND_RETRY_LIMIT, Db, Query, QueryError, Tx, from_any_column, from_row, query};
use crate::{NewProviderAccount, PasswordHash, ProviderAccount, ProviderError};
use chancery_domain::{EmailAddress, TokenHash};
use std::sync::Arc;
use tokio::sync::Notify;

from_any_column!(String, Self, PasswordHash);

from_row!(ProviderAccount {
    subject,
    email: parse("email", "the address of an account of the identity provider"),
    password_hash,
    password_version,
    created_at: "created_at_ms"
});

const CREATE: &str = "INSERT INTO provider_accounts (subject, email, password_hash, created_at_ms) VALUES ($1, $2, $3, $4) \
    RETURNING *";
const BY_EMAIL: &str = "SELECT * FROM provider_accounts WHERE email = $1";
const BY_SUBJECT: &str = "SELECT * FROM provider_accounts WHERE subject = $1";
/// Sessions and grants carry the account's password version, so this ends all of them.
const SET_PASSWORD: &str = "UPDATE provider_accounts SET password_hash = $2, password_version = password_version + 1 \
    WHERE email = $1 RETURNING *";
/// Only if the password has not changed meanwhile.
const CHANGE_PASSWORD: &str = "UPDATE provider_accounts SET password_hash = $3, password_version = password_version + 1 \
    WHERE subject = $1 AND password_version = $2 RETURNING *";
/// With a new token: someone who has the old one does not stay signed in.
const KEEP_SESSION: &str =
    "UPDATE provider_sessions SET password_version = $2, token_hash = $4 WHERE sid = $1 AND subject = $3";

fn create(new: &NewProviderAccount) -> Query {
    query(CREATE)
        .bind(new.subject.as_str())
        .bind(new.email.as_str())
        .bind(new.password_hash.0.as_str())
        .bind(new.at.0)
}

/// Ends the account's sessions except `spared_sid`, and deletes its known devices. Wake the worker of back-channel logout
/// after the commit.
fn end_what_the_password_proved(
    tx: &mut Tx<'_>,
    account: &ProviderAccount,
    spared_sid: &str,
) -> Result<(), QueryError> {
    end_sessions_of_subject(tx, &account.subject, spared_sid)?;
    known_devices::delete_of_subject(&account.subject).execute(tx)?;
    Ok(())
}

/// Replaces the password and ends what it proved. `None` if there is no such account.
fn replace_password(
    tx: &mut Tx<'_>,
    email: &EmailAddress,
    password_hash: &PasswordHash,
) -> Result<Option<ProviderAccount>, QueryError> {
    let set = query(SET_PASSWORD).bind(email.as_str()).bind(password_hash.0.as_str());
    let changed: Option<ProviderAccount> = set.fetch_optional(tx)?;
    if let Some(account) = &changed {
        end_what_the_password_proved(tx, account, NO_SID)?;
    }
    Ok(changed)
}

/// Accounts at the built-in identity provider.
#[derive(Clone)]
pub struct ProviderAccounts {
    pub(crate) db: Db,
    /// Wakes the worker of back-channel logout.
    pub(crate) logout_wake: Arc<Notify>,
}

impl ProviderAccounts {
    pub async fn create_provider_account(
        &self,
        new: NewProviderAccount,
    ) -> Result<ProviderAccount, ProviderError> {
        let created: Result<Vec<ProviderAccount>, _> =
            self.db.write_returning(create(&new), COMMAND_RETRY_LIMIT).await;
        let taken = || ProviderError::EmailTaken(new.email.clone());
        let created = created.map_err(|error| map_unless_unique_violation(&error, taken))?;
        let created = created.into_iter().next();
        Ok(created.ok_or_else(|| {
            DbError::Unavailable("the database returned no row for the new account".to_owned())
        })?)
    }

    pub async fn provider_account_by_email(
        &self,
        email: &EmailAddress,
    ) -> Result<Option<ProviderAccount>, ProviderError> {
        Ok(self.db.fetch_optional(query(BY_EMAIL).bind(email.as_str())).await?)
    }

    pub async fn provider_account(&self, subject: &str) -> Result<Option<ProviderAccount>, ProviderError> {
        Ok(self.db.fetch_optional(query(BY_SUBJECT).bind(subject)).await?)
    }

    /// Creates the account after a correct code, and deletes this proof and all others of the mailbox in the same
    /// transaction. `None` if the proof is gone: only one of several concurrent calls gets the account. Fails with
    /// `EmailTaken` if the address has an account.
    pub async fn create_proven_account(
        &self,
        token: TokenHash,
        code: TokenHash,
        new: NewProviderAccount,
    ) -> Result<Option<ProviderAccount>, ProviderError> {
        self.db
            .write(move |tx| {
                if !proofs::consume(tx, &token, &code)? {
                    return Ok(None);
                }
                let taken = || ProviderError::EmailTaken(new.email.clone());
                let created = create(&new).fetch_one(tx);
                let created = created.map_err(|error| map_unless_unique_violation(&error, taken))?;
                proofs::delete_of_mailbox(tx, &new.email)?;
                Ok(Some(created))
            })
            .await
    }

    /// Sets the password after a correct code, ends all sessions of the account, deletes its known devices, and deletes
    /// this proof and all others of the mailbox, in one transaction. `None` if the proof is gone or there is no such
    /// account.
    pub async fn set_proven_password(
        &self,
        token: TokenHash,
        code: TokenHash,
        email: &EmailAddress,
        password_hash: &PasswordHash,
    ) -> Result<Option<ProviderAccount>, ProviderError> {
        let (email, password_hash) = (email.clone(), password_hash.clone());
        let step = move |tx: &mut Tx<'_>| {
            if !proofs::consume(tx, &token, &code)? {
                return Ok(None);
            }
            let changed = replace_password(tx, &email, &password_hash)?;
            proofs::delete_of_mailbox(tx, &email)?;
            Ok(changed)
        };
        let changed = self.db.write(step).await;
        self.logout_wake.notify_one();
        changed
    }

    /// Sets the password of a person who is signed in. Ends all sessions of the account but the one that ID tokens name
    /// `spared_sid`, which goes on with `new_token`, and deletes its known devices, in one transaction. `None` if the
    /// password was changed since the account was read.
    pub async fn change_password(
        &self,
        account: &ProviderAccount,
        password_hash: &PasswordHash,
        spared_sid: &str,
        new_token: TokenHash,
    ) -> Result<Option<ProviderAccount>, ProviderError> {
        let (account, password_hash) = (account.clone(), password_hash.clone());
        let spared_sid = spared_sid.to_owned();
        let step = move |tx: &mut Tx<'_>| {
            let change = query(CHANGE_PASSWORD)
                .bind(account.subject.as_str())
                .bind(account.password_version)
                .bind(password_hash.0.as_str());
            let changed: Option<ProviderAccount> = change.fetch_optional(tx)?;
            if let Some(changed) = &changed {
                end_what_the_password_proved(tx, changed, &spared_sid)?;
                let keep = query(KEEP_SESSION)
                    .bind(spared_sid.as_str())
                    .bind(changed.password_version)
                    .bind(changed.subject.as_str())
                    .bind(new_token.0.as_slice());
                keep.execute(tx)?;
            }
            Ok(changed)
        };
        let changed = self.db.write(step).await;
        self.logout_wake.notify_one();
        changed
    }

    /// Ends all sessions of the account in the same transaction. `None` if there is no such account.
    #[cfg(any(test, feature = "testing"))]
    pub async fn set_password(
        &self,
        email: &EmailAddress,
        password_hash: &PasswordHash,
    ) -> Result<Option<ProviderAccount>, ProviderError> {
        let (email, password_hash) = (email.clone(), password_hash.clone());
        let changed = self.db.write(move |tx| replace_password(tx, &email, &password_hash)).await;
        self.logout_wake.notify_one();
        Ok(changed?)
    }
}
