//! The list of invoices, with what they come to, and of months that are still to be invoiced.

use crate::billing::months::{MonthFilter, count_unbilled, unbilled};
use crate::billing::rows::read_currency;
use crate::db::{Conn, FromRow, Row, Statement};
use crate::ledger::batch::stored_count;
use crate::{INVOICES_PER_PAGE, InvoicePage, InvoiceQuery, InvoiceSums};
use chancery_domain::{InvoiceState, MinorUnits};

impl FromRow for InvoiceSums {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            currency: read_currency(row)?,
            billed: MinorUnits(row.get("billed")?),
            outstanding: MinorUnits(row.get("outstanding")?),
            overdue: MinorUnits(row.get("overdue")?),
        })
    }
}

/// With how many documents they are the sums of.
impl FromRow for (InvoiceSums, u64) {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok((InvoiceSums::from_row(row)?, row.count("documents")?))
    }
}

/// The conditions on `invoices`.
fn push_filter(statement: &mut Statement<'_>, query: &InvoiceQuery) {
    let mut before = " WHERE ";
    if let Some(account) = query.account {
        statement.push(before).push("account_id = ").push_bind(account.0);
        before = " AND ";
    }
    if let Some(state) = query.state {
        // A credit note has no state that anybody looks for: nobody pays it.
        statement.push(before).push("kind = 'invoice' AND state = ").push_bind(state.as_str());
        before = " AND ";
    }
    if let Some(year) = query.year {
        statement.push(before).push("year = ").push_bind(i64::from(year));
    }
}

pub(crate) async fn page(conn: &mut Conn<'_>, query: &InvoiceQuery) -> Result<InvoicePage, sqlx::Error> {
    let skipped = u64::from(query.page.saturating_sub(1)) * u64::from(INVOICES_PER_PAGE);
    let mut page = InvoicePage::default();
    if query.state != Some(InvoiceState::Draft) {
        (page.sums, page.total) = sums(conn, query).await?;
        let mut read = Statement::new("SELECT * FROM invoices");
        push_filter(&mut read, query);
        read.push(" ORDER BY year DESC, serial DESC LIMIT ").push_bind(i64::from(INVOICES_PER_PAGE));
        read.push(" OFFSET ").push_bind(stored_count(skipped));
        page.invoices = read.build().fetch_all(conn).await?;
    }
    let (skipped, limit) = match query.state {
        Some(InvoiceState::Draft) => (skipped, INVOICES_PER_PAGE),
        None if query.page <= 1 => (0, INVOICES_PER_PAGE),
        None => (0, 0),
        Some(_) => return Ok(page),
    };
    let months = MonthFilter { account: query.account, year: query.year };
    page.unbilled_total = count_unbilled(conn, months).await?;
    if limit > 0 {
        page.unbilled = unbilled(conn, months, skipped, limit).await?;
    }
    Ok(page)
}

/// What they come to by currency, and how many there are of them.
async fn sums(conn: &mut Conn<'_>, query: &InvoiceQuery) -> Result<(Vec<InvoiceSums>, u64), sqlx::Error> {
    // Credit notes are in what they have credited.
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
    let (sums, documents): (_, Vec<u64>) = read.build().fetch_all(conn).await?.into_iter().unzip();
    Ok((sums, documents.into_iter().sum()))
}
