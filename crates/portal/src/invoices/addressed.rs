//! What an address of an invoice or a month names. It is read after the policy was asked, so that a denial tells nothing.

use crate::error::{PageError, no_such_buyer, no_such_invoice};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use chancery_domain::{AccountId, InvoiceNumber, Month};
use chancery_policy::{ReadInvoices, TheFirm};
use chancery_store::InvoiceRecord;
use chancery_web::ErrorPage;

/// What an address says, if it can be read at all.
pub(super) type Segments<T> = Result<Path<T>, PathRejection>;

/// The document at such an address. Whoever may not read it learns nothing of the address either.
pub(super) async fn read_at(
    portal: &Portal,
    who: &SignedIn,
    number: Segments<String>,
) -> Result<InvoiceRecord, PageError> {
    let permit = portal.permit::<ReadInvoices>(who, TheFirm).await?;
    let found = portal.store.invoices.read_invoice(permit, number_in(number)?).await?;
    Ok(found.ok_or_else(no_such_invoice)?)
}

pub(super) async fn read(
    portal: &Portal,
    who: &SignedIn,
    number: InvoiceNumber,
) -> Result<InvoiceRecord, PageError> {
    let permit = portal.permit::<ReadInvoices>(who, TheFirm).await?;
    Ok(portal.store.invoices.read_invoice(permit, number).await?.ok_or_else(no_such_invoice)?)
}

pub(super) fn number_in(segments: Segments<String>) -> Result<InvoiceNumber, ErrorPage> {
    let Path(text) = segments.map_err(|_| no_such_invoice())?;
    text.parse().map_err(|_| no_such_invoice())
}

pub(super) fn month_in(segments: Segments<(String, String)>) -> Result<(AccountId, Month), ErrorPage> {
    let Path((account, month)) = segments.map_err(|_| no_such_buyer())?;
    let account = account.parse().map(AccountId).map_err(|_| no_such_buyer())?;
    Ok((account, month.parse().map_err(|_| no_such_month())?))
}

fn no_such_month() -> ErrorPage {
    let reason = "A month in an address is a year and a month, such as 2026-10.";
    ErrorPage::missing("There is no such month", reason)
        .advice("If you typed it, check it.")
        .next_link("/invoices", "Go to the invoices")
}
