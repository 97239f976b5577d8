//! The list of invoices, with what they come to, and of months that are still to be invoiced.

use crate::audit::step::Stopped;
use crate::billing::months::{InvoiceMonths, MonthFilter};
use crate::billing::rows::{StoredInvoice, corrupt};
use crate::clients::rows::count;
use crate::db::both::{Statement, for_both_connections, stored_row};
use crate::ledger::batch::stored_count;
use crate::{INVOICES_PER_PAGE, InvoicePage, InvoiceQuery, InvoiceSums, StoreError};
use chancery_domain::{InvoiceState, MinorUnits};

stored_row! {
    struct StoredInvoiceSums {
        currency: String,
        documents: i64,
        billed: i64,
        outstanding: i64,
        overdue: i64,
    }
}

impl StoredInvoiceSums {
    fn into_sums(self) -> Result<InvoiceSums, StoreError> {
        Ok(InvoiceSums {
            currency: self.currency.parse().map_err(|_| corrupt("an invoice's currency", &self.currency))?,
            billed: MinorUnits(self.billed),
            outstanding: MinorUnits(self.outstanding),
            overdue: MinorUnits(self.overdue),
        })
    }
}

/// The conditions on `invoices`.
macro_rules! push_filter {
    ($statement:expr, $query:expr) => {{
        let InvoiceQuery { account, state, year, .. } = $query;
        let mut before = " WHERE ";
        if let Some(account) = account {
            $statement.push(before).push("account_id = ").push_bind(account.0);
            before = " AND ";
        }
        if let Some(state) = state {
            // A credit note has no state that anybody looks for: nobody pays it.
            $statement.push(before).push("kind = 'invoice' AND state = ").push_bind(state.as_str());
            before = " AND ";
        }
        if let Some(year) = year {
            $statement.push(before).push("year = ").push_bind(i64::from(*year));
        }
    }};
}

#[async_trait::async_trait]
pub(crate) trait InvoiceList {
    async fn invoice_page(&mut self, query: &InvoiceQuery) -> Result<InvoicePage, Stopped>;

    /// What they come to by currency, and how many there are of them.
    async fn invoice_sums(&mut self, query: &InvoiceQuery) -> Result<(Vec<InvoiceSums>, u64), Stopped>;
}

for_both_connections! {
    impl InvoiceList {
        async fn invoice_page(&mut self, query: &InvoiceQuery) -> Result<InvoicePage, Stopped> {
            let skipped = u64::from(query.page.saturating_sub(1)) * u64::from(INVOICES_PER_PAGE);
            let mut page = InvoicePage::default();
            if query.state != Some(InvoiceState::Draft) {
                (page.sums, page.total) = self.invoice_sums(query).await?;
                let mut read = Statement::<Self>::new("SELECT * FROM invoices");
                push_filter!(read, query);
                read.push(" ORDER BY year DESC, serial DESC LIMIT ").push_bind(i64::from(INVOICES_PER_PAGE));
                read.push(" OFFSET ").push_bind(stored_count(skipped));
                let rows: Vec<StoredInvoice> = read.build_query_as().fetch_all(&mut *self).await?;
                page.invoices = rows.into_iter().map(StoredInvoice::into_listed).collect::<Result<_, _>>()?;
            }
            let (skipped, wanted) = match query.state {
                Some(InvoiceState::Draft) => (skipped, INVOICES_PER_PAGE),
                None if query.page <= 1 => (0, INVOICES_PER_PAGE),
                None => (0, 0),
                Some(_) => return Ok(page),
            };
            let months = MonthFilter { account: query.account, year: query.year };
            page.unbilled_total = self.count_unbilled(months).await?;
            if wanted > 0 {
                page.unbilled = self.unbilled(months, skipped, wanted).await?;
            }
            Ok(page)
        }

        async fn invoice_sums(&mut self, query: &InvoiceQuery) -> Result<(Vec<InvoiceSums>, u64), Stopped> {
            // Credit notes are in what they have credited.
            let mut read = Statement::<Self>::new(
                "SELECT currency, COUNT(*) AS documents, \
                 CAST(SUM(CASE WHEN kind = 'invoice' AND state <> 'void' THEN total_minor - credited_total ELSE 0 END) \
                     AS BIGINT) AS billed, \
                 CAST(SUM(CASE WHEN kind = 'invoice' AND state = 'issued' THEN total_minor - credited_total ELSE 0 END) \
                     AS BIGINT) AS outstanding, \
                 CAST(SUM(CASE WHEN kind = 'invoice' AND state = 'issued' AND due_day < ",
            );
            read.push_bind(i64::from(query.today.0));
            read.push(" THEN total_minor - credited_total ELSE 0 END) AS BIGINT) AS overdue FROM invoices");
            push_filter!(read, query);
            read.push(" GROUP BY currency ORDER BY currency");
            let rows: Vec<StoredInvoiceSums> = read.build_query_as().fetch_all(&mut *self).await?;
            let (mut sums, mut documents) = (Vec::new(), 0);
            for row in rows {
                documents += count(row.documents)?;
                sums.push(row.into_sums()?);
            }
            Ok((sums, documents))
        }
    }
}
