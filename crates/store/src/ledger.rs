//! The ledger's queries. Rows are only ever added, and only by the `LedgerWriter`.

use crate::both::{for_both_stores, stored_row};
use crate::failure::long_answer;
use crate::{Ledger, StoreError, UsageBy, UsageGroup, UsageQuery, UsageSum};
use chancery_domain::{
    AccountId, Day, HowEnded, KeyId, KeyPrefix, Nanos, Prices, RequestId, TokenPrice, UnixMillis, UsageRow,
};

stored_row! {
    struct StoredUsageRow named by request_id {
        request_id: String,
        account_id: i64,
        key_id: i64,
        model: String,
        input_tokens: i64,
        output_tokens: i64,
        input_price_nanos: i64,
        output_price_nanos: i64,
        cost_nanos: i64,
        at_ms: i64,
        ended: String,
    }
}

impl StoredUsageRow {
    pub(crate) fn into_usage_row(self) -> Result<UsageRow, StoreError> {
        let corrupt = |what, found: String| StoreError::Corrupt {
            what,
            why: format!("request {} has {found}", self.request_id),
        };
        let tokens =
            |stored: i64| u32::try_from(stored).map_err(|_| corrupt("a token count", stored.to_string()));
        let (input_tokens, output_tokens) = (tokens(self.input_tokens)?, tokens(self.output_tokens)?);
        let ended = HowEnded::from_stored(&self.ended)
            .ok_or_else(|| corrupt("how a request ended", format!("{:?}", self.ended)))?;
        Ok(UsageRow {
            request_id: RequestId::from_stored(self.request_id),
            account: AccountId(self.account_id),
            key: KeyId(self.key_id),
            model: self.model,
            input_tokens,
            output_tokens,
            // Taken as they stand: the rule about prices may change, what was charged may not.
            prices: Prices {
                input: TokenPrice::from_nanos_per_token(self.input_price_nanos),
                output: TokenPrice::from_nanos_per_token(self.output_price_nanos),
            },
            cost: Nanos(self.cost_nanos),
            at: UnixMillis(self.at_ms),
            ended,
        })
    }
}

stored_row! {
    /// What the sums of every grouping have in common.
    struct StoredSums {
        requests: i64,
        input_tokens: i64,
        output_tokens: i64,
        cost_nanos: i64,
    }
}

stored_row! {
    struct StoredDaySum {
        day: i64,
        ..sums: StoredSums,
    }
}

stored_row! {
    struct StoredNamedSum {
        name: String,
        ..sums: StoredSums,
    }
}

impl StoredDaySum {
    fn into_usage_sum(self) -> Result<UsageSum, StoreError> {
        let day = i32::try_from(self.day).map_err(|_| StoreError::Corrupt {
            what: "a day",
            why: format!("{} days after 1970 is out of range", self.day),
        })?;
        self.sums.into_usage_sum(UsageGroup::Day(Day(day)))
    }
}

impl StoredNamedSum {
    fn into_usage_sum(self, group: impl FnOnce(String) -> UsageGroup) -> Result<UsageSum, StoreError> {
        self.sums.into_usage_sum(group(self.name))
    }
}

impl StoredSums {
    fn into_usage_sum(self, group: UsageGroup) -> Result<UsageSum, StoreError> {
        let count = |stored: i64| {
            u64::try_from(stored)
                .map_err(|_| StoreError::Corrupt { what: "a sum", why: format!("{stored} is negative") })
        };
        Ok(UsageSum {
            group,
            requests: count(self.requests)?,
            input_tokens: count(self.input_tokens)?,
            output_tokens: count(self.output_tokens)?,
            cost: Nanos(self.cost_nanos),
        })
    }
}

/// Sums are cast back to 64 bits, which fails where they do not fit: PostgreSQL adds without bound, and SQLite already
/// fails while adding.
macro_rules! usage_sums {
    ($group:literal as $name:literal from $tables:literal, of every account) => {
        usage_sums!(@ $group, $name, $tables, "")
    };
    ($group:literal as $name:literal from $tables:literal, of one account) => {
        usage_sums!(@ $group, $name, $tables, " AND ledger.account_id = $3")
    };
    (@ $group:literal, $name:literal, $tables:literal, $whose:literal) => {
        concat!(
            "SELECT ", $group, " AS ", $name, ", COUNT(*) AS requests, \
             CAST(SUM(ledger.input_tokens) AS BIGINT) AS input_tokens, \
             CAST(SUM(ledger.output_tokens) AS BIGINT) AS output_tokens, \
             CAST(SUM(ledger.cost_nanos) AS BIGINT) AS cost_nanos \
             FROM ", $tables, " WHERE ledger.at_ms >= $1 AND ledger.at_ms < $2", $whose,
            " GROUP BY ", $group, " ORDER BY ", $group
        )
    };
}

// Times are never negative, so whole division finds the day, and a day has no other length in UTC.
const BY_DAY: &str = usage_sums!("ledger.at_ms / 86400000" as "day" from "ledger", of every account);
const BY_DAY_OF_ONE: &str = usage_sums!("ledger.at_ms / 86400000" as "day" from "ledger", of one account);
const BY_MODEL: &str = usage_sums!("ledger.model" as "name" from "ledger", of every account);
const BY_MODEL_OF_ONE: &str = usage_sums!("ledger.model" as "name" from "ledger", of one account);
const BY_KEY: &str = usage_sums!(
    "api_keys.prefix" as "name" from "ledger JOIN api_keys ON api_keys.id = ledger.key_id", of every account
);
const BY_KEY_OF_ONE: &str = usage_sums!(
    "api_keys.prefix" as "name" from "ledger JOIN api_keys ON api_keys.id = ledger.key_id", of one account
);

const PAGE: &str = "SELECT * FROM ledger WHERE request_id > $1 ORDER BY request_id LIMIT $2";

for_both_stores! {
    impl Ledger {
        async fn settle(&self, row: UsageRow) -> Result<(), StoreError> {
            self.ledger.settle(row).await
        }

        async fn usage(&self, query: UsageQuery) -> Result<Vec<UsageSum>, StoreError> {
            let first_ms = query.from.map_or(0, |day| day.start().0);
            let end_ms = query.to.map_or(i64::MAX, |day| day.end().0);
            let account = query.account.map(|account| account.0);
            if query.by == UsageBy::Day {
                let sql = if account.is_some() { BY_DAY_OF_ONE } else { BY_DAY };
                let mut statement = sqlx::query_as(sql).bind(first_ms).bind(end_ms);
                if let Some(account) = account {
                    statement = statement.bind(account);
                }
                let rows: Vec<StoredDaySum> = long_answer(statement.fetch_all(&self.long_reader)).await?;
                return rows.into_iter().map(StoredDaySum::into_usage_sum).collect();
            }
            let by_key = query.by == UsageBy::Key;
            let sql = match (by_key, account.is_some()) {
                (true, true) => BY_KEY_OF_ONE,
                (true, false) => BY_KEY,
                (false, true) => BY_MODEL_OF_ONE,
                (false, false) => BY_MODEL,
            };
            let mut statement = sqlx::query_as(sql).bind(first_ms).bind(end_ms);
            if let Some(account) = account {
                statement = statement.bind(account);
            }
            let rows: Vec<StoredNamedSum> = long_answer(statement.fetch_all(&self.long_reader)).await?;
            let group = |name| {
                if by_key { UsageGroup::Key(KeyPrefix::from_stored(name)) } else { UsageGroup::Model(name) }
            };
            rows.into_iter().map(|row| row.into_usage_sum(group)).collect()
        }

        async fn ledger_rows(&self, after: Option<&RequestId>, limit: u32) -> Result<Vec<UsageRow>, StoreError> {
            // No request id is empty, so the empty text comes before them all.
            let after = after.map_or("", RequestId::as_str);
            let page = sqlx::query_as(PAGE).bind(after).bind(i64::from(limit)).fetch_all(&self.long_reader);
            let rows: Vec<StoredUsageRow> = long_answer(page).await?;
            rows.into_iter().map(StoredUsageRow::into_usage_row).collect()
        }
    }
}
