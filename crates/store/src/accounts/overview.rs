//! Billing accounts and keys for those who manage them: the pages' reads, each right after its decision and as it
//! was at one moment, and the deeds (`account_deeds`). Sums come from those by day, never from the ledger's rows.

use crate::accounts::accounts::{StoredAccount, StoredBilling};
use crate::accounts::changes::AccountDeeds;
use crate::accounts::keys::StoredKey;
use crate::audit::chain::AuditChain;
use crate::audit::step::{Stopped, decided, note, reading};
use crate::clients::rows::{count, person_ref};
use crate::db::both::{Statement, for_both_connections, for_both_stores, push_list, stored_row};
use crate::db::error_codes::answer;
use crate::db::transaction::{BeginReading, BeginWriting};
use crate::ledger::queries::{StoredSums, day};
use crate::{
    ACCOUNTS_PER_PAGE, AccountChoice, AccountDeed, AccountDesk, AccountDone, AccountEvent, AccountEventId,
    AccountOverview, AccountPage, AccountQuery, AccountRecord, KeyUse, MAX_ACCOUNT_EVENTS,
    MAX_ACCOUNTS_OFFERED, MAX_KEYS_LISTED, StoreError, UsageTotals,
};
use chancery_domain::{AccountId, AccountName, Month, UnixMillis};
use chancery_policy::{ManageAccounts, Permit, ReadAccounts};
use std::collections::HashMap;

stored_row! {
    struct StoredOverview {
        active_keys: i64,
        ..account: StoredAccount,
    }
}

stored_row! {
    struct StoredKeyUse {
        last_day: Option<i64>,
        ..key: StoredKey,
    }
}

stored_row! {
    struct StoredChoice {
        id: i64,
        name: String,
    }
}

stored_row! {
    struct StoredAccountSum {
        account_id: i64,
        ..sums: StoredSums,
    }
}

stored_row! {
    struct StoredEvent {
        id: i64,
        detail: String,
        by_id: Option<i64>,
        by_email: Option<String>,
        at_ms: i64,
    }
}

impl StoredKeyUse {
    fn into_key_use(self) -> Result<KeyUse, StoreError> {
        Ok(KeyUse { key: self.key.into_key()?, last_used: self.last_day.map(day).transpose()? })
    }
}

impl StoredEvent {
    fn into_event(self) -> Result<AccountEvent, StoreError> {
        let by = match (self.by_id, &self.by_email) {
            (Some(id), Some(email)) => Some(person_ref(id, email)?),
            _ => None,
        };
        Ok(AccountEvent { id: AccountEventId(self.id), deed: self.detail, by, at: UnixMillis(self.at_ms) })
    }
}

/// Closed ones last. Truth sorts after falsehood in both databases.
const PAGE: &str = "SELECT a.*, (SELECT COUNT(*) FROM api_keys k \
        WHERE k.account_id = a.id AND k.revoked_at_ms IS NULL) AS active_keys \
    FROM accounts a ORDER BY (a.closed_at_ms IS NOT NULL), a.name LIMIT $1 OFFSET $2";
const TOTAL: &str = "SELECT COUNT(*) FROM accounts";
const OPEN: &str = "SELECT id, name FROM accounts WHERE closed_at_ms IS NULL ORDER BY name LIMIT $1";
const ACCOUNT: &str = "SELECT * FROM accounts WHERE id = $1";
const BILLING: &str = "SELECT id, billing_address, billing_email FROM accounts WHERE id = $1";

/// The last use of a key is the last entry of an index, however much it has used.
macro_rules! keys_with_last_use {
    ($which:literal) => {
        concat!(
            "SELECT k.*, (SELECT MAX(u.day) FROM usage_days u WHERE u.key_id = k.id) AS last_day FROM api_keys k \
             WHERE ",
            $which,
            " ORDER BY (k.revoked_at_ms IS NOT NULL), k.created_at_ms DESC, k.id DESC LIMIT $1"
        )
    };
}

const KEYS_OF: &str = keys_with_last_use!("k.account_id = $2");
const KEYS_TOTAL: &str = "SELECT COUNT(*) FROM api_keys WHERE account_id = $1";
const UNATTACHED: &str = keys_with_last_use!("k.account_id IS NULL");
const UNATTACHED_TOTAL: &str = "SELECT COUNT(*) FROM api_keys WHERE account_id IS NULL";
const UNATTACHED_ACTIVE: &str = keys_with_last_use!("k.account_id IS NULL AND k.revoked_at_ms IS NULL");

macro_rules! events {
    ($whose:literal) => {
        concat!(
            "SELECT e.id, e.detail, e.by_id, p.email AS by_email, e.at_ms FROM account_events e \
             LEFT JOIN people p ON p.id = e.by_id WHERE ",
            $whose,
            " ORDER BY e.id DESC LIMIT $1"
        )
    };
}

const EVENTS_OF: &str = events!("e.account_id = $2");
const EVENTS_OF_NONE: &str = events!("e.account_id IS NULL");

#[async_trait::async_trait]
trait DeskReads {
    async fn account_page(&mut self, query: AccountQuery) -> Result<AccountPage, Stopped>;
    async fn account_record(&mut self, id: AccountId, month: Month)
    -> Result<Option<AccountRecord>, Stopped>;
    async fn sums_of(&mut self, accounts: &[i64], month: Month)
    -> Result<HashMap<i64, UsageTotals>, Stopped>;
    async fn open_accounts(&mut self) -> Result<Vec<AccountChoice>, Stopped>;
}

fn keys(rows: Vec<StoredKeyUse>) -> Result<Vec<KeyUse>, StoreError> {
    rows.into_iter().map(StoredKeyUse::into_key_use).collect()
}

fn events(rows: Vec<StoredEvent>) -> Result<Vec<AccountEvent>, StoreError> {
    rows.into_iter().map(StoredEvent::into_event).collect()
}

for_both_connections! {
    impl DeskReads {
        async fn account_page(&mut self, query: AccountQuery) -> Result<AccountPage, Stopped> {
            let offset = i64::from(query.page.saturating_sub(1)) * i64::from(ACCOUNTS_PER_PAGE);
            let page = sqlx::query_as(PAGE).bind(i64::from(ACCOUNTS_PER_PAGE)).bind(offset);
            let rows: Vec<StoredOverview> = page.fetch_all(&mut *self).await?;
            let numbers: Vec<i64> = rows.iter().map(|row| row.account.id).collect();
            let sums = self.sums_of(&numbers, query.month).await?;
            let accounts: Result<Vec<AccountOverview>, StoreError> = rows
                .into_iter()
                .map(|row| {
                    let month = sums.get(&row.account.id).copied().unwrap_or_default();
                    let active_keys = count(row.active_keys)?;
                    Ok(AccountOverview { account: row.account.into_account()?, active_keys, month })
                })
                .collect();
            let total: i64 = sqlx::query_scalar(TOTAL).fetch_one(&mut *self).await?;
            let unattached: Vec<StoredKeyUse> =
                sqlx::query_as(UNATTACHED).bind(i64::from(MAX_KEYS_LISTED)).fetch_all(&mut *self).await?;
            let unattached_total: i64 = sqlx::query_scalar(UNATTACHED_TOTAL).fetch_one(&mut *self).await?;
            let told: Vec<StoredEvent> =
                sqlx::query_as(EVENTS_OF_NONE).bind(i64::from(MAX_ACCOUNT_EVENTS)).fetch_all(&mut *self).await?;
            Ok(AccountPage {
                accounts: accounts?,
                total: count(total)?,
                unattached: keys(unattached)?,
                unattached_total: count(unattached_total)?,
                open_accounts: self.open_accounts().await?,
                events: events(told)?,
            })
        }

        async fn account_record(
            &mut self,
            id: AccountId,
            month: Month,
        ) -> Result<Option<AccountRecord>, Stopped> {
            let found: Option<StoredAccount> =
                sqlx::query_as(ACCOUNT).bind(id.0).fetch_optional(&mut *self).await?;
            let Some(account) = found else { return Ok(None) };
            let billing: StoredBilling = sqlx::query_as(BILLING).bind(id.0).fetch_one(&mut *self).await?;
            let listed: Vec<StoredKeyUse> =
                sqlx::query_as(KEYS_OF).bind(i64::from(MAX_KEYS_LISTED)).bind(id.0).fetch_all(&mut *self).await?;
            let keys_total: i64 = sqlx::query_scalar(KEYS_TOTAL).bind(id.0).fetch_one(&mut *self).await?;
            let sums = self.sums_of(&[id.0], month).await?;
            let told: Vec<StoredEvent> = sqlx::query_as(EVENTS_OF)
                .bind(i64::from(MAX_ACCOUNT_EVENTS))
                .bind(id.0)
                .fetch_all(&mut *self)
                .await?;
            let unattached: Vec<StoredKeyUse> =
                sqlx::query_as(UNATTACHED_ACTIVE).bind(i64::from(MAX_KEYS_LISTED)).fetch_all(&mut *self).await?;
            Ok(Some(AccountRecord {
                account: account.into_account()?,
                billing: billing.into_contact(),
                keys: keys(listed)?,
                keys_total: count(keys_total)?,
                month: sums.get(&id.0).copied().unwrap_or_default(),
                events: events(told)?,
                unattached: keys(unattached)?,
                open_accounts: self.open_accounts().await?,
            }))
        }

        async fn sums_of(
            &mut self,
            accounts: &[i64],
            month: Month,
        ) -> Result<HashMap<i64, UsageTotals>, Stopped> {
            if accounts.is_empty() {
                return Ok(HashMap::new());
            }
            let mut sum = Statement::<Self>::new(
                "SELECT account_id, CAST(SUM(requests) AS BIGINT) AS requests, \
                 CAST(SUM(input_tokens) AS BIGINT) AS input_tokens, CAST(SUM(output_tokens) AS BIGINT) AS output_tokens, \
                 CAST(SUM(cost_nanos) AS BIGINT) AS cost_nanos FROM usage_days WHERE day >= ",
            );
            sum.push_bind(i64::from(month.first_day().0)).push(" AND day <= ").push_bind(i64::from(month.last_day().0));
            sum.push(" AND account_id IN ");
            push_list!(sum, accounts);
            sum.push(" GROUP BY account_id");
            let rows: Vec<StoredAccountSum> =
                sum.build_query_as().persistent(accounts.len() == 1).fetch_all(&mut *self).await?;
            let sums: Result<HashMap<i64, UsageTotals>, StoreError> =
                rows.into_iter().map(|row| Ok((row.account_id, row.sums.into_totals()?))).collect();
            Ok(sums?)
        }

        async fn open_accounts(&mut self) -> Result<Vec<AccountChoice>, Stopped> {
            let rows: Vec<StoredChoice> =
                sqlx::query_as(OPEN).bind(i64::from(MAX_ACCOUNTS_OFFERED)).fetch_all(&mut *self).await?;
            let choice = |row: StoredChoice| AccountChoice {
                id: AccountId(row.id),
                name: AccountName::from_stored(row.name),
            };
            Ok(rows.into_iter().map(choice).collect())
        }
    }
}

for_both_stores! {
    impl AccountDesk {
        async fn read_accounts(
            &self,
            permit: Permit<ReadAccounts>,
            query: AccountQuery,
        ) -> Result<AccountPage, StoreError> {
            note!(self, permit);
            reading!(self.reader, answer, |moment| moment.account_page(query))
        }

        async fn read_account(
            &self,
            permit: Permit<ReadAccounts>,
            account: AccountId,
            month: Month,
        ) -> Result<Option<AccountRecord>, StoreError> {
            note!(self, permit);
            reading!(self.reader, answer, |moment| moment.account_record(account, month))
        }

        async fn do_with_account(
            &self,
            permit: Permit<ManageAccounts>,
            deed: AccountDeed,
        ) -> Result<AccountDone, StoreError> {
            let row = [permit.to_audit_row()];
            decided!(self, |transaction| async {
                transaction.link(self.lease.writer, &row).await?;
                transaction.do_deed(permit.asked(), &deed).await
            })
        }
    }
}
