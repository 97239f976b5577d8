//! Billing accounts and keys for the people who manage them. Each page is read right after its decision, from one
//! snapshot, which checks the principal again. A page begins at a name, so that it costs the same wherever it is. Totals
//! come from the sums by day, never from the ledger's rows. Changes are in `changes`.

use crate::accounts::{changes, history, lookup};
use crate::audit::principal::ensure_principal_unchanged;
use crate::audit::step::AuditedSteps;
use crate::db::{Db, FromRow, Query, QueryError, Row, Statement, Tx, from_row, query};
use crate::ledger::batch::to_db_count;
use crate::list_total::CountLimit;
use crate::{
    ACCOUNTS_PER_PAGE, AccountChange, AccountChangeOutcome, AccountCursor, AccountError, AccountOption,
    AccountOverview, AccountPage, AccountQuery, AccountRecord, KeyWithLastUse, ListTotal,
    MAX_ACCOUNT_OPTIONS, MAX_COUNTED_ROWS, MAX_KEYS_LISTED, UsageTotals,
};
use chancery_domain::{Account, AccountId, Key, Month};
use chancery_policy::{ManageAccounts, Permit, ReadAccounts};
use std::collections::HashMap;

/// Leaves the month's sums at zero.
impl FromRow for AccountOverview {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        let (active_keys, month) = (row.get("active_keys")?, UsageTotals::default());
        Ok(Self { account: Account::from_row(row)?, active_keys, month })
    }
}

from_row!(KeyWithLastUse { key: Key::from_row, last_used: "last_day", last_used_at: "last_at_ms" });

from_row!(AccountOption { id, name });

impl FromRow for (AccountId, UsageTotals) {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        Ok((row.get("account_id")?, UsageTotals::from_row(row)?))
    }
}

/// Closed accounts last: true sorts after false in both databases.
const NUMBERED_PAGE: &str = "SELECT a.*, (SELECT COUNT(*) FROM api_keys k \
        WHERE k.account_id = a.id AND k.revoked_at_ms IS NULL) AS active_keys \
    FROM accounts a ORDER BY (a.closed_at_ms IS NOT NULL), a.name LIMIT $1 OFFSET $2";
const COUNT_UP_TO: &str = "SELECT COUNT(*) FROM (SELECT a.id FROM accounts a LIMIT $1) AS counted";
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

fn page(tx: &mut Tx<'_>, page: &AccountQuery) -> Result<AccountPage, AccountError> {
    let PageRows { mut accounts, has_previous, has_next } = page_rows(tx, page.cursor.as_ref())?;
    let ids: Vec<AccountId> = accounts.iter().map(|overview| overview.account.id).collect();
    let sums = sums(tx, &ids, page.month)?;
    for overview in &mut accounts {
        overview.month = sums.get(&overview.account.id).copied().unwrap_or_default();
    }
    Ok(AccountPage {
        accounts,
        has_previous,
        has_next,
        total: total(tx, page.counts_all)?,
        unassigned_keys: query(UNASSIGNED_KEYS).bind(i64::from(MAX_KEYS_LISTED)).fetch_all(tx)?,
        unassigned_keys_total: query(UNASSIGNED_KEYS_TOTAL).fetch_one(tx)?,
        events: history::events(tx, None)?,
        open_accounts: if page.reads_options { open_accounts(tx)? } else { Vec::new() },
    })
}

/// The accounts of a page, and whether there are any on either side of it.
struct PageRows {
    accounts: Vec<AccountOverview>,
    has_previous: bool,
    has_next: bool,
}

/// Open accounts come first. They and the closed ones have an index each, by name.
fn page_rows(tx: &mut Tx<'_>, cursor: Option<&AccountCursor>) -> Result<PageRows, QueryError> {
    let max = ACCOUNTS_PER_PAGE as usize;
    let (order, mut bound) = match cursor {
        None => (NameOrder::Ascending, None),
        Some(AccountCursor::After(position)) => (NameOrder::Ascending, Some(position)),
        Some(AccountCursor::Before(position)) => (NameOrder::Descending, Some(position)),
        Some(AccountCursor::Page(number)) => return numbered_page(tx, *number),
    };
    let mut accounts: Vec<AccountOverview> = Vec::new();
    for is_closed in order.parts() {
        let name = match bound {
            // The position is in the other part.
            Some(position) if position.is_closed != is_closed => continue,
            position => position.map(|position| position.name.as_str()),
        };
        bound = None;
        // One more than a page, to see whether there are more.
        let missing = max + 1 - accounts.len();
        if missing > 0 {
            let read = select_accounts(is_closed, order, name, missing);
            accounts.extend(read.fetch_all::<AccountOverview>(tx)?);
        }
    }
    let has_more = accounts.len() > max;
    accounts.truncate(max);
    Ok(match order {
        NameOrder::Ascending => PageRows { accounts, has_previous: cursor.is_some(), has_next: has_more },
        NameOrder::Descending => {
            accounts.reverse();
            PageRows { accounts, has_previous: has_more, has_next: true }
        }
    })
}

fn numbered_page(tx: &mut Tx<'_>, number: u32) -> Result<PageRows, QueryError> {
    let max = ACCOUNTS_PER_PAGE as usize;
    let offset = i64::from(number.saturating_sub(1)) * i64::from(ACCOUNTS_PER_PAGE);
    let read = query(NUMBERED_PAGE).bind(i64::from(ACCOUNTS_PER_PAGE) + 1).bind(offset);
    let mut accounts: Vec<AccountOverview> = read.fetch_all(tx)?;
    let has_next = accounts.len() > max;
    accounts.truncate(max);
    Ok(PageRows { accounts, has_previous: offset > 0, has_next })
}

#[derive(Clone, Copy)]
enum NameOrder {
    Ascending,
    Descending,
}

impl NameOrder {
    /// The open accounts (false) and the closed ones (true), in the order in which they are read.
    fn parts(self) -> [bool; 2] {
        match self {
            Self::Ascending => [false, true],
            Self::Descending => [true, false],
        }
    }
}

/// Selects open or closed accounts by name, from the given name on.
fn select_accounts(is_closed: bool, order: NameOrder, name: Option<&str>, limit: usize) -> Query {
    let mut read = Statement::new(
        "SELECT a.*, (SELECT COUNT(*) FROM api_keys k \
         WHERE k.account_id = a.id AND k.revoked_at_ms IS NULL) AS active_keys FROM accounts a WHERE ",
    );
    read.push(if is_closed { "a.closed_at_ms IS NOT NULL" } else { "a.closed_at_ms IS NULL" });
    let (comparison, order) = match order {
        NameOrder::Ascending => (" AND a.name > ", " ORDER BY a.name LIMIT "),
        NameOrder::Descending => (" AND a.name < ", " ORDER BY a.name DESC LIMIT "),
    };
    if let Some(name) = name {
        read.push(comparison).push_bind(name);
    }
    read.push(order).push_bind(to_db_count(limit as u64));
    read.build()
}

fn total(tx: &mut Tx<'_>, counts_all: bool) -> Result<ListTotal, QueryError> {
    let limit = if counts_all { CountLimit::All } else { CountLimit::UpTo(MAX_COUNTED_ROWS) };
    let max_rows = match limit {
        CountLimit::UpTo(limit) => to_db_count(limit + 1),
        CountLimit::All => i64::MAX,
    };
    let counted: i64 = query(COUNT_UP_TO).bind(max_rows).fetch_one(tx)?;
    Ok(limit.total(counted.unsigned_abs()))
}

fn record(tx: &mut Tx<'_>, id: AccountId, month: Month) -> Result<Option<AccountRecord>, AccountError> {
    let account: Option<Account> = query(lookup::BY_ID).bind(id.0).fetch_optional(tx)?;
    let Some(account) = account else { return Ok(None) };
    Ok(Some(AccountRecord {
        account,
        billing: query(changes::BILLING).bind(id.0).fetch_one(tx)?,
        keys: query(KEYS).bind(i64::from(MAX_KEYS_LISTED)).bind(id.0).fetch_all(tx)?,
        keys_total: query(KEYS_TOTAL).bind(id.0).fetch_one(tx)?,
        month: sums(tx, &[id], month)?.remove(&id).unwrap_or_default(),
        events: history::events(tx, Some(id))?,
        unassigned_keys: query(UNASSIGNED_ACTIVE_KEYS).bind(i64::from(MAX_KEYS_LISTED)).fetch_all(tx)?,
        open_accounts: open_accounts(tx)?,
    }))
}

fn sums(
    tx: &mut Tx<'_>,
    accounts: &[AccountId],
    month: Month,
) -> Result<HashMap<AccountId, UsageTotals>, QueryError> {
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
    let sums = sum.build().persistent(accounts.len() == 1).fetch_all(tx)?;
    Ok(sums.into_iter().collect())
}

fn open_accounts(tx: &mut Tx<'_>) -> Result<Vec<AccountOption>, QueryError> {
    query(OPEN).bind(i64::from(MAX_ACCOUNT_OPTIONS)).fetch_all(tx)
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
        self.audited.record(vec![permit.to_audit_row()]).await?;
        let by = permit.by();
        self.db
            .read(move |tx| {
                ensure_principal_unchanged::<AccountError>(tx, by)?;
                page(tx, &query)
            })
            .await
    }

    pub async fn read_account(
        &self,
        permit: Permit<ReadAccounts>,
        account: AccountId,
        month: Month,
    ) -> Result<Option<AccountRecord>, AccountError> {
        self.audited.record(vec![permit.to_audit_row()]).await?;
        let by = permit.by();
        self.db
            .read(move |tx| {
                ensure_principal_unchanged::<AccountError>(tx, by)?;
                record(tx, account, month)
            })
            .await
    }

    /// Writes the decision, the change and its history row in one transaction. Fails with `AccountNameTaken`,
    /// `KeyPrefixTaken`, `NoSuchAccountId`, `NoSuchKey`, `AccountClosed` for a key that is to bill a closed account,
    /// `KeyRevoked` for a revoked key that is to bill another account, or `KeyAlreadyRotated` and `OverlapRunning` for a
    /// rotation. Earlier usage of an attached key stays where it was billed. A closed account retains its keys and its ledger; its keys stop generating. Closing or revoking
    /// again changes nothing: the first time stands.
    pub async fn change_account(
        &self,
        permit: Permit<ManageAccounts>,
        change: AccountChange,
    ) -> Result<AccountChangeOutcome, AccountError> {
        let decision = vec![permit.to_audit_row()];
        self.audited.run(decision, move |tx| changes::apply(tx, permit.access_request(), &change)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;
    use crate::db::query_plan;

    #[tokio::test]
    async fn page_of_accounts_scans_its_index_without_sort() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_file(&folder.path().join("chancery.db")).await.unwrap();
        for (is_closed, index) in [(false, "INDEX accounts_open "), (true, "INDEX accounts_closed ")] {
            for order in [NameOrder::Ascending, NameOrder::Descending] {
                let query = select_accounts(is_closed, order, Some("Hale"), 51);
                let plan = query_plan(&store.db, &query).await;
                let plan: Vec<String> = plan.into_iter().map(|step| step.2).collect();
                let seeks = |step: &String| step.starts_with("SEARCH a ") && step.contains(index);
                assert!(plan.iter().any(seeks), "{plan:?}");
                assert!(!plan.iter().any(|step| step.contains("TEMP B-TREE")), "{plan:?}");
            }
        }
        store.close().await;
    }
}
