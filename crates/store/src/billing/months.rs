//! Accounts' usage by month, and the invoice that bills it. All of it comes from the sums by day.

use crate::billing::rows::read_number;
use crate::db::{FromRow, Query, QueryError, Row, Statement, Tx, from_row, query};
use crate::ledger::batch::to_db_count;
use crate::{UnbilledMonth, UsageTotals};
use chancery_domain::{AccountId, Buyer, InvoiceNumber, ModelUsage, Month, Prices};

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

from_row!(Buyer { account: "id", name, address: "billing_address", email: "billing_email" });

from_row!(ModelUsage {
    model,
    prices: Prices::from_row,
    requests,
    input_tokens,
    cached_input_tokens,
    output_tokens,
    cost: "cost_nanos"
});

/// An account's month and the invoice that bills it, if any.
pub(crate) struct AccountMonth {
    pub(crate) account: AccountId,
    pub(crate) month: Month,
    pub(crate) invoice: Option<InvoiceNumber>,
}

impl FromRow for AccountMonth {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        let invoice = read_number(row, ["invoice_year", "invoice_serial"])?;
        Ok(Self { account: row.get("account_id")?, month: row.get("month")?, invoice })
    }
}

/// Leaves the totals at zero.
impl FromRow for UnbilledMonth {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        let (account, name, month) = (row.get("account_id")?, row.get("name")?, row.get("month")?);
        Ok(Self { account, name, month, totals: UsageTotals::default() })
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
    fn push_unbilled_filter(self, statement: &mut Statement) {
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
pub(crate) fn buyer(tx: &mut Tx<'_>, account: AccountId) -> Result<Option<Buyer>, QueryError> {
    query(BUYER).bind(account.0).fetch_optional(tx)
}

/// Usage by model and prices.
pub(crate) fn usage(account: AccountId, month: Month) -> Query {
    query(BY_MODEL_AND_PRICES)
        .bind(account.0)
        .bind(i64::from(month.first_day().0))
        .bind(i64::from(month.last_day().0))
}

/// The invoice that bills the month, if any.
pub(crate) fn invoice_of_month(
    tx: &mut Tx<'_>,
    account: AccountId,
    month: Month,
) -> Result<Option<InvoiceNumber>, QueryError> {
    let read = query(INVOICE_OF_MONTH).bind(account.0).bind(i64::from(month.number()));
    let found: Option<AccountMonth> = read.fetch_optional(tx)?;
    Ok(found.and_then(|found| found.invoice))
}

pub(crate) fn billed_after(after: Option<(AccountId, Month)>, limit: u32) -> Query {
    let (account, month) =
        after.map_or((i64::MIN, 0), |(account, month)| (account.0, i64::from(month.number())));
    query(BILLED_AFTER).bind(account).bind(month).bind(i64::from(limit))
}

pub(crate) fn last_numbers() -> Query {
    query(LAST_NUMBERS)
}

pub(crate) fn count_unbilled(tx: &mut Tx<'_>, filter: MonthFilter) -> Result<u64, QueryError> {
    let mut read = Statement::new("SELECT COUNT(*) FROM billing_months m WHERE ");
    filter.push_unbilled_filter(&mut read);
    read.build().fetch_one(tx)
}

/// Newest month first, then by account.
pub(crate) fn unbilled(
    tx: &mut Tx<'_>,
    filter: MonthFilter,
    offset: u64,
    limit: u32,
) -> Result<Vec<UnbilledMonth>, QueryError> {
    let mut read = Statement::new(
        "SELECT m.account_id, m.month, a.name FROM billing_months m JOIN accounts a ON a.id = m.account_id WHERE ",
    );
    filter.push_unbilled_filter(&mut read);
    read.push(" ORDER BY m.month DESC, m.account_id LIMIT ").push_bind(i64::from(limit));
    read.push(" OFFSET ").push_bind(to_db_count(offset));
    let mut months: Vec<UnbilledMonth> = read.build().fetch_all(tx)?;
    for UnbilledMonth { account, month, totals, .. } in &mut months {
        // One query per month: its days are one index range, and a page has few months.
        let sum = query(TOTALS)
            .bind(account.0)
            .bind(i64::from(month.first_day().0))
            .bind(i64::from(month.last_day().0));
        *totals = sum.fetch_one(tx)?;
    }
    Ok(months)
}
