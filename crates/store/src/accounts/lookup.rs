//! Reads, lists and locks billing accounts. Changes are in `changes` and `limits`.

use crate::DbError;
use crate::db::{Db, Dialect, FromRow, QueryError, Row, Tx, corrupt, from_row, query};
use crate::{AccountError, BillingContact};
use chancery_domain::{Account, AccountId, AccountName, AccountState, RateLimits, UnixMillis};

impl FromRow for Account {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        read_account(row, row.get("id")?, row.get("name")?, ["created_at_ms", "closed_at_ms"])
    }
}

/// Reads an account from a row that also has a key, so the timestamp columns have other names.
pub(crate) fn read_account(
    row: &Row<'_>,
    id: AccountId,
    name: AccountName,
    [created_at, closed_at]: [&str; 2],
) -> Result<Account, QueryError> {
    let limit = |column: &str| {
        let stored: i64 = row.get(column)?;
        u32::try_from(stored).map_err(|_| corrupt("an account's limit", format!("{stored} is out of range")))
    };
    let (requests_per_min, tokens_per_min) = (limit("requests_per_min")?, limit("tokens_per_min")?);
    let closed_at: Option<UnixMillis> = row.get(closed_at)?;
    Ok(Account {
        id,
        name,
        limits: RateLimits { requests_per_min, tokens_per_min },
        spend_per_month: row.get("spend_per_month_nanos")?,
        created_at: row.get(created_at)?,
        state: closed_at.map_or(AccountState::Open, |at| AccountState::Closed { at }),
    })
}

from_row!(BillingContact { address: "billing_address", email: "billing_email" });

impl FromRow for (AccountId, BillingContact) {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        Ok((row.get("id")?, BillingContact::from_row(row)?))
    }
}

const LIST: &str = "SELECT * FROM accounts ORDER BY name";
const BY_NAME: &str = "SELECT * FROM accounts WHERE name = $1";
pub(crate) const BY_ID: &str = "SELECT * FROM accounts WHERE id = $1";
const BILLING: &str = "SELECT id, billing_address, billing_email FROM accounts ORDER BY name";

/// Locks the account until the transaction ends. Billing does not wait for this lock.
pub(crate) fn lock(tx: &mut Tx<'_>, id: AccountId) -> Result<Account, AccountError> {
    let lock = query(match tx.dialect() {
        Dialect::Sqlite => BY_ID,
        Dialect::Postgres => "SELECT * FROM accounts WHERE id = $1 FOR NO KEY UPDATE",
    });
    lock.bind(id.0).fetch_optional(tx)?.ok_or(AccountError::NoSuchAccountId(id))
}

/// The account if it exists, locked against changes.
pub(crate) fn lock_for_read(tx: &mut Tx<'_>, id: AccountId) -> Result<Option<Account>, QueryError> {
    let lock = query(match tx.dialect() {
        Dialect::Sqlite => BY_ID,
        Dialect::Postgres => "SELECT * FROM accounts WHERE id = $1 FOR SHARE",
    });
    lock.bind(id.0).fetch_optional(tx)
}

/// Accounts and keys by name and prefix, for callers without a permit: the command line and `verify`.
#[derive(Clone)]
pub struct AccountLookup {
    pub(crate) db: Db,
}

impl AccountLookup {
    /// All accounts including closed ones, by name.
    pub async fn list_accounts(&self) -> Result<Vec<Account>, DbError> {
        Ok(self.db.fetch_all(query(LIST)).await?)
    }

    pub async fn account_by_name(&self, name: &AccountName) -> Result<Account, AccountError> {
        let found = self.db.fetch_optional(query(BY_NAME).bind(name.as_str())).await?;
        found.ok_or_else(|| AccountError::NoSuchAccount(name.clone()))
    }

    /// The billing contacts of all accounts, in the order of `list_accounts`.
    pub async fn billing_contacts(&self) -> Result<Vec<(AccountId, BillingContact)>, DbError> {
        Ok(self.db.fetch_all(query(BILLING)).await?)
    }
}
