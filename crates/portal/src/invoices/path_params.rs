//! Resolves the invoice or month in a path, after the policy has decided, so that a denial reveals nothing.

use crate::error::{PageError, invoice_account_not_found, invoice_not_found};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use chancery_domain::{AccountId, InvoiceNumber, Month};
use chancery_policy::{FirmResource, ReadInvoices};
use chancery_store::InvoiceRecord;
use chancery_web::ErrorPage;

/// Path parameters, not yet rejected if invalid: the policy decides first.
pub(super) type PathParams<T> = Result<Path<T>, PathRejection>;

/// The document that the path names. A denial does not reveal whether the path is valid.
pub(super) async fn read_from_path(
    portal: &Portal,
    signed_in: &SignedIn,
    number: PathParams<String>,
) -> Result<InvoiceRecord, PageError> {
    let permit = portal.permit::<ReadInvoices>(signed_in, FirmResource).await?;
    let found = portal.store.invoices.read_invoice(permit, parse_number(number)?).await?;
    Ok(found.ok_or_else(invoice_not_found)?)
}

pub(super) async fn read(
    portal: &Portal,
    signed_in: &SignedIn,
    number: InvoiceNumber,
) -> Result<InvoiceRecord, PageError> {
    let permit = portal.permit::<ReadInvoices>(signed_in, FirmResource).await?;
    Ok(portal.store.invoices.read_invoice(permit, number).await?.ok_or_else(invoice_not_found)?)
}

pub(super) fn parse_number(segments: PathParams<String>) -> Result<InvoiceNumber, ErrorPage> {
    let Path(text) = segments.map_err(|_| invoice_not_found())?;
    text.parse().map_err(|_| invoice_not_found())
}

pub(super) fn parse_month(segments: PathParams<(String, String)>) -> Result<(AccountId, Month), ErrorPage> {
    let Path((account, month)) = segments.map_err(|_| invoice_account_not_found())?;
    let account = account.parse().map(AccountId).map_err(|_| invoice_account_not_found())?;
    Ok((account, month.parse().map_err(|_| month_not_found())?))
}

fn month_not_found() -> ErrorPage {
    let reason = "Months look like 2026-10.";
    ErrorPage::missing("Month not found", reason)
        .advice("Check the month and try again.")
        .next_link("/invoices", "Go to invoices")
}
