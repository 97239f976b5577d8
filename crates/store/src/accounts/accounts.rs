//! The accounts' queries.

use crate::db::both::{for_both_connections, for_both_stores, stored_row};
use crate::db::error_codes::{answer, explain, explain_unless_taken};
use crate::db::retry::{COMMAND_PATIENCE, patiently};
use crate::{Accounts, BillingContact, CapChange, LimitsChange, NewAccount, StoreError};
use chancery_domain::{
    Account, AccountId, AccountName, AccountState, ContactEmail, Nanos, PostalAddress, RateLimits, UnixMillis,
};

stored_row! {
    struct StoredAccount {
        id: i64,
        name: String,
        requests_per_min: i64,
        tokens_per_min: i64,
        spend_per_month_nanos: Option<i64>,
        created_at_ms: i64,
        closed_at_ms: Option<i64>,
    }
}

impl StoredAccount {
    pub(crate) fn into_account(self) -> Result<Account, StoreError> {
        let corrupt = |what, why: String| StoreError::Corrupt { what, why };
        let limit = |stored: i64| {
            u32::try_from(stored)
                .map_err(|_| corrupt("an account's limit", format!("{stored} is out of range")))
        };
        Ok(Account {
            id: AccountId(self.id),
            name: AccountName::from_stored(self.name),
            limits: RateLimits {
                requests_per_min: limit(self.requests_per_min)?,
                tokens_per_min: limit(self.tokens_per_min)?,
            },
            spend_per_month: self.spend_per_month_nanos.map(Nanos),
            created_at: UnixMillis(self.created_at_ms),
            state: match self.closed_at_ms {
                None => AccountState::Open,
                Some(at_ms) => AccountState::Closed { at: UnixMillis(at_ms) },
            },
        })
    }
}

stored_row! {
    struct StoredBilling {
        id: i64,
        billing_address: String,
        billing_email: String,
    }
}

impl StoredBilling {
    pub(crate) fn into_contact(self) -> BillingContact {
        BillingContact {
            address: PostalAddress::from_stored(self.billing_address),
            email: ContactEmail::from_stored(self.billing_email),
        }
    }
}

const CREATE: &str = "INSERT INTO accounts (name, requests_per_min, tokens_per_min, created_at_ms) \
    VALUES ($1, $2, $3, $4) RETURNING *";
const LIST: &str = "SELECT * FROM accounts ORDER BY name";
const NAMED: &str = "SELECT * FROM accounts WHERE name = $1";
const SET_LIMITS: &str = "UPDATE accounts SET requests_per_min = COALESCE($2, requests_per_min), \
    tokens_per_min = COALESCE($3, tokens_per_min), \
    spend_per_month_nanos = CASE WHEN $4 THEN $5 ELSE spend_per_month_nanos END WHERE name = $1 RETURNING *";
const CLOSE: &str =
    "UPDATE accounts SET closed_at_ms = COALESCE(closed_at_ms, $2) WHERE name = $1 RETURNING *";

const BILLING: &str = "SELECT id, billing_address, billing_email FROM accounts ORDER BY name";

/// The statements that change accounts, for the commands and for the desk (`account_deeds`).
#[async_trait::async_trait]
pub(crate) trait AccountRows {
    async fn insert_account(&mut self, new: &NewAccount) -> Result<Vec<StoredAccount>, sqlx::Error>;

    async fn update_limits(
        &mut self,
        name: &AccountName,
        change: LimitsChange,
    ) -> Result<Vec<StoredAccount>, sqlx::Error>;

    async fn mark_closed(
        &mut self,
        name: &AccountName,
        at: UnixMillis,
    ) -> Result<Vec<StoredAccount>, sqlx::Error>;
}

for_both_connections! {
    impl AccountRows {
        async fn insert_account(&mut self, new: &NewAccount) -> Result<Vec<StoredAccount>, sqlx::Error> {
            let insert = sqlx::query_as(CREATE)
                .bind(new.name.as_str())
                .bind(i64::from(new.limits.requests_per_min))
                .bind(i64::from(new.limits.tokens_per_min))
                .bind(new.created_at.0);
            insert.fetch_all(&mut *self).await
        }

        async fn update_limits(
            &mut self,
            name: &AccountName,
            change: LimitsChange,
        ) -> Result<Vec<StoredAccount>, sqlx::Error> {
            let (changes_cap, cap) = match change.spend_per_month {
                CapChange::Keep => (false, None),
                CapChange::Remove => (true, None),
                CapChange::Set(cap) => (true, Some(cap.0)),
            };
            let update = sqlx::query_as(SET_LIMITS)
                .bind(name.as_str())
                .bind(change.requests_per_min.map(i64::from))
                .bind(change.tokens_per_min.map(i64::from))
                .bind(changes_cap)
                .bind(cap);
            update.fetch_all(&mut *self).await
        }

        async fn mark_closed(
            &mut self,
            name: &AccountName,
            at: UnixMillis,
        ) -> Result<Vec<StoredAccount>, sqlx::Error> {
            sqlx::query_as(CLOSE).bind(name.as_str()).bind(at.0).fetch_all(&mut *self).await
        }
    }
}

/// The one account that a statement is about. Statements that write are read to their end (`fetch_all`): a driver that
/// stops at the first row would return before the commit, and lose the commit's error.
pub(crate) fn the_one(rows: Vec<StoredAccount>, name: &AccountName) -> Result<Account, StoreError> {
    match rows.into_iter().next() {
        Some(row) => row.into_account(),
        None => Err(StoreError::NoSuchAccount(name.clone())),
    }
}

for_both_stores! {
    impl Accounts {
        async fn create_account(&self, new: NewAccount) -> Result<Account, StoreError> {
            let created =
                patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| connection.insert_account(&new));
            let taken = || StoreError::AccountNameTaken(new.name.clone());
            the_one(created.map_err(|error| explain_unless_taken(&error, taken))?, &new.name)
        }

        async fn list_accounts(&self) -> Result<Vec<Account>, StoreError> {
            let rows: Vec<StoredAccount> = answer(sqlx::query_as(LIST).fetch_all(&self.reader)).await?;
            rows.into_iter().map(StoredAccount::into_account).collect()
        }

        async fn account_named(&self, name: &AccountName) -> Result<Account, StoreError> {
            let rows = answer(sqlx::query_as(NAMED).bind(name.as_str()).fetch_all(&self.reader)).await?;
            the_one(rows, name)
        }

        async fn set_limits(&self, name: &AccountName, change: LimitsChange) -> Result<Account, StoreError> {
            let changed = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                connection.update_limits(name, change)
            });
            the_one(changed.map_err(|error| explain(&error))?, name)
        }

        async fn close_account(&self, name: &AccountName, at: UnixMillis) -> Result<Account, StoreError> {
            let closed = patiently!(COMMAND_PATIENCE, self.writer().await?, |connection| {
                connection.mark_closed(name, at)
            });
            the_one(closed.map_err(|error| explain(&error))?, name)
        }

        async fn billing_contacts(&self) -> Result<Vec<(AccountId, BillingContact)>, StoreError> {
            let rows: Vec<StoredBilling> = answer(sqlx::query_as(BILLING).fetch_all(&self.reader)).await?;
            Ok(rows.into_iter().map(|row| (AccountId(row.id), row.into_contact())).collect())
        }
    }
}
