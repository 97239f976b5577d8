//! Invoices for those who may see them: every change is one transaction with its decision. What is only read comes right after
//! its decision's commit, as it was at one moment.

use crate::audit::step::HasAudit;
use crate::billing::months::{self, AccountMonth};
use crate::billing::{issue, list, rows};
use crate::{
    CreditOrder, InvoicePage, InvoiceQuery, InvoiceRecord, Invoices, IssueOrder, Issued, MonthToBill,
    PaymentDeed, Render, StoreError,
};
use chancery_domain::{AccountId, InvoiceNumber, InvoiceState, InvoiceTerms, ModelUsage, Month};
use chancery_policy::{ManageInvoices, Permit, ReadInvoices};

/// PostgreSQL stores no text with one.
fn check_no_nul(terms: &InvoiceTerms, reason: &str) -> Result<(), StoreError> {
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

#[async_trait::async_trait]
impl<S: HasAudit> Invoices for S {
    async fn list_invoices(
        &self,
        permit: Permit<ReadInvoices>,
        query: &InvoiceQuery,
    ) -> Result<InvoicePage, StoreError> {
        self.audited().record(&[permit.to_audit_row()]).await?;
        let page = self
            .db()
            .long_snapshot(query, |conn, query| Box::pin(async move { Ok(list::page(conn, query).await?) }));
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
        self.audited().record(&[permit.to_audit_row()]).await?;
        let args = (account, month);
        let found = self.db().long_snapshot(&args, |conn, (account, month)| {
            Box::pin(async move {
                let Some(buyer) = months::buyer(conn, *account).await? else { return Ok(None) };
                let usage = months::usage(*account, *month).fetch_all(conn).await?;
                let invoice = months::billed_by(conn, *account, *month).await?;
                Ok(Some(MonthToBill { buyer, month: *month, usage, invoice }))
            })
        });
        found.await.map_err(in_terms_of(month))
    }

    async fn read_invoice(
        &self,
        permit: Permit<ReadInvoices>,
        number: InvoiceNumber,
    ) -> Result<Option<InvoiceRecord>, StoreError> {
        self.audited().record(&[permit.to_audit_row()]).await?;
        let found = self.db().snapshot(&number, |conn, number| {
            Box::pin(async move { Ok(rows::invoice(conn, *number).await?) })
        });
        found.await
    }

    async fn read_invoice_document(
        &self,
        permit: Permit<ReadInvoices>,
        number: InvoiceNumber,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        self.audited().record(&[permit.to_audit_row()]).await?;
        Ok(self.db().fetch_optional(rows::document(number)).await?)
    }

    async fn issue_invoice(
        &self,
        permit: Permit<ManageInvoices>,
        order: &IssueOrder,
        render: Render<'_>,
    ) -> Result<Issued, StoreError> {
        check_no_nul(&order.terms, "")?;
        let (decision, args) = ([permit.to_audit_row()], (permit.asked(), order, render));
        let issued = self.audited().run(&decision, &args, |conn, (asked, order, render)| {
            Box::pin(issue::issue(conn, asked, order, *render))
        });
        issued.await.map_err(in_terms_of(order.month))
    }

    async fn credit_invoice(
        &self,
        permit: Permit<ManageInvoices>,
        order: &CreditOrder,
        render: Render<'_>,
    ) -> Result<InvoiceNumber, StoreError> {
        check_no_nul(&order.terms, &order.reason)?;
        let (decision, args) = ([permit.to_audit_row()], (permit.asked(), order, render));
        let credited = self.audited().run(&decision, &args, |conn, (asked, order, render)| {
            Box::pin(issue::credit(conn, asked, order, *render))
        });
        credited.await
    }

    async fn note_payment(
        &self,
        permit: Permit<ManageInvoices>,
        number: InvoiceNumber,
        deed: PaymentDeed,
    ) -> Result<InvoiceState, StoreError> {
        let (decision, args) = ([permit.to_audit_row()], (permit.asked(), number, deed));
        let recorded = self.audited().run(&decision, &args, |conn, (asked, number, change)| {
            Box::pin(issue::record_payment(conn, asked, *number, *change))
        });
        recorded.await
    }

    async fn issued_invoices(
        &self,
        after: Option<InvoiceNumber>,
        limit: u32,
    ) -> Result<Vec<InvoiceRecord>, StoreError> {
        let args = (after, limit);
        let found = self.db().long_snapshot(&args, |conn, (after, limit)| {
            Box::pin(async move { Ok(rows::invoices_after(conn, *after, *limit).await?) })
        });
        found.await
    }

    async fn issued_document(&self, number: InvoiceNumber) -> Result<Option<Vec<u8>>, StoreError> {
        let found: Vec<Vec<u8>> = self.db().long_fetch_all(rows::document(number)).await?;
        Ok(found.into_iter().next())
    }

    async fn last_invoice_numbers(&self) -> Result<Vec<InvoiceNumber>, StoreError> {
        Ok(self.db().fetch_all(months::last_numbers()).await?)
    }

    async fn billed_months(
        &self,
        after: Option<(AccountId, Month)>,
        limit: u32,
    ) -> Result<Vec<(AccountId, Month, InvoiceNumber)>, StoreError> {
        let months: Vec<AccountMonth> = self.db().long_fetch_all(months::billed_after(after, limit)).await?;
        let billed = |month: AccountMonth| Some((month.account, month.month, month.invoice?));
        Ok(months.into_iter().filter_map(billed).collect())
    }

    async fn month_usage(&self, account: AccountId, month: Month) -> Result<Vec<ModelUsage>, StoreError> {
        let usage = self.db().long_fetch_all(months::usage(account, month)).await;
        usage.map_err(|error| in_terms_of(month)(error.into()))
    }
}
