//! Invoices: every deed is one transaction with its decision. What is only read comes right after its decision's commit, as it was
//! at one moment.

use crate::audit::chain::AuditChain;
use crate::audit::step::{decided, note, reading};
use crate::billing::issue::InvoiceIssue;
use crate::billing::list::InvoiceList;
use crate::billing::months::InvoiceMonths;
use crate::billing::rows::InvoiceRows;
use crate::db::both::for_both_stores;
use crate::db::error_codes::{answer, long_answer};
use crate::db::transaction::{BeginReading, BeginWriting};
use crate::{
    CreditOrder, InvoicePage, InvoiceQuery, InvoiceRecord, Invoices, IssueOrder, Issued, MonthToBill,
    PaymentDeed, Render, StoreError,
};
use chancery_domain::{AccountId, InvoiceNumber, InvoiceState, InvoiceTerms, ModelUsage, Month};
use chancery_policy::{ManageInvoices, Permit, ReadInvoices};

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

/// What a sum means that is too large, for whoever asked for invoices and not for days.
fn in_terms_of(month: Month) -> impl FnOnce(StoreError) -> StoreError {
    move |error| match error {
        StoreError::SumTooLarge => StoreError::MonthTooLarge { month },
        error => error,
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
            let page = async { reading!(self.long_reader, long_answer, |moment| moment.invoice_page(query)) };
            page.await.map_err(|error| match error {
                StoreError::SumTooLarge => StoreError::InvoicesTooLarge,
                error => error,
            })
        }

        async fn month_to_bill(
            &self,
            permit: Permit<ReadInvoices>,
            account: AccountId,
            month: Month,
        ) -> Result<Option<MonthToBill>, StoreError> {
            note!(self, permit);
            let found = async {
                reading!(self.long_reader, long_answer, |moment| async {
                    let Some(buyer) = moment.buyer(account).await? else { return Ok(None) };
                    let usage = moment.usage_of_month(account, month).await?;
                    let invoice = moment.billed_by(account, month).await?;
                    Ok(Some(MonthToBill { buyer, month, usage, invoice }))
                })
            };
            found.await.map_err(in_terms_of(month))
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
            let issued = async {
                decided!(self, |transaction| async {
                    transaction.link(self.lease.writer, &row).await?;
                    transaction.issue(permit.asked(), order, render).await
                })
            };
            issued.await.map_err(in_terms_of(order.month))
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
            let usage =
                async { reading!(self.long_reader, long_answer, |moment| moment.usage_of_month(account, month)) };
            usage.await.map_err(in_terms_of(month))
        }
    }
}
