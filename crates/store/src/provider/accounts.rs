//! The queries about the identity provider's accounts.

use crate::db::both::{for_both_stores, stored_row};
use crate::db::error_codes::{answer, explain, explain_unless_taken};
use crate::db::retry::{COMMAND_PATIENCE, patiently};
use crate::db::transaction::BeginWriting;
use crate::provider::proofs as mailbox_proofs;
use crate::{NewProviderAccount, PasswordHash, ProviderAccount, ProviderAccounts, StoreError};
use chancery_domain::{EmailAddress, TokenHash, UnixMillis};
use sqlx::Connection as _;

stored_row! {
    struct StoredProviderAccount {
        subject: String,
        email: String,
        password_hash: String,
        password_version: i64,
        created_at_ms: i64,
    }
}

impl StoredProviderAccount {
    pub(crate) fn into_account(self) -> Result<ProviderAccount, StoreError> {
        let email = self.email.parse().map_err(|error| StoreError::Corrupt {
            what: "the address of an account of the identity provider",
            why: format!("{error}"),
        })?;
        Ok(ProviderAccount {
            subject: self.subject,
            email,
            password_hash: PasswordHash(self.password_hash),
            password_version: self.password_version,
            created_at: UnixMillis(self.created_at_ms),
        })
    }
}

const CREATE: &str = "INSERT INTO provider_accounts (subject, email, password_hash, created_at_ms) VALUES ($1, $2, $3, $4) \
    RETURNING *";
const WITH_EMAIL: &str = "SELECT * FROM provider_accounts WHERE email = $1";
const WITH_SUBJECT: &str = "SELECT * FROM provider_accounts WHERE subject = $1";
/// A session is alive only with its account's version, so this ends them all.
const SET_PASSWORD: &str = "UPDATE provider_accounts SET password_hash = $2, password_version = password_version + 1 \
    WHERE email = $1 RETURNING *";

for_both_stores! {
    impl ProviderAccounts {
        async fn create_provider_account(&self, new: NewProviderAccount) -> Result<ProviderAccount, StoreError> {
            let created = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query_as(CREATE)
                    .bind(new.subject.as_str())
                    .bind(new.email.as_str())
                    .bind(new.password_hash.0.as_str())
                    .bind(new.at.0)
                    .fetch_all(&mut *connection)
            });
            let taken = || StoreError::EmailTaken(new.email.clone());
            let rows: Vec<StoredProviderAccount> = created.map_err(|error| explain_unless_taken(&error, taken))?;
            match rows.into_iter().next() {
                Some(row) => row.into_account(),
                None => Err(StoreError::Unavailable("the account was not given back".to_owned())),
            }
        }

        async fn provider_account_with_email(&self, email: &EmailAddress) -> Result<Option<ProviderAccount>, StoreError> {
            let found = sqlx::query_as(WITH_EMAIL).bind(email.as_str()).fetch_optional(&self.reader);
            answer(found).await?.map(StoredProviderAccount::into_account).transpose()
        }

        async fn provider_account(&self, subject: &str) -> Result<Option<ProviderAccount>, StoreError> {
            let found = sqlx::query_as(WITH_SUBJECT).bind(subject).fetch_optional(&self.reader);
            answer(found).await?.map(StoredProviderAccount::into_account).transpose()
        }

        async fn create_proven_account(
            &self,
            token: TokenHash,
            code: TokenHash,
            new: NewProviderAccount,
        ) -> Result<Option<ProviderAccount>, StoreError> {
            let created = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| async {
                let mut transaction = connection.begin_with(Self::BEGIN).await?;
                let taken = sqlx::query(mailbox_proofs::TAKE).bind(token.0.as_slice()).bind(code.0.as_slice());
                if taken.execute(&mut *transaction).await?.rows_affected() == 0 {
                    return Ok(None);
                }
                let created = sqlx::query_as(CREATE)
                    .bind(new.subject.as_str())
                    .bind(new.email.as_str())
                    .bind(new.password_hash.0.as_str())
                    .bind(new.at.0);
                let created: StoredProviderAccount = created.fetch_one(&mut *transaction).await?;
                sqlx::query(mailbox_proofs::DESTROY).bind(new.email.as_str()).execute(&mut *transaction).await?;
                transaction.commit().await.map(|()| Some(created))
            });
            let taken = || StoreError::EmailTaken(new.email.clone());
            let created: Option<StoredProviderAccount> =
                created.map_err(|error| explain_unless_taken(&error, taken))?;
            created.map(StoredProviderAccount::into_account).transpose()
        }

        async fn set_proven_password(
            &self,
            token: TokenHash,
            code: TokenHash,
            email: &EmailAddress,
            password_hash: &PasswordHash,
        ) -> Result<Option<ProviderAccount>, StoreError> {
            let changed = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| async {
                let mut transaction = connection.begin_with(Self::BEGIN).await?;
                let taken = sqlx::query(mailbox_proofs::TAKE).bind(token.0.as_slice()).bind(code.0.as_slice());
                if taken.execute(&mut *transaction).await?.rows_affected() == 0 {
                    return Ok(None);
                }
                let changed = sqlx::query_as(SET_PASSWORD).bind(email.as_str()).bind(password_hash.0.as_str());
                let changed: Option<StoredProviderAccount> = changed.fetch_optional(&mut *transaction).await?;
                sqlx::query(mailbox_proofs::DESTROY).bind(email.as_str()).execute(&mut *transaction).await?;
                transaction.commit().await.map(|()| changed)
            });
            let changed: Option<StoredProviderAccount> = changed.map_err(|error| explain(&error))?;
            changed.map(StoredProviderAccount::into_account).transpose()
        }

        async fn set_password(
            &self,
            email: &EmailAddress,
            password_hash: &PasswordHash,
        ) -> Result<Option<ProviderAccount>, StoreError> {
            let changed = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                sqlx::query_as(SET_PASSWORD)
                    .bind(email.as_str())
                    .bind(password_hash.0.as_str())
                    .fetch_all(&mut *connection)
            });
            let rows: Vec<StoredProviderAccount> = changed.map_err(|error| explain(&error))?;
            rows.into_iter().next().map(StoredProviderAccount::into_account).transpose()
        }
    }
}
