//! Queries for the identity provider's accounts.

use super::proofs;
use crate::DbError;
use crate::db::error_codes::{is_unique_violation, map_unless_unique_violation};
use crate::db::{COMMAND_RETRY_LIMIT, Db, FromRow, Query, Row, TxError, corrupt, query};
use crate::{NewProviderAccount, PasswordHash, ProviderAccount, ProviderError};
use chancery_domain::{EmailAddress, TokenHash, UnixMillis};

impl FromRow for ProviderAccount {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let email: String = row.get("email")?;
        let what = "the address of an account of the identity provider";
        Ok(Self {
            subject: row.get("subject")?,
            email: email.parse().map_err(|error| corrupt(what, error))?,
            password_hash: PasswordHash(row.get("password_hash")?),
            password_version: row.get("password_version")?,
            created_at: UnixMillis(row.get("created_at_ms")?),
        })
    }
}

const CREATE: &str = "INSERT INTO provider_accounts (subject, email, password_hash, created_at_ms) VALUES ($1, $2, $3, $4) \
    RETURNING *";
const BY_EMAIL: &str = "SELECT * FROM provider_accounts WHERE email = $1";
const BY_SUBJECT: &str = "SELECT * FROM provider_accounts WHERE subject = $1";
/// Sessions carry the account's password version, so this ends all of them.
const SET_PASSWORD: &str = "UPDATE provider_accounts SET password_hash = $2, password_version = password_version + 1 \
    WHERE email = $1 RETURNING *";

fn create(new: &NewProviderAccount) -> Query<'_> {
    query(CREATE)
        .bind(new.subject.as_str())
        .bind(new.email.as_str())
        .bind(new.password_hash.0.as_str())
        .bind(new.at.0)
}

fn set_password<'q>(email: &'q EmailAddress, password_hash: &'q PasswordHash) -> Query<'q> {
    query(SET_PASSWORD).bind(email.as_str()).bind(password_hash.0.as_str())
}

/// Accounts at the built-in identity provider.
#[derive(Clone)]
pub struct ProviderAccounts {
    pub(crate) db: Db,
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
        let args = (token, code, new);
        let created = self.db.run(&args, |conn, (token, code, new)| {
            Box::pin(async move {
                if !proofs::consume(conn, token, code).await? {
                    return Ok(None);
                }
                let created =
                    create(new).fetch_one(conn).await.map_err(|error| match is_unique_violation(&error) {
                        true => TxError::Rejected(ProviderError::EmailTaken(new.email.clone())),
                        false => error.into(),
                    })?;
                proofs::delete_of_mailbox(conn, &new.email).await?;
                Ok(Some(created))
            })
        });
        created.await
    }

    /// Sets the password after a correct code, ends all sessions of the account, and deletes this proof and all others
    /// of the mailbox, in one transaction. `None` if the proof is gone or there is no such account.
    pub async fn set_proven_password(
        &self,
        token: TokenHash,
        code: TokenHash,
        email: &EmailAddress,
        password_hash: &PasswordHash,
    ) -> Result<Option<ProviderAccount>, ProviderError> {
        let args = (token, code, email, password_hash);
        let changed = self.db.run(&args, |conn, (token, code, email, password_hash)| {
            Box::pin(async move {
                if !proofs::consume(conn, token, code).await? {
                    return Ok(None);
                }
                let changed = set_password(email, password_hash).fetch_optional(conn).await?;
                proofs::delete_of_mailbox(conn, email).await?;
                Ok(changed)
            })
        });
        changed.await
    }

    /// Ends all sessions of the account in the same statement. `None` if there is no such account.
    #[cfg(any(test, feature = "testing"))]
    pub async fn set_password(
        &self,
        email: &EmailAddress,
        password_hash: &PasswordHash,
    ) -> Result<Option<ProviderAccount>, ProviderError> {
        let changed =
            self.db.write_returning(set_password(email, password_hash), COMMAND_RETRY_LIMIT).await?;
        Ok(changed.into_iter().next())
    }
}
