//! Lists invoices with their totals, and months that are not invoiced yet.

use crate::billing::months::{MonthFilter, count_unbilled, unbilled};
use crate::billing::rows::read_currency;
use crate::db::{FromRow, QueryError, Row, Statement, Tx, from_row};
use crate::ledger::batch::to_db_count;
use crate::{INVOICES_PER_PAGE, InvoicePage, InvoiceQuery, InvoiceTotals};
use chancery_domain::InvoiceState;

from_row!(InvoiceTotals { currency: read_currency, billed, outstanding, overdue });

/// With the number of documents in the sums.
impl FromRow for (InvoiceTotals, u64) {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        Ok((InvoiceTotals::from_row(row)?, row.get("documents")?))
    }
}

/// The conditions on `invoices`.
fn push_filter(statement: &mut Statement, query: &InvoiceQuery) {
    let mut before = " WHERE ";
    if let Some(account) = query.account {
        statement.push(before).push("account_id = ").push_bind(account.0);
        before = " AND ";
    }
    if let Some(state) = query.state {
        // Credit notes are not payable, so a state filter leaves them out.
        statement.push(before).push("kind = 'invoice' AND state = ").push_bind(state.as_str());
        before = " AND ";
    }
    if let Some(year) = query.year {
        statement.push(before).push("year = ").push_bind(i64::from(year));
    }
}

pub(crate) fn page(tx: &mut Tx<'_>, query: &InvoiceQuery) -> Result<InvoicePage, QueryError> {
    let offset = u64::from(query.page.saturating_sub(1)) * u64::from(INVOICES_PER_PAGE);
    let mut page = InvoicePage::default();
    if query.state != Some(InvoiceState::Draft) {
        (page.sums, page.total) = sums(tx, query)?;
        let mut read = Statement::new("SELECT * FROM invoices");
        push_filter(&mut read, query);
        read.push(" ORDER BY year DESC, serial DESC LIMIT ").push_bind(i64::from(INVOICES_PER_PAGE));
        read.push(" OFFSET ").push_bind(to_db_count(offset));
        page.invoices = read.build().fetch_all(tx)?;
    }
    let (offset, limit) = match query.state {
        Some(InvoiceState::Draft) => (offset, INVOICES_PER_PAGE),
        None if query.page <= 1 => (0, INVOICES_PER_PAGE),
        None => (0, 0),
        Some(_) => return Ok(page),
    };
    let months = MonthFilter { account: query.account, year: query.year };
    page.unbilled_total = count_unbilled(tx, months)?;
    if limit > 0 {
        page.unbilled = unbilled(tx, months, offset, limit)?;
    }
    Ok(page)
}

/// Totals by currency, and the number of documents.
fn sums(tx: &mut Tx<'_>, query: &InvoiceQuery) -> Result<(Vec<InvoiceTotals>, u64), QueryError> {
    // Credit notes are already included in `credited_total`.
    let mut read = Statement::new(
        "SELECT currency, COUNT(*) AS documents, \
         CAST(SUM(CASE WHEN kind = 'invoice' AND state <> 'void' THEN total_minor - credited_total ELSE 0 END) \
             AS BIGINT) AS billed, \
         CAST(SUM(CASE WHEN kind = 'invoice' AND state = 'issued' THEN total_minor - credited_total ELSE 0 END) \
             AS BIGINT) AS outstanding, \
         CAST(SUM(CASE WHEN kind = 'invoice' AND state = 'issued' AND due_day < ",
    );
    read.push_bind(i64::from(query.today.0));
    read.push(" THEN total_minor - credited_total ELSE 0 END) AS BIGINT) AS overdue FROM invoices");
    push_filter(&mut read, query);
    read.push(" GROUP BY currency ORDER BY currency");
    let (sums, documents): (_, Vec<u64>) = read.build().fetch_all(tx)?.into_iter().unzip();
    Ok((sums, documents.into_iter().sum()))
}
