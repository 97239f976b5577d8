//! The ledger's queries. Rows are only ever added, and only by the `LedgerWriter`. What people ask for is answered from the
//! sums by day; the rows themselves are read to verify them.

use crate::db::both::{for_both_connections, for_both_stores, stored_row};
use crate::db::error_codes::{answer, long_answer};
use crate::db::{FromRow, Row};
use crate::ledger::batch::stored_count;
use crate::{
    ChainedRow, DayUsage, Ledger, Settlement, StoreError, UsageBy, UsageGroup, UsageQuery, UsageSum,
    UsageTotals,
};
use chancery_domain::{
    AccountId, AccountName, ChainHash, ChainHead, Day, HowEnded, KeyId, KeyPrefix, Nanos, Prices, RequestId,
    TokenPrice, UnixMillis, UsageRow, WriterId,
};
use sqlx::FromRow as _;

pub(crate) const STORED: &str = "SELECT * FROM ledger WHERE request_id = $1";

pub(crate) const HEAD: &str = "SELECT row_count, head FROM ledger_writers WHERE id = $1";

/// Changes nothing where the chain ends elsewhere than at $2 and $3.
pub(crate) const SET_HEAD: &str = "INSERT INTO ledger_writers (id, row_count, head) VALUES ($1, $4, $5) \
    ON CONFLICT (id) DO UPDATE SET row_count = excluded.row_count, head = excluded.head \
    WHERE ledger_writers.row_count = $2 AND ledger_writers.head = $3";

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
            prices: stored_prices(self.input_price_nanos, self.output_price_nanos),
            cost: Nanos(self.cost_nanos),
            at: UnixMillis(self.at_ms),
            ended,
        })
    }
}

impl FromRow for ChainHead {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let head = StoredHead { row_count: row.get("row_count")?, head: row.get("head")? };
        head.into_chain_head().map_err(|error| sqlx::Error::Decode(Box::new(error)))
    }
}

stored_row! {
    struct StoredHead {
        row_count: i64,
        head: Vec<u8>,
    }
}

impl StoredHead {
    /// Where there is none, the chain is still to begin.
    pub(crate) fn or_start(stored: Option<Self>) -> Result<ChainHead, sqlx::Error> {
        let Some(stored) = stored else { return Ok(ChainHead::default()) };
        stored.into_chain_head().map_err(|error| sqlx::Error::Decode(Box::new(error)))
    }

    pub(crate) fn into_chain_head(self) -> Result<ChainHead, StoreError> {
        Ok(ChainHead { rows: count(self.row_count)?, hash: hash(self.head)? })
    }
}

pub(crate) fn stored_prices(input_nanos: i64, output_nanos: i64) -> Prices {
    let price = TokenPrice::from_nanos_per_token;
    Prices { input: price(input_nanos), output: price(output_nanos) }
}

fn hash(stored: Vec<u8>) -> Result<ChainHash, StoreError> {
    stored.try_into().map(ChainHash).map_err(|bytes: Vec<u8>| StoreError::Corrupt {
        what: "a hash of the ledger's chain",
        why: format!("it has {} bytes instead of 32", bytes.len()),
    })
}

pub(crate) fn count(stored: i64) -> Result<u64, StoreError> {
    u64::try_from(stored)
        .map_err(|_| StoreError::Corrupt { what: "a count", why: format!("{stored} is negative") })
}

pub(crate) fn day(stored: i64) -> Result<Day, StoreError> {
    i32::try_from(stored).map(Day).map_err(|_| StoreError::Corrupt {
        what: "a day",
        why: format!("{stored} days after 1970 is out of range"),
    })
}

stored_row! {
    struct StoredChainedRow {
        place: i64,
        hash: Vec<u8>,
        ..row: StoredUsageRow,
    }
}

impl StoredChainedRow {
    fn into_chained_row(self) -> Result<ChainedRow, StoreError> {
        Ok(ChainedRow { place: count(self.place)?, hash: hash(self.hash)?, row: self.row.into_usage_row()? })
    }
}

stored_row! {
    struct StoredDayUsage {
        account_id: i64,
        day: i64,
        key_id: i64,
        model: String,
        input_price_nanos: i64,
        output_price_nanos: i64,
        ..sums: StoredSums,
    }
}

impl StoredDayUsage {
    fn into_day_usage(self) -> Result<DayUsage, StoreError> {
        let (account, key) = (AccountId(self.account_id), KeyId(self.key_id));
        let prices = stored_prices(self.input_price_nanos, self.output_price_nanos);
        let totals = self.sums.into_totals()?;
        Ok(DayUsage { account, day: day(self.day)?, key, model: self.model, prices, totals })
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
        Ok(UsageSum::of(UsageGroup::Day(day(self.day)?), self.sums.into_totals()?))
    }
}

impl StoredNamedSum {
    fn into_usage_sum(self, group: impl FnOnce(String) -> UsageGroup) -> Result<UsageSum, StoreError> {
        Ok(UsageSum::of(group(self.name), self.sums.into_totals()?))
    }
}

impl StoredSums {
    pub(crate) fn into_totals(self) -> Result<UsageTotals, StoreError> {
        Ok(UsageTotals {
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
        usage_sums!(@ $group, $name, $tables, " AND u.account_id = $3")
    };
    (@ $group:literal, $name:literal, $tables:literal, $whose:literal) => {
        concat!(
            "SELECT ", $group, " AS ", $name, ", \
             CAST(SUM(u.requests) AS BIGINT) AS requests, \
             CAST(SUM(u.input_tokens) AS BIGINT) AS input_tokens, \
             CAST(SUM(u.output_tokens) AS BIGINT) AS output_tokens, \
             CAST(SUM(u.cost_nanos) AS BIGINT) AS cost_nanos \
             FROM ", $tables, " WHERE u.day >= $1 AND u.day <= $2", $whose,
            " GROUP BY ", $group, " ORDER BY ", $group
        )
    };
}

pub(crate) use usage_sums;

const BY_DAY: &str = usage_sums!("u.day" as "day" from "usage_days u", of every account);
const BY_DAY_OF_ONE: &str = usage_sums!("u.day" as "day" from "usage_days u", of one account);
const BY_MODEL: &str = usage_sums!("u.model" as "name" from "usage_days u", of every account);
const BY_MODEL_OF_ONE: &str = usage_sums!("u.model" as "name" from "usage_days u", of one account);
const BY_KEY: &str = usage_sums!(
    "api_keys.prefix" as "name" from "usage_days u JOIN api_keys ON api_keys.id = u.key_id", of every account
);
const BY_KEY_OF_ONE: &str = usage_sums!(
    "api_keys.prefix" as "name" from "usage_days u JOIN api_keys ON api_keys.id = u.key_id", of one account
);
const BY_ACCOUNT: &str = usage_sums!(
    "accounts.name" as "name" from "usage_days u JOIN accounts ON accounts.id = u.account_id", of every account
);
const BY_ACCOUNT_OF_ONE: &str = usage_sums!(
    "accounts.name" as "name" from "usage_days u JOIN accounts ON accounts.id = u.account_id", of one account
);

/// What a month's report is made of.
#[cfg(test)]
pub(crate) const MONTH_SUMS: [&str; 2] = [BY_DAY, BY_MODEL];
#[cfg(test)]
pub(crate) const MONTH_SUMS_OF_ONE: [&str; 2] = [BY_DAY_OF_ONE, BY_MODEL_OF_ONE];

const PAGE: &str = "SELECT * FROM ledger WHERE request_id > $1 ORDER BY request_id LIMIT $2";

/// Two rows may stand at one place only where somebody put them there, but then none of them must be missed.
const CHAIN_PAGE: &str = "SELECT * FROM ledger WHERE writer_id = $1 AND (place, request_id) > ($2, $3) \
    ORDER BY place, request_id LIMIT $4";

/// Of those that have rows and those that have an end, which should be the same.
const NEXT_WRITER: &str = "SELECT MIN(id) FROM (SELECT MIN(writer_id) AS id FROM ledger WHERE writer_id > $1 \
    UNION ALL SELECT MIN(id) FROM ledger_writers WHERE id > $1) AS next";

const DAY_PAGE: &str = "SELECT * FROM usage_days \
    WHERE (account_id, day, key_id, model, input_price_nanos, output_price_nanos) > ($1, $2, $3, $4, $5, $6) \
    ORDER BY account_id, day, key_id, model, input_price_nanos, output_price_nanos LIMIT $7";

#[async_trait::async_trait]
pub(crate) trait UsageSums {
    /// In the order of their groups.
    async fn usage_sums(
        &mut self,
        query: &UsageQuery,
    ) -> Result<Vec<Result<UsageSum, StoreError>>, sqlx::Error>;
}

for_both_connections! {
    impl UsageSums {
        async fn usage_sums(
            &mut self,
            query: &UsageQuery,
        ) -> Result<Vec<Result<UsageSum, StoreError>>, sqlx::Error> {
            let first_day = query.from.map_or(0, |day| i64::from(day.0));
            let last_day = query.to.map_or(i64::MAX, |day| i64::from(day.0));
            let sql = match (query.by, query.account.is_some()) {
                (UsageBy::Day, true) => BY_DAY_OF_ONE,
                (UsageBy::Day, false) => BY_DAY,
                (UsageBy::Model, true) => BY_MODEL_OF_ONE,
                (UsageBy::Model, false) => BY_MODEL,
                (UsageBy::Key, true) => BY_KEY_OF_ONE,
                (UsageBy::Key, false) => BY_KEY,
                (UsageBy::Account, true) => BY_ACCOUNT_OF_ONE,
                (UsageBy::Account, false) => BY_ACCOUNT,
            };
            let mut statement = sqlx::query(sql).bind(first_day).bind(last_day);
            if let Some(account) = query.account {
                statement = statement.bind(account.0);
            }
            let rows = statement.fetch_all(&mut *self).await?;
            let named = |group: fn(String) -> UsageGroup| {
                rows.iter().map(|row| Ok(StoredNamedSum::from_row(row)?.into_usage_sum(group))).collect()
            };
            match query.by {
                UsageBy::Day => {
                    rows.iter().map(|row| Ok(StoredDaySum::from_row(row)?.into_usage_sum())).collect()
                }
                UsageBy::Model => named(UsageGroup::Model),
                UsageBy::Key => named(|name| UsageGroup::Key(KeyPrefix::from_stored(name))),
                UsageBy::Account => named(|name| UsageGroup::Account(AccountName::from_stored(name))),
            }
        }
    }
}

for_both_stores! {
    impl Ledger {
        async fn settle(&self, settlement: Settlement) -> Result<(), StoreError> {
            self.ledger.settle(settlement).await
        }

        async fn usage(&self, query: UsageQuery) -> Result<Vec<UsageSum>, StoreError> {
            let sums = async { self.long_reader.acquire().await?.usage_sums(&query).await };
            long_answer(sums).await?.into_iter().collect()
        }

        async fn ledger_rows(&self, after: Option<&RequestId>, limit: u32) -> Result<Vec<UsageRow>, StoreError> {
            // No request id is empty, so the empty text comes before them all.
            let after = after.map_or("", RequestId::as_str);
            let page = sqlx::query_as(PAGE).bind(after).bind(i64::from(limit)).fetch_all(&self.long_reader);
            let rows: Vec<StoredUsageRow> = long_answer(page).await?;
            rows.into_iter().map(StoredUsageRow::into_usage_row).collect()
        }

        async fn writer_after(&self, writer: Option<WriterId>) -> Result<Option<WriterId>, StoreError> {
            let after = writer.map_or(i64::MIN, |writer| writer.0);
            let next = sqlx::query_scalar(NEXT_WRITER).bind(after).fetch_one(&self.long_reader);
            let next: Option<i64> = long_answer(next).await?;
            Ok(next.map(WriterId))
        }

        async fn chain_head(&self, writer: WriterId) -> Result<Option<ChainHead>, StoreError> {
            let head = sqlx::query_as(HEAD).bind(writer.0).fetch_optional(&self.reader);
            answer(head).await?.map(StoredHead::into_chain_head).transpose()
        }

        async fn chained_rows(
            &self,
            writer: WriterId,
            after: Option<&ChainedRow>,
            limit: u32,
        ) -> Result<Vec<ChainedRow>, StoreError> {
            let (place, request) = after.map_or((-1, ""), |last| {
                (stored_count(last.place), last.row.request_id.as_str())
            });
            let page = sqlx::query_as(CHAIN_PAGE)
                .bind(writer.0)
                .bind(place)
                .bind(request)
                .bind(i64::from(limit))
                .fetch_all(&self.long_reader);
            let rows: Vec<StoredChainedRow> = long_answer(page).await?;
            rows.into_iter().map(StoredChainedRow::into_chained_row).collect()
        }

        async fn day_usage(&self, after: Option<&DayUsage>, limit: u32) -> Result<Vec<DayUsage>, StoreError> {
            let (account, day, key, model) = after.map_or((i64::MIN, 0, 0, ""), |last| {
                (last.account.0, i64::from(last.day.0), last.key.0, last.model.as_str())
            });
            let (input_price, output_price) = after.map_or((0, 0), |DayUsage { prices, .. }| {
                (prices.input.nanos_per_token(), prices.output.nanos_per_token())
            });
            let page = sqlx::query_as(DAY_PAGE)
                .bind(account)
                .bind(day)
                .bind(key)
                .bind(model)
                .bind(input_price)
                .bind(output_price)
                .bind(i64::from(limit))
                .fetch_all(&self.long_reader);
            let rows: Vec<StoredDayUsage> = long_answer(page).await?;
            rows.into_iter().map(StoredDayUsage::into_day_usage).collect()
        }
    }
}
