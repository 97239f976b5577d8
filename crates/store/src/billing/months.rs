//! What accounts have used in their months, and which invoice bills it. All of it comes from the sums by day.

use crate::audit::step::Stopped;
use crate::billing::rows::{stored_month, stored_number, stored_number_if_any};
use crate::clients::rows::count;
use crate::db::both::{Statement, for_both_connections, stored_row};
use crate::ledger::batch::stored_count;
use crate::ledger::queries::{StoredSums, stored_prices};
use crate::{StoreError, UnbilledMonth, UsageTotals};
use chancery_domain::{
    AccountId, AccountName, Buyer, ContactEmail, InvoiceNumber, ModelUsage, Month, Nanos, PostalAddress,
};

const BUYER: &str = "SELECT name, billing_address, billing_email FROM accounts WHERE id = $1";

/// Sums are cast back to 64 bits, which fails where they do not fit.
macro_rules! sums_of_month {
    ($by:literal, $group:literal) => {
        concat!(
            "SELECT ",
            $by,
            "CAST(COALESCE(SUM(requests), 0) AS BIGINT) AS requests, \
             CAST(COALESCE(SUM(input_tokens), 0) AS BIGINT) AS input_tokens, \
             CAST(COALESCE(SUM(output_tokens), 0) AS BIGINT) AS output_tokens, \
             CAST(COALESCE(SUM(cost_nanos), 0) AS BIGINT) AS cost_nanos \
             FROM usage_days WHERE account_id = $1 AND day >= $2 AND day <= $3",
            $group
        )
    };
}

const BY_MODEL_AND_PRICES: &str = sums_of_month!(
    "model, input_price_nanos, output_price_nanos, ",
    " GROUP BY model, input_price_nanos, output_price_nanos ORDER BY model, input_price_nanos, output_price_nanos"
);
const TOTALS: &str = sums_of_month!("", "");

const BILLED_BY: &str = "SELECT account_id, month, invoice_year, invoice_serial FROM account_months WHERE account_id = $1 AND month = $2";
const BILLED_AFTER: &str = "SELECT account_id, month, invoice_year, invoice_serial FROM account_months \
    WHERE (account_id, month) > ($1, $2) AND invoice_year IS NOT NULL ORDER BY account_id, month LIMIT $3";
const LAST_NUMBERS: &str = "SELECT year, serial FROM invoice_serials WHERE serial > 0 ORDER BY year";

stored_row! {
    struct StoredBuyer {
        name: String,
        billing_address: String,
        billing_email: String,
    }
}

stored_row! {
    struct StoredModelUsage {
        model: String,
        input_price_nanos: i64,
        output_price_nanos: i64,
        ..sums: StoredSums,
    }
}

fn totals(sums: &StoredSums) -> Result<UsageTotals, StoreError> {
    Ok(UsageTotals {
        requests: count(sums.requests)?,
        input_tokens: count(sums.input_tokens)?,
        output_tokens: count(sums.output_tokens)?,
        cost: Nanos(sums.cost_nanos),
    })
}

impl StoredModelUsage {
    fn into_usage(self) -> Result<ModelUsage, StoreError> {
        let prices = stored_prices(self.input_price_nanos, self.output_price_nanos);
        let UsageTotals { requests, input_tokens, output_tokens, cost } = totals(&self.sums)?;
        Ok(ModelUsage { model: self.model, prices, requests, input_tokens, output_tokens, cost })
    }
}

stored_row! {
    struct StoredBilling {
        account_id: i64,
        month: i64,
        invoice_year: Option<i64>,
        invoice_serial: Option<i64>,
    }
}

stored_row! {
    struct StoredUnbilled {
        account_id: i64,
        month: i64,
        name: String,
    }
}

stored_row! {
    struct StoredSerial {
        year: i64,
        serial: i64,
    }
}

/// Which months are meant; of one account or of all, of one year or of all.
#[derive(Clone, Copy)]
pub(crate) struct MonthFilter {
    pub(crate) account: Option<AccountId>,
    pub(crate) year: Option<i16>,
}

/// The months `m` that no invoice bills, as far as they are meant.
macro_rules! push_unbilled {
    ($statement:expr, $filter:expr) => {{
        let MonthFilter { account, year } = $filter;
        $statement.push("m.invoice_year IS NULL");
        if let Some(account) = account {
            $statement.push(" AND m.account_id = ").push_bind(account.0);
        }
        if let Some(year) = year {
            let january = i64::from(year) * 12;
            $statement.push(" AND m.month >= ").push_bind(january);
            $statement.push(" AND m.month < ").push_bind(january + 12);
        }
    }};
}

#[async_trait::async_trait]
pub(crate) trait InvoiceMonths {
    /// The account as documents name it.
    async fn buyer(&mut self, account: AccountId) -> Result<Option<Buyer>, Stopped>;

    /// By model and prices.
    async fn usage_of_month(&mut self, account: AccountId, month: Month) -> Result<Vec<ModelUsage>, Stopped>;

    /// The invoice that bills the month, if one does.
    async fn billed_by(&mut self, account: AccountId, month: Month)
    -> Result<Option<InvoiceNumber>, Stopped>;

    async fn billed_after(
        &mut self,
        after: Option<(AccountId, Month)>,
        limit: u32,
    ) -> Result<Vec<(AccountId, Month, InvoiceNumber)>, Stopped>;

    async fn last_numbers(&mut self) -> Result<Vec<InvoiceNumber>, Stopped>;

    async fn count_unbilled(&mut self, filter: MonthFilter) -> Result<u64, Stopped>;

    /// The newest month first, of one month by account.
    async fn unbilled(
        &mut self,
        filter: MonthFilter,
        skipped: u64,
        wanted: u32,
    ) -> Result<Vec<UnbilledMonth>, Stopped>;
}

for_both_connections! {
    impl InvoiceMonths {
        async fn buyer(&mut self, account: AccountId) -> Result<Option<Buyer>, Stopped> {
            let row: Option<StoredBuyer> =
                sqlx::query_as(BUYER).bind(account.0).fetch_optional(&mut *self).await?;
            Ok(row.map(|row| Buyer {
                account,
                name: AccountName::from_stored(row.name),
                address: PostalAddress::from_stored(row.billing_address),
                email: ContactEmail::from_stored(row.billing_email),
            }))
        }

        async fn usage_of_month(&mut self, account: AccountId, month: Month) -> Result<Vec<ModelUsage>, Stopped> {
            let rows: Vec<StoredModelUsage> = sqlx::query_as(BY_MODEL_AND_PRICES)
                .bind(account.0)
                .bind(i64::from(month.first_day().0))
                .bind(i64::from(month.last_day().0))
                .fetch_all(&mut *self)
                .await?;
            Ok(rows.into_iter().map(StoredModelUsage::into_usage).collect::<Result<_, StoreError>>()?)
        }

        async fn billed_by(
            &mut self,
            account: AccountId,
            month: Month,
        ) -> Result<Option<InvoiceNumber>, Stopped> {
            let read = sqlx::query_as(BILLED_BY).bind(account.0).bind(i64::from(month.number()));
            let row: Option<StoredBilling> = read.fetch_optional(&mut *self).await?;
            let number = row.map(|row| stored_number_if_any(row.invoice_year, row.invoice_serial));
            Ok(number.transpose()?.flatten())
        }

        async fn billed_after(
            &mut self,
            after: Option<(AccountId, Month)>,
            limit: u32,
        ) -> Result<Vec<(AccountId, Month, InvoiceNumber)>, Stopped> {
            let (account, month) =
                after.map_or((i64::MIN, 0), |(account, month)| (account.0, i64::from(month.number())));
            let read = sqlx::query_as(BILLED_AFTER).bind(account).bind(month).bind(i64::from(limit));
            let rows: Vec<StoredBilling> = read.fetch_all(&mut *self).await?;
            let mut billed = Vec::new();
            for row in rows {
                if let Some(number) = stored_number_if_any(row.invoice_year, row.invoice_serial)? {
                    billed.push((AccountId(row.account_id), stored_month(row.month)?, number));
                }
            }
            Ok(billed)
        }

        async fn last_numbers(&mut self) -> Result<Vec<InvoiceNumber>, Stopped> {
            let rows: Vec<StoredSerial> = sqlx::query_as(LAST_NUMBERS).fetch_all(&mut *self).await?;
            let numbers = rows.into_iter().map(|row| stored_number(row.year, row.serial));
            Ok(numbers.collect::<Result<_, StoreError>>()?)
        }

        async fn count_unbilled(&mut self, filter: MonthFilter) -> Result<u64, Stopped> {
            let mut read = Statement::<Self>::new("SELECT COUNT(*) FROM account_months m WHERE ");
            push_unbilled!(read, filter);
            let months: i64 = read.build_query_scalar().fetch_one(&mut *self).await?;
            Ok(count(months)?)
        }

        async fn unbilled(
            &mut self,
            filter: MonthFilter,
            skipped: u64,
            wanted: u32,
        ) -> Result<Vec<UnbilledMonth>, Stopped> {
            let mut read = Statement::<Self>::new(
                "SELECT m.account_id, m.month, a.name FROM account_months m JOIN accounts a ON a.id = m.account_id WHERE ",
            );
            push_unbilled!(read, filter);
            read.push(" ORDER BY m.month DESC, m.account_id LIMIT ").push_bind(i64::from(wanted));
            read.push(" OFFSET ").push_bind(stored_count(skipped));
            let rows: Vec<StoredUnbilled> = read.build_query_as().fetch_all(&mut *self).await?;
            let mut months = Vec::new();
            for row in rows {
                let month = stored_month(row.month)?;
                // One by one: the days of a month are a range of their own in the index, and a page has few.
                let sums: StoredSums = sqlx::query_as(TOTALS)
                    .bind(row.account_id)
                    .bind(i64::from(month.first_day().0))
                    .bind(i64::from(month.last_day().0))
                    .fetch_one(&mut *self)
                    .await?;
                months.push(UnbilledMonth {
                    account: AccountId(row.account_id),
                    name: AccountName::from_stored(row.name),
                    month,
                    totals: totals(&sums)?,
                });
            }
            Ok(months)
        }
    }
}
