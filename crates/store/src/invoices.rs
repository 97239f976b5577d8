//! The queries about invoices.

use crate::StoreError;
use crate::billing_traits::*;
use crate::both::for_both_stores;
use chancery_domain::*;
use chancery_policy::*;

for_both_stores! {
    impl Invoices {
    async fn list_invoices(
        &self,
        permit: Permit<ReadInvoices>,
        query: &InvoiceQuery,
    ) -> Result<InvoicePage, StoreError> {
            Err(StoreError::Unavailable("this is still to be written".to_owned()))
        }
    async fn month_to_bill(
        &self,
        permit: Permit<ReadInvoices>,
        account: AccountId,
        month: Month,
    ) -> Result<Option<MonthToBill>, StoreError> {
            Err(StoreError::Unavailable("this is still to be written".to_owned()))
        }
    async fn read_invoice(
        &self,
        permit: Permit<ReadInvoices>,
        number: InvoiceNumber,
    ) -> Result<Option<InvoiceRecord>, StoreError> {
            Err(StoreError::Unavailable("this is still to be written".to_owned()))
        }
    async fn read_invoice_document(
        &self,
        permit: Permit<ReadInvoices>,
        number: InvoiceNumber,
    ) -> Result<Option<Vec<u8>>, StoreError> {
            Err(StoreError::Unavailable("this is still to be written".to_owned()))
        }
    async fn issue_invoice(
        &self,
        permit: Permit<ManageInvoices>,
        order: &IssueOrder,
        render: Render<'_>,
    ) -> Result<Issued, StoreError> {
            Err(StoreError::Unavailable("this is still to be written".to_owned()))
        }
    async fn credit_invoice(
        &self,
        permit: Permit<ManageInvoices>,
        order: &CreditOrder,
        render: Render<'_>,
    ) -> Result<InvoiceNumber, StoreError> {
            Err(StoreError::Unavailable("this is still to be written".to_owned()))
        }
    async fn note_payment(
        &self,
        permit: Permit<ManageInvoices>,
        number: InvoiceNumber,
        deed: PaymentDeed,
    ) -> Result<InvoiceState, StoreError> {
            Err(StoreError::Unavailable("this is still to be written".to_owned()))
        }
    async fn issued_invoices(
        &self,
        after: Option<InvoiceNumber>,
        limit: u32,
    ) -> Result<Vec<InvoiceRecord>, StoreError> {
            Err(StoreError::Unavailable("this is still to be written".to_owned()))
        }
    async fn issued_document(&self, number: InvoiceNumber) -> Result<Option<Vec<u8>>, StoreError> {
            Err(StoreError::Unavailable("this is still to be written".to_owned()))
        }
    async fn last_invoice_numbers(&self) -> Result<Vec<InvoiceNumber>, StoreError> {
            Err(StoreError::Unavailable("this is still to be written".to_owned()))
        }
    async fn billed_months(
        &self,
        after: Option<(AccountId, Month)>,
        limit: u32,
    ) -> Result<Vec<(AccountId, Month, InvoiceNumber)>, StoreError> {
            Err(StoreError::Unavailable("this is still to be written".to_owned()))
        }
    async fn month_usage(&self, account: AccountId, month: Month) -> Result<Vec<ModelUsage>, StoreError> {
            Err(StoreError::Unavailable("this is still to be written".to_owned()))
        }
}
}
