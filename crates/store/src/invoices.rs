//! Invoices: every deed is one transaction with its decision. What is only read comes right after its decision's commit, as it was
//! at one moment.

use crate::audit_chain::AuditChain;
use crate::both::for_both_stores;
use crate::decided::{Stopped, decided};
use crate::failure::{answer, long_answer};
use crate::invoice_issue::InvoiceIssue;
use crate::invoice_list::InvoiceList;
use crate::invoice_months::InvoiceMonths;
use crate::invoice_rows::InvoiceRows;
use crate::postgres::PostgresStore;
use crate::sqlite::SqliteStore;
use crate::transaction::BeginWriting;
use crate::{
    CreditOrder, InvoicePage, InvoiceQuery, InvoiceRecord, Invoices, IssueOrder, Issued, MonthToBill,
    PaymentDeed, Render, StoreError,
};
use chancery_domain::{AccountId, InvoiceNumber, InvoiceState, InvoiceTerms, ModelUsage, Month};
use chancery_policy::{ManageInvoices, Permit, ReadInvoices};

/// How a transaction begins whose statements all see the same moment.
trait BeginReading {
    const BEGIN_READING: &'static str;
}

impl BeginReading for SqliteStore {
    const BEGIN_READING: &'static str = "BEGIN";
}

impl BeginReading for PostgresStore {
    const BEGIN_READING: &'static str = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY";
}

/// Notes a decision that is only about reading.
macro_rules! note {
    ($store:expr, $permit:expr) => {{
        let row = [$permit.to_audit_row()];
        let noted: Result<(), StoreError> =
            decided!($store, |transaction| transaction.link($store.lease.writer, &row));
        noted?
    }};
}

/// Reads several things as they are at one moment.
macro_rules! reading {
    ($pool:expr, $answer:ident, |$moment:ident| $read:expr) => {{
        let read = async {
            let mut connection = $pool.acquire().await?;
            let mut $moment = sqlx::Connection::begin_with(&mut *connection, Self::BEGIN_READING).await?;
            match $read.await {
                Ok(found) => $moment.commit().await.map(|()| Ok(found)),
                Err(Stopped::Refused(error)) => $moment.rollback().await.map(|()| Err(error)),
                Err(Stopped::Database(error)) => Err(error),
            }
        };
        $answer(read).await?
    }};
}

/// PostgreSQL keeps no text with one.
fn without_nul(terms: &InvoiceTerms, reason: &str) -> Result<(), StoreError> {
    let seller = &terms.seller;
    let tax = terms.tax.as_ref().map_or("", |(name, _)| name.as_str());
    let texts = [
        ("the firm's name", seller.name.as_str()),
        ("the letterhead", seller.letterhead.as_str()),
        ("how to pay", seller.payment.as_str()),
        ("the tax's name", tax),
        ("the reason", reason),
    ];
    match texts.into_iter().find(|(_, text)| text.contains('\0')) {
        Some((what, _)) => Err(StoreError::NulCharacter { what }),
        None => Ok(()),
    }
}

for_both_stores! {
    impl Invoices {
        async fn list_invoices(
            &self,
            permit: Permit<ReadInvoices>,
            query: &InvoiceQuery,
        ) -> Result<InvoicePage, StoreError> {
            note!(self, permit);
            reading!(self.long_reader, long_answer, |moment| moment.invoice_page(query))
        }

        async fn month_to_bill(
            &self,
            permit: Permit<ReadInvoices>,
            account: AccountId,
            month: Month,
        ) -> Result<Option<MonthToBill>, StoreError> {
            note!(self, permit);
            reading!(self.long_reader, long_answer, |moment| async {
                let Some(buyer) = moment.buyer(account).await? else { return Ok(None) };
                let usage = moment.usage_of_month(account, month).await?;
                let invoice = moment.billed_by(account, month).await?;
                Ok(Some(MonthToBill { buyer, month, usage, invoice }))
            })
        }

        async fn read_invoice(
            &self,
            permit: Permit<ReadInvoices>,
            number: InvoiceNumber,
        ) -> Result<Option<InvoiceRecord>, StoreError> {
            note!(self, permit);
            reading!(self.reader, answer, |moment| moment.invoice(number))
        }

        async fn read_invoice_document(
            &self,
            permit: Permit<ReadInvoices>,
            number: InvoiceNumber,
        ) -> Result<Option<Vec<u8>>, StoreError> {
            note!(self, permit);
            reading!(self.reader, answer, |moment| moment.document(number))
        }

        async fn issue_invoice(
            &self,
            permit: Permit<ManageInvoices>,
            order: &IssueOrder,
            render: Render<'_>,
        ) -> Result<Issued, StoreError> {
            without_nul(&order.terms, "")?;
            let row = [permit.to_audit_row()];
            decided!(self, |transaction| async {
                transaction.link(self.lease.writer, &row).await?;
                transaction.issue(permit.asked(), order, render).await
            })
        }

        async fn credit_invoice(
            &self,
            permit: Permit<ManageInvoices>,
            order: &CreditOrder,
            render: Render<'_>,
        ) -> Result<InvoiceNumber, StoreError> {
            without_nul(&order.terms, &order.reason)?;
            let row = [permit.to_audit_row()];
            decided!(self, |transaction| async {
                transaction.link(self.lease.writer, &row).await?;
                transaction.credit(permit.asked(), order, render).await
            })
        }

        async fn note_payment(
            &self,
            permit: Permit<ManageInvoices>,
            number: InvoiceNumber,
            deed: PaymentDeed,
        ) -> Result<InvoiceState, StoreError> {
            let row = [permit.to_audit_row()];
            decided!(self, |transaction| async {
                transaction.link(self.lease.writer, &row).await?;
                transaction.pay(permit.asked(), number, deed).await
            })
        }

        async fn issued_invoices(
            &self,
            after: Option<InvoiceNumber>,
            limit: u32,
        ) -> Result<Vec<InvoiceRecord>, StoreError> {
            reading!(self.long_reader, long_answer, |moment| moment.invoices_after(after, limit))
        }

        async fn issued_document(&self, number: InvoiceNumber) -> Result<Option<Vec<u8>>, StoreError> {
            reading!(self.long_reader, long_answer, |moment| moment.document(number))
        }

        async fn last_invoice_numbers(&self) -> Result<Vec<InvoiceNumber>, StoreError> {
            reading!(self.reader, answer, |moment| moment.last_numbers())
        }

        async fn billed_months(
            &self,
            after: Option<(AccountId, Month)>,
            limit: u32,
        ) -> Result<Vec<(AccountId, Month, InvoiceNumber)>, StoreError> {
            reading!(self.long_reader, long_answer, |moment| moment.billed_after(after, limit))
        }

        async fn month_usage(&self, account: AccountId, month: Month) -> Result<Vec<ModelUsage>, StoreError> {
            reading!(self.long_reader, long_answer, |moment| moment.usage_of_month(account, month))
        }
    }
}
