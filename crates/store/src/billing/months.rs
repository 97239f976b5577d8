//! Accounts' usage by month, and the invoice that bills it. All of it comes from the sums by day.

use crate::billing::rows::{read_month, read_number};
use crate::db::{Conn, FromRow, Query, Row, Statement, query};
use crate::ledger::batch::to_db_count;
use crate::{BillingContact, UnbilledMonth, UsageTotals};
use chancery_domain::{AccountId, AccountName, Buyer, InvoiceNumber, ModelUsage, Month, Prices};

const BUYER: &str = "SELECT id, name, billing_address, billing_email FROM accounts WHERE id = $1";

/// Sums are cast back to 64 bits, which fails on overflow.
const BY_MODEL_AND_PRICES: &str = "SELECT model, input_price_nanos, cached_price_nanos, output_price_nanos, \
    CAST(COALESCE(SUM(requests), 0) AS BIGINT) AS requests, \
    CAST(COALESCE(SUM(input_tokens), 0) AS BIGINT) AS input_tokens, \
    CAST(COALESCE(SUM(cached_input_tokens), 0) AS BIGINT) AS cached_input_tokens, \
    CAST(COALESCE(SUM(output_tokens), 0) AS BIGINT) AS output_tokens, \
    CAST(COALESCE(SUM(cost_nanos), 0) AS BIGINT) AS cost_nanos \
    FROM daily_usage WHERE account_id = $1 AND day >= $2 AND day <= $3 \
    GROUP BY model, input_price_nanos, cached_price_nanos, output_price_nanos \
    ORDER BY model, input_price_nanos, cached_price_nanos, output_price_nanos";
const TOTALS: &str = "SELECT CAST(COALESCE(SUM(requests), 0) AS BIGINT) AS requests, \
    CAST(COALESCE(SUM(input_tokens), 0) AS BIGINT) AS input_tokens, \
    CAST(COALESCE(SUM(cached_input_tokens), 0) AS BIGINT) AS cached_input_tokens, \
    CAST(COALESCE(SUM(output_tokens), 0) AS BIGINT) AS output_tokens, \
    CAST(COALESCE(SUM(cost_nanos), 0) AS BIGINT) AS cost_nanos \
    FROM daily_usage WHERE account_id = $1 AND day >= $2 AND day <= $3";

const INVOICE_OF_MONTH: &str = "SELECT account_id, month, invoice_year, invoice_serial FROM billing_months WHERE account_id = $1 AND month = $2";
const BILLED_AFTER: &str = "SELECT account_id, month, invoice_year, invoice_serial FROM billing_months \
    WHERE (account_id, month) > ($1, $2) AND invoice_year IS NOT NULL ORDER BY account_id, month LIMIT $3";
const LAST_NUMBERS: &str = "SELECT year, serial FROM invoice_serials WHERE serial > 0 ORDER BY year";

impl FromRow for Buyer {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let BillingContact { address, email } = BillingContact::from_row(row)?;
        let (account, name) = (AccountId(row.get("id")?), AccountName::from_stored(row.get("name")?));
        Ok(Self { account, name, address, email })
    }
}

impl FromRow for ModelUsage {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let UsageTotals { requests, input_tokens, cached_input_tokens, output_tokens, cost } =
            UsageTotals::from_row(row)?;
        let (model, prices) = (row.get("model")?, Prices::from_row(row)?);
        Ok(Self { model, prices, requests, input_tokens, cached_input_tokens, output_tokens, cost })
    }
}

/// An account's month and the invoice that bills it, if any.
pub(crate) struct AccountMonth {
    pub(crate) account: AccountId,
    pub(crate) month: Month,
    pub(crate) invoice: Option<InvoiceNumber>,
}

impl FromRow for AccountMonth {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let invoice = read_number(row, ["invoice_year", "invoice_serial"])?;
        Ok(Self { account: AccountId(row.get("account_id")?), month: read_month(row)?, invoice })
    }
}

/// Leaves the totals at zero.
impl FromRow for UnbilledMonth {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let (account, name) = (AccountId(row.get("account_id")?), AccountName::from_stored(row.get("name")?));
        Ok(Self { account, name, month: read_month(row)?, totals: UsageTotals::default() })
    }
}

/// Filters months by account and year; `None` matches all.
#[derive(Clone, Copy)]
pub(crate) struct MonthFilter {
    pub(crate) account: Option<AccountId>,
    pub(crate) year: Option<i16>,
}

impl MonthFilter {
    /// Adds the conditions for unbilled months `m`.
    fn push_unbilled_filter(self, statement: &mut Statement<'_>) {
        statement.push("m.invoice_year IS NULL");
        if let Some(account) = self.account {
            statement.push(" AND m.account_id = ").push_bind(account.0);
        }
        if let Some(year) = self.year {
            let january = i64::from(year) * 12;
            statement.push(" AND m.month >= ").push_bind(january);
            statement.push(" AND m.month < ").push_bind(january + 12);
        }
    }
}

/// The account as shown on documents.
pub(crate) async fn buyer(conn: &mut Conn<'_>, account: AccountId) -> Result<Option<Buyer>, sqlx::Error> {
    query(BUYER).bind(account.0).fetch_optional(conn).await
}

/// Usage by model and prices.
pub(crate) fn usage<'q>(account: AccountId, month: Month) -> Query<'q> {
    query(BY_MODEL_AND_PRICES)
        .bind(account.0)
        .bind(i64::from(month.first_day().0))
        .bind(i64::from(month.last_day().0))
}

/// The invoice that bills the month, if any.
pub(crate) async fn invoice_of_month(
    conn: &mut Conn<'_>,
    account: AccountId,
    month: Month,
) -> Result<Option<InvoiceNumber>, sqlx::Error> {
    let read = query(INVOICE_OF_MONTH).bind(account.0).bind(i64::from(month.number()));
    let found: Option<AccountMonth> = read.fetch_optional(conn).await?;
    Ok(found.and_then(|found| found.invoice))
}

pub(crate) fn billed_after<'q>(after: Option<(AccountId, Month)>, limit: u32) -> Query<'q> {
    let (account, month) =
        after.map_or((i64::MIN, 0), |(account, month)| (account.0, i64::from(month.number())));
    query(BILLED_AFTER).bind(account).bind(month).bind(i64::from(limit))
}

pub(crate) fn last_numbers<'q>() -> Query<'q> {
    query(LAST_NUMBERS)
}

pub(crate) async fn count_unbilled(conn: &mut Conn<'_>, filter: MonthFilter) -> Result<u64, sqlx::Error> {
    let mut read = Statement::new("SELECT COUNT(*) FROM billing_months m WHERE ");
    filter.push_unbilled_filter(&mut read);
    read.build().fetch_one(conn).await
}

/// Newest month first, then by account.
pub(crate) async fn unbilled(
    conn: &mut Conn<'_>,
    filter: MonthFilter,
    offset: u64,
    limit: u32,
) -> Result<Vec<UnbilledMonth>, sqlx::Error> {
    let mut read = Statement::new(
        "SELECT m.account_id, m.month, a.name FROM billing_months m JOIN accounts a ON a.id = m.account_id WHERE ",
    );
    filter.push_unbilled_filter(&mut read);
    read.push(" ORDER BY m.month DESC, m.account_id LIMIT ").push_bind(i64::from(limit));
    read.push(" OFFSET ").push_bind(to_db_count(offset));
    let mut months: Vec<UnbilledMonth> = read.build().fetch_all(conn).await?;
    for UnbilledMonth { account, month, totals, .. } in &mut months {
        // One query per month: its days are one index range, and a page has few months.
        let sum = query(TOTALS)
            .bind(account.0)
            .bind(i64::from(month.first_day().0))
            .bind(i64::from(month.last_day().0));
        *totals = sum.fetch_one(conn).await?;
    }
    Ok(months)
}
