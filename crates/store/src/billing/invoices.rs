//! Invoices for those who may see them: every change is one transaction with its decision. What is only read comes right after
//! its decision's commit, as it was at one moment.

use crate::DbError;
use crate::audit::step::AuditedSteps;
use crate::billing::months::{self, AccountMonth};
use crate::billing::{issue, list, rows};
use crate::db::Db;
use crate::{
    CreditOrder, InvoiceError, InvoicePage, InvoiceQuery, InvoiceRecord, IssueOrder, Issued, MonthToBill,
    PaymentDeed, Render,
};
use chancery_domain::{AccountId, InvoiceNumber, InvoiceState, InvoiceTerms, ModelUsage, Month};
use chancery_policy::{ManageInvoices, Permit, ReadInvoices};

/// PostgreSQL stores no text with one.
fn check_no_nul(terms: &InvoiceTerms, reason: &str) -> Result<(), InvoiceError> {
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
        Some((what, _)) => Err(DbError::NulCharacter { what }.into()),
        None => Ok(()),
    }
}

/// What a sum means that is too large, for whoever asked for invoices and not for days.
fn in_terms_of(month: Month) -> impl FnOnce(InvoiceError) -> InvoiceError {
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
    /// The last number that was given in each year.
    pub async fn last_invoice_numbers(&self) -> Result<Vec<InvoiceNumber>, InvoiceError> {
        Ok(self.db.fetch_all(months::last_numbers()).await?)
    }

    pub async fn list_invoices(
        &self,
        permit: Permit<ReadInvoices>,
        query: &InvoiceQuery,
    ) -> Result<InvoicePage, InvoiceError> {
        self.audited.record(&[permit.to_audit_row()]).await?;
        let page = self
            .db
            .long_snapshot(query, |conn, query| Box::pin(async move { Ok(list::page(conn, query).await?) }));
        page.await.map_err(|error| match error {
            DbError::SumTooLarge => InvoiceError::InvoicesTooLarge,
            error => error.into(),
        })
    }

    /// None where there is no such account. A month without usage has none.
    pub async fn month_to_bill(
        &self,
        permit: Permit<ReadInvoices>,
        account: AccountId,
        month: Month,
    ) -> Result<Option<MonthToBill>, InvoiceError> {
        self.audited.record(&[permit.to_audit_row()]).await?;
        let args = (account, month);
        let found = self.db.long_snapshot(&args, |conn, (account, month)| {
            Box::pin(async move {
                let Some(buyer) = months::buyer(conn, *account).await? else { return Ok(None) };
                let usage = months::usage(*account, *month).fetch_all(conn).await?;
                let invoice = months::billed_by(conn, *account, *month).await?;
                Ok(Some(MonthToBill { buyer, month: *month, usage, invoice }))
            })
        });
        found.await.map_err(in_terms_of(month))
    }

    pub async fn read_invoice(
        &self,
        permit: Permit<ReadInvoices>,
        number: InvoiceNumber,
    ) -> Result<Option<InvoiceRecord>, InvoiceError> {
        self.audited.record(&[permit.to_audit_row()]).await?;
        let found = self.db.snapshot(&number, |conn, number| {
            Box::pin(async move { Ok(rows::invoice(conn, *number).await?) })
        });
        found.await
    }

    /// The PDF, byte for byte as it was issued.
    pub async fn read_invoice_document(
        &self,
        permit: Permit<ReadInvoices>,
        number: InvoiceNumber,
    ) -> Result<Option<Vec<u8>>, InvoiceError> {
        self.audited.record(&[permit.to_audit_row()]).await?;
        Ok(self.db.fetch_optional(rows::document(number)).await?)
    }

    /// Issues the invoice of a month that has ended, under the next number. However many do so at once, there is one. The moment
    /// is that of the permit, or that of the last document where this is later. `MonthStillOpen` up to an hour after its end, `NothingToBill` without usage, `MonthTooLarge` where it
    /// cannot be counted exactly, `NoSuchAccountId`.
    pub async fn issue_invoice(
        &self,
        permit: Permit<ManageInvoices>,
        order: &IssueOrder,
        render: Render<'_>,
    ) -> Result<Issued, InvoiceError> {
        check_no_nul(&order.terms, "")?;
        let (decision, args) = ([permit.to_audit_row()], (permit.asked(), order, render));
        let issued = self.audited.run(&decision, &args, |conn, (asked, order, render)| {
            Box::pin(issue::issue(conn, asked, order, *render))
        });
        issued.await.map_err(in_terms_of(order.month))
    }

    /// Issues a credit note under the next number. Where nothing is left of the invoice it is void, and its month can be
    /// invoiced again. `NoSuchInvoice`, also for a credit note; `CreditRefused` where there is less left, or nothing;
    /// `CreditedMeanwhile` where something else was credited of it than the order says.
    pub async fn credit_invoice(
        &self,
        permit: Permit<ManageInvoices>,
        order: &CreditOrder,
        render: Render<'_>,
    ) -> Result<InvoiceNumber, InvoiceError> {
        check_no_nul(&order.terms, &order.reason)?;
        let (decision, args) = ([permit.to_audit_row()], (permit.asked(), order, render));
        let credited = self.audited.run(&decision, &args, |conn, (asked, order, render)| {
            Box::pin(issue::credit(conn, asked, order, *render))
        });
        credited.await
    }

    /// Doing it again changes nothing. `NoSuchInvoice`, also for a credit note; `InvoiceIsVoid`. Gives the state that it is in now.
    pub async fn note_payment(
        &self,
        permit: Permit<ManageInvoices>,
        number: InvoiceNumber,
        deed: PaymentDeed,
    ) -> Result<InvoiceState, InvoiceError> {
        let (decision, args) = ([permit.to_audit_row()], (permit.asked(), number, deed));
        let recorded = self.audited.run(&decision, &args, |conn, (asked, number, change)| {
            Box::pin(issue::record_payment(conn, asked, *number, *change))
        });
        recorded.await
    }
}

/// Issued invoices as they were stored, for `verify`.
#[derive(Clone)]
pub struct IssuedInvoices {
    pub(crate) db: Db,
}

impl IssuedInvoices {
    /// For those who verify them: everything that was issued, by number, a page at a time.
    pub async fn issued_invoices(
        &self,
        after: Option<InvoiceNumber>,
        limit: u32,
    ) -> Result<Vec<InvoiceRecord>, DbError> {
        let args = (after, limit);
        let found = self.db.long_snapshot(&args, |conn, (after, limit)| {
            Box::pin(async move { Ok(rows::invoices_after(conn, *after, *limit).await?) })
        });
        found.await
    }

    /// For those who verify them: the PDF as it is kept.
    pub async fn issued_document(&self, number: InvoiceNumber) -> Result<Option<Vec<u8>>, DbError> {
        let found: Vec<Vec<u8>> = self.db.long_fetch_all(rows::document(number)).await?;
        Ok(found.into_iter().next())
    }

    /// For those who verify them: the last number that was given in each year.
    pub async fn last_invoice_numbers(&self) -> Result<Vec<InvoiceNumber>, DbError> {
        Ok(self.db.fetch_all(months::last_numbers()).await?)
    }

    /// For those who verify them: which invoice is said to bill each month, of those that are.
    pub async fn billed_months(
        &self,
        after: Option<(AccountId, Month)>,
        limit: u32,
    ) -> Result<Vec<(AccountId, Month, InvoiceNumber)>, DbError> {
        let months: Vec<AccountMonth> = self.db.long_fetch_all(months::billed_after(after, limit)).await?;
        let billed = |month: AccountMonth| Some((month.account, month.month, month.invoice?));
        Ok(months.into_iter().filter_map(billed).collect())
    }

    /// For those who verify them: what an account has used in a month, by model and prices, from the sums by day.
    pub async fn month_usage(&self, account: AccountId, month: Month) -> Result<Vec<ModelUsage>, DbError> {
        let usage = self.db.long_fetch_all(months::usage(account, month)).await;
        Ok(usage?)
    }
}
