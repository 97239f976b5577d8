//! Billing accounts and keys for the people who manage them. Each page is read right after its decision, from one
//! snapshot, which checks the principal again. Totals come from the sums by day, never from the ledger's rows. Changes
//! are in `changes`.

use crate::accounts::{changes, history, lookup};
use crate::audit::principal::ensure_principal_unchanged;
use crate::audit::step::AuditedSteps;
use crate::db::Db;
use crate::db::{Conn, FromRow, Row, Statement, TxError, query, values};
use crate::{
    ACCOUNTS_PER_PAGE, AccountChange, AccountChangeOutcome, AccountError, AccountOption, AccountOverview,
    AccountPage, AccountQuery, AccountRecord, KeyWithLastUse, MAX_ACCOUNT_OPTIONS, MAX_KEYS_LISTED,
    UsageTotals,
};
use chancery_domain::{Account, AccountId, AccountName, Key, Month, UnixMillis};
use chancery_policy::{ManageAccounts, Permit, ReadAccounts};
use std::collections::HashMap;

/// Leaves the month's sums at zero.
impl FromRow for AccountOverview {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let (active_keys, month) = (row.count("active_keys")?, UsageTotals::default());
        Ok(Self { account: Account::from_row(row)?, active_keys, month })
    }
}

impl FromRow for KeyWithLastUse {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let (last_day, last_at): (Option<i64>, Option<i64>) = (row.get("last_day")?, row.get("last_at_ms")?);
        Ok(Self {
            key: Key::from_row(row)?,
            last_used: last_day.map(values::day).transpose()?,
            last_used_at: last_at.map(UnixMillis),
        })
    }
}

impl FromRow for AccountOption {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self { id: AccountId(row.get("id")?), name: AccountName::from_stored(row.get("name")?) })
    }
}

impl FromRow for (AccountId, UsageTotals) {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok((AccountId(row.get("account_id")?), UsageTotals::from_row(row)?))
    }
}

/// Closed accounts last: true sorts after false in both databases.
const PAGE: &str = "SELECT a.*, (SELECT COUNT(*) FROM api_keys k \
        WHERE k.account_id = a.id AND k.revoked_at_ms IS NULL) AS active_keys \
    FROM accounts a ORDER BY (a.closed_at_ms IS NOT NULL), a.name LIMIT $1 OFFSET $2";
const TOTAL: &str = "SELECT COUNT(*) FROM accounts";
const OPEN: &str = "SELECT id, name FROM accounts WHERE closed_at_ms IS NULL ORDER BY name LIMIT $1";

/// The last use is one index lookup, however much the key was used.
const KEYS: &str = "SELECT k.*, (SELECT MAX(u.day) FROM daily_usage u WHERE u.key_id = k.id) AS last_day, \
    (SELECT e.last_at_ms FROM key_uses e WHERE e.key_id = k.id) AS last_at_ms FROM api_keys k \
    WHERE k.account_id = $2 ORDER BY (k.revoked_at_ms IS NOT NULL), k.created_at_ms DESC, k.id DESC LIMIT $1";
const KEYS_TOTAL: &str = "SELECT COUNT(*) FROM api_keys WHERE account_id = $1";
const UNASSIGNED_KEYS: &str = "SELECT k.*, (SELECT MAX(u.day) FROM daily_usage u WHERE u.key_id = k.id) AS last_day, \
    (SELECT e.last_at_ms FROM key_uses e WHERE e.key_id = k.id) AS last_at_ms FROM api_keys k \
    WHERE k.account_id IS NULL ORDER BY (k.revoked_at_ms IS NOT NULL), k.created_at_ms DESC, k.id DESC LIMIT $1";
const UNASSIGNED_KEYS_TOTAL: &str = "SELECT COUNT(*) FROM api_keys WHERE account_id IS NULL";
const UNASSIGNED_ACTIVE_KEYS: &str = "SELECT k.*, (SELECT MAX(u.day) FROM daily_usage u WHERE u.key_id = k.id) AS last_day, \
    (SELECT e.last_at_ms FROM key_uses e WHERE e.key_id = k.id) AS last_at_ms FROM api_keys k \
    WHERE k.account_id IS NULL AND k.revoked_at_ms IS NULL \
    ORDER BY (k.revoked_at_ms IS NOT NULL), k.created_at_ms DESC, k.id DESC LIMIT $1";

async fn page(conn: &mut Conn<'_>, page: AccountQuery) -> Result<AccountPage, TxError<AccountError>> {
    let offset = i64::from(page.page.saturating_sub(1)) * i64::from(ACCOUNTS_PER_PAGE);
    let read = query(PAGE).bind(i64::from(ACCOUNTS_PER_PAGE)).bind(offset);
    let mut accounts: Vec<AccountOverview> = read.fetch_all(conn).await?;
    let ids: Vec<AccountId> = accounts.iter().map(|overview| overview.account.id).collect();
    let sums = sums(conn, &ids, page.month).await?;
    for overview in &mut accounts {
        overview.month = sums.get(&overview.account.id).copied().unwrap_or_default();
    }
    Ok(AccountPage {
        accounts,
        total: query(TOTAL).fetch_one(conn).await?,
        unassigned_keys: query(UNASSIGNED_KEYS).bind(i64::from(MAX_KEYS_LISTED)).fetch_all(conn).await?,
        unassigned_keys_total: query(UNASSIGNED_KEYS_TOTAL).fetch_one(conn).await?,
        events: history::events(conn, None).await?,
        open_accounts: open_accounts(conn).await?,
    })
}

async fn record(
    conn: &mut Conn<'_>,
    id: AccountId,
    month: Month,
) -> Result<Option<AccountRecord>, TxError<AccountError>> {
    let account: Option<Account> = query(lookup::BY_ID).bind(id.0).fetch_optional(conn).await?;
    let Some(account) = account else { return Ok(None) };
    Ok(Some(AccountRecord {
        account,
        billing: query(changes::BILLING).bind(id.0).fetch_one(conn).await?,
        keys: query(KEYS).bind(i64::from(MAX_KEYS_LISTED)).bind(id.0).fetch_all(conn).await?,
        keys_total: query(KEYS_TOTAL).bind(id.0).fetch_one(conn).await?,
        month: sums(conn, &[id], month).await?.remove(&id).unwrap_or_default(),
        events: history::events(conn, Some(id)).await?,
        unassigned_keys: query(UNASSIGNED_ACTIVE_KEYS)
            .bind(i64::from(MAX_KEYS_LISTED))
            .fetch_all(conn)
            .await?,
        open_accounts: open_accounts(conn).await?,
    }))
}

async fn sums(
    conn: &mut Conn<'_>,
    accounts: &[AccountId],
    month: Month,
) -> Result<HashMap<AccountId, UsageTotals>, sqlx::Error> {
    if accounts.is_empty() {
        return Ok(HashMap::new());
    }
    let mut sum = Statement::new(
        "SELECT account_id, CAST(SUM(requests) AS BIGINT) AS requests, \
         CAST(SUM(input_tokens) AS BIGINT) AS input_tokens, \
         CAST(SUM(cached_input_tokens) AS BIGINT) AS cached_input_tokens, CAST(SUM(output_tokens) AS BIGINT) AS output_tokens, \
         CAST(SUM(cost_nanos) AS BIGINT) AS cost_nanos FROM daily_usage WHERE day >= ",
    );
    sum.push_bind(i64::from(month.first_day().0))
        .push(" AND day <= ")
        .push_bind(i64::from(month.last_day().0));
    sum.push(" AND account_id IN ").push_list(accounts.iter().map(|account| account.0));
    sum.push(" GROUP BY account_id");
    let sums = sum.build().persistent(accounts.len() == 1).fetch_all(conn).await?;
    Ok(sums.into_iter().collect())
}

async fn open_accounts(conn: &mut Conn<'_>) -> Result<Vec<AccountOption>, sqlx::Error> {
    query(OPEN).bind(i64::from(MAX_ACCOUNT_OPTIONS)).fetch_all(conn).await
}

/// Billing accounts and their keys, for the people who manage them.
#[derive(Clone)]
pub struct Accounts {
    pub(crate) db: Db,
    pub(crate) audited: AuditedSteps,
}

impl Accounts {
    pub async fn read_accounts(
        &self,
        permit: Permit<ReadAccounts>,
        query: AccountQuery,
    ) -> Result<AccountPage, AccountError> {
        self.audited.record(&[permit.to_audit_row()]).await?;
        let args = (permit.by(), query);
        let read = self.db.snapshot(&args, |conn, (by, query)| {
            Box::pin(async move {
                ensure_principal_unchanged::<AccountError>(conn, *by).await?;
                page(conn, *query).await
            })
        });
        read.await
    }

    pub async fn read_account(
        &self,
        permit: Permit<ReadAccounts>,
        account: AccountId,
        month: Month,
    ) -> Result<Option<AccountRecord>, AccountError> {
        self.audited.record(&[permit.to_audit_row()]).await?;
        let args = (permit.by(), account, month);
        let read = self.db.snapshot(&args, |conn, (by, account, month)| {
            Box::pin(async move {
                ensure_principal_unchanged::<AccountError>(conn, *by).await?;
                record(conn, *account, *month).await
            })
        });
        read.await
    }

    /// Writes the decision, the change and its history row in one transaction. Fails with `AccountNameTaken`,
    /// `KeyPrefixTaken`, `NoSuchAccountId`, `NoSuchKey`, `AccountClosed` for a key that is to bill a closed account,
    /// `KeyRevoked` for a revoked key that is to bill another account, or `KeyAlreadyRotated` and `OverlapRunning` for a
    /// rotation. Earlier usage of an attached key stays where it
    /// was billed. A closed account retains its keys and its ledger; its keys stop generating. Closing or revoking
    /// again changes nothing: the first time stands.
    pub async fn change_account(
        &self,
        permit: Permit<ManageAccounts>,
        change: AccountChange,
    ) -> Result<AccountChangeOutcome, AccountError> {
        let (decision, args) = ([permit.to_audit_row()], (permit.access_request(), &change));
        let changed = self.audited.run(&decision, &args, |conn, (access_request, change)| {
            Box::pin(changes::apply(conn, access_request, change))
        });
        changed.await
    }
}
