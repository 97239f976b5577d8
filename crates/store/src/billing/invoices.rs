//! Invoices for people with a permit. Every change is one transaction with its decision. Reads run right after the
//! commit of their decision, each from one snapshot, which checks the principal again.

use crate::DbError;
use crate::audit::principal::ensure_principal_unchanged;
use crate::audit::step::AuditedSteps;
use crate::billing::months::{self, AccountMonth};
use crate::billing::{issue, list, rows};
use crate::db::Db;
use crate::{
    BillableMonth, CreditRequest, InvoiceError, InvoicePage, InvoiceQuery, InvoiceRecord, IssueOutcome,
    IssueRequest, PaymentChange, RenderInvoice,
};
use chancery_domain::{AccountId, InvoiceNumber, InvoiceState, InvoiceTerms, ModelUsage, Month};
use chancery_policy::{ManageInvoices, Permit, ReadInvoices};

/// PostgreSQL cannot store text with a NUL character.
fn ensure_no_nul(terms: &InvoiceTerms, reason: &str) -> Result<(), InvoiceError> {
    let seller = &terms.seller;
    let tax = terms.tax.as_ref().map_or("", |(name, _)| name.as_str());
    let texts = [
        ("the firm's name", seller.name.as_str()),
        ("the letterhead", seller.letterhead.as_str()),
        ("the payment instructions", seller.payment.as_str()),
        ("the tax name", tax),
        ("the reason", reason),
    ];
    match texts.into_iter().find(|(_, text)| text.contains('\0')) {
        Some((what, _)) => Err(DbError::NulCharacter { what }.into()),
        None => Ok(()),
    }
}

/// Maps an overflow to the month, because callers asked for invoices and not for sums by day.
fn map_sum_too_large(month: Month) -> impl FnOnce(InvoiceError) -> InvoiceError {
    move |error| match error {
        InvoiceError::Database(DbError::SumTooLarge) => InvoiceError::MonthTooLarge { month },
        error => error,
    }
}

/// Invoices and credit notes.
#[derive(Clone)]
pub struct Invoices {
    pub(crate) db: Db,
    pub(crate) audited: AuditedSteps,
}

impl Invoices {
    /// The last assigned number of each year.
    pub async fn last_invoice_numbers(&self) -> Result<Vec<InvoiceNumber>, InvoiceError> {
        Ok(self.db.fetch_all(months::last_numbers()).await?)
    }

    pub async fn list_invoices(
        &self,
        permit: Permit<ReadInvoices>,
        query: &InvoiceQuery,
    ) -> Result<InvoicePage, InvoiceError> {
        self.audited.record(vec![permit.to_audit_row()]).await?;
        let (by, query) = (permit.by(), query.clone());
        let page = self.db.read_report(move |tx| {
            ensure_principal_unchanged::<DbError>(tx, by)?;
            Ok(list::page(tx, &query)?)
        });
        page.await.map_err(|error| match error {
            DbError::SumTooLarge => InvoiceError::InvoicesTooLarge,
            error => error.into(),
        })
    }

    /// `None` if there is no such account. A month without usage has an empty list.
    pub async fn billable_month(
        &self,
        permit: Permit<ReadInvoices>,
        account: AccountId,
        month: Month,
    ) -> Result<Option<BillableMonth>, InvoiceError> {
        self.audited.record(vec![permit.to_audit_row()]).await?;
        let found = self.db.read_report(move |tx| {
            ensure_principal_unchanged::<InvoiceError>(tx, permit.by())?;
            let Some(buyer) = months::buyer(tx, account)? else { return Ok(None) };
            let usage = months::usage(account, month).fetch_all(tx)?;
            let invoice = months::invoice_of_month(tx, account, month)?;
            Ok(Some(BillableMonth { buyer, month, usage, invoice }))
        });
        found.await.map_err(map_sum_too_large(month))
    }

    pub async fn read_invoice(
        &self,
        permit: Permit<ReadInvoices>,
        number: InvoiceNumber,
    ) -> Result<Option<InvoiceRecord>, InvoiceError> {
        self.audited.record(vec![permit.to_audit_row()]).await?;
        self.db
            .read(move |tx| {
                ensure_principal_unchanged::<InvoiceError>(tx, permit.by())?;
                Ok(rows::invoice(tx, number)?)
            })
            .await
    }

    /// The PDF, byte for byte as it was issued.
    pub async fn read_invoice_document(
        &self,
        permit: Permit<ReadInvoices>,
        number: InvoiceNumber,
    ) -> Result<Option<Vec<u8>>, InvoiceError> {
        self.audited.record(vec![permit.to_audit_row()]).await?;
        self.db
            .read(move |tx| {
                ensure_principal_unchanged::<InvoiceError>(tx, permit.by())?;
                Ok(rows::document(number).fetch_optional(tx)?)
            })
            .await
    }

    /// Issues the invoice of a month that has ended, under the next number. Concurrent calls issue only one. It is
    /// dated by the permit, or by the last document if that is later. Fails with `MonthStillOpen` up to an hour after
    /// the month's end, `NothingToBill` without usage, `MonthTooLarge` if a sum overflows, or `NoSuchAccountId`.
    pub async fn issue_invoice(
        &self,
        permit: Permit<ManageInvoices>,
        request: &IssueRequest,
        render: RenderInvoice,
    ) -> Result<IssueOutcome, InvoiceError> {
        ensure_no_nul(&request.terms, "")?;
        let (decision, request) = (vec![permit.to_audit_row()], request.clone());
        let month = request.month;
        let issued = self
            .audited
            .run(decision, move |tx| issue::issue(tx, permit.access_request(), &request, &render));
        issued.await.map_err(map_sum_too_large(month))
    }

    /// Issues a credit note under the next number. An invoice that is credited in full becomes void, and its month can
    /// be invoiced again. Fails with `NoSuchInvoice`, also for a credit note; `CreditRejected` if less is left, or
    /// nothing; and `ConcurrentCredit` if the credited amount is not what the order expects.
    pub async fn credit_invoice(
        &self,
        permit: Permit<ManageInvoices>,
        request: &CreditRequest,
        render: RenderInvoice,
    ) -> Result<InvoiceNumber, InvoiceError> {
        ensure_no_nul(&request.terms, &request.reason)?;
        let (decision, request) = (vec![permit.to_audit_row()], request.clone());
        self.audited
            .run(decision, move |tx| issue::credit(tx, permit.access_request(), &request, &render))
            .await
    }

    /// Idempotent. Returns the resulting state. Fails with `NoSuchInvoice`, also for a credit note, or `InvoiceIsVoid`.
    pub async fn record_payment(
        &self,
        permit: Permit<ManageInvoices>,
        number: InvoiceNumber,
        change: PaymentChange,
    ) -> Result<InvoiceState, InvoiceError> {
        self.audited
            .run(vec![permit.to_audit_row()], move |tx| {
                issue::record_payment(tx, permit.access_request(), number, change)
            })
            .await
    }
}

/// Issued invoices as they were stored, for `verify`.
#[derive(Clone)]
pub struct IssuedInvoices {
    pub(crate) db: Db,
}

impl IssuedInvoices {
    /// Every issued document by number, paginated.
    pub async fn issued_invoices(
        &self,
        after: Option<InvoiceNumber>,
        limit: u32,
    ) -> Result<Vec<InvoiceRecord>, DbError> {
        Ok(self.db.read_report(move |tx| rows::invoices_after(tx, after, limit)).await?)
    }

    /// The stored PDF.
    pub async fn issued_document(&self, number: InvoiceNumber) -> Result<Option<Vec<u8>>, DbError> {
        let found: Vec<Vec<u8>> = self.db.fetch_report(rows::document(number)).await?;
        Ok(found.into_iter().next())
    }

    /// The last assigned number of each year.
    pub async fn last_invoice_numbers(&self) -> Result<Vec<InvoiceNumber>, DbError> {
        Ok(self.db.fetch_all(months::last_numbers()).await?)
    }

    /// Each invoiced month and the invoice that bills it.
    pub async fn billed_months(
        &self,
        after: Option<(AccountId, Month)>,
        limit: u32,
    ) -> Result<Vec<(AccountId, Month, InvoiceNumber)>, DbError> {
        let months: Vec<AccountMonth> = self.db.fetch_report(months::billed_after(after, limit)).await?;
        let billed = |month: AccountMonth| Some((month.account, month.month, month.invoice?));
        Ok(months.into_iter().filter_map(billed).collect())
    }

    /// An account's usage in a month by model and prices, from the sums by day.
    pub async fn month_usage(&self, account: AccountId, month: Month) -> Result<Vec<ModelUsage>, DbError> {
        Ok(self.db.fetch_report(months::usage(account, month)).await?)
    }
}
