//! Invoices and credit notes, for partners: the list, each document as the sheet that was sent, months that can be issued, and
//! what is done with an invoice. How the figures come about is in `domain::Invoice`; nothing is reckoned here.

pub(crate) mod credit;
mod credit_form;
pub(crate) mod document;
pub(crate) mod draft;
mod history;
pub(crate) mod issue;
pub(crate) mod list;
pub(crate) mod list_csv;
mod list_query;
mod list_rows;
mod notice;
pub(crate) mod payment;
mod sheet;
mod standing;

use crate::failure::refused_by_store;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::when::{in_utc, long_month};
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::StatusCode;
use chancery_domain::{AccountId, InvoiceNumber, MoneyError, Month};
use chancery_policy::{ReadInvoices, TheFirm};
use chancery_store::{InvoiceRecord, StoreError};
use chancery_web::Refusal;

/// What an address says, if it can be read at all. It is read after the policy was asked, so that a refusal tells nothing.
type Segments<T> = Result<Path<T>, PathRejection>;

/// The document at such an address. Whoever may not read it learns nothing of the address either.
async fn read_at(
    portal: &Portal,
    who: &SignedIn,
    number: Segments<String>,
) -> Result<InvoiceRecord, Refusal> {
    let permit = portal.permit::<ReadInvoices>(who, TheFirm).await?;
    let found = portal.store.read_invoice(permit, number_in(number)?).await;
    found.map_err(|error| refused(&error))?.ok_or_else(no_such_invoice)
}

async fn read(portal: &Portal, who: &SignedIn, number: InvoiceNumber) -> Result<InvoiceRecord, Refusal> {
    let permit = portal.permit::<ReadInvoices>(who, TheFirm).await?;
    let found = portal.store.read_invoice(permit, number).await.map_err(|error| refused(&error))?;
    found.ok_or_else(no_such_invoice)
}

fn number_in(segments: Segments<String>) -> Result<InvoiceNumber, Refusal> {
    let Path(text) = segments.map_err(|_| no_such_invoice())?;
    text.parse().map_err(|_| no_such_invoice())
}

fn month_in(segments: Segments<(String, String)>) -> Result<(AccountId, Month), Refusal> {
    let Path((account, month)) = segments.map_err(|_| no_such_account())?;
    let account = account.parse().map(AccountId).map_err(|_| no_such_account())?;
    Ok((account, month.parse().map_err(|_| no_such_month())?))
}

fn refused(error: &StoreError) -> Refusal {
    match error {
        StoreError::NoSuchInvoice(_) => no_such_invoice(),
        StoreError::NoSuchAccountId(_) => no_such_account(),
        StoreError::MonthStillOpen { month } => month_still_open(*month),
        StoreError::NothingToBill { account, month } => Refusal::new(
            StatusCode::CONFLICT,
            "nothing_to_bill",
            "There is nothing to invoice",
            format!("{account} used nothing in {} (UTC). Nothing was issued.", long_month(*month)),
        )
        .way_on("/invoices", "Go to the invoices"),
        StoreError::InvoiceIsVoid(number) => is_void(*number),
        StoreError::CreditRefused { number, why } => Refusal::new(
            StatusCode::CONFLICT,
            "credit_refused",
            "This cannot be credited",
            format!("Invoice {number} was not credited: {why}."),
        )
        .way_on(format!("/invoices/{number}"), "Go to the invoice"),
        StoreError::CreditedMeanwhile(number) => Refusal::new(
            StatusCode::CONFLICT,
            "credited_meanwhile",
            "This invoice was credited meanwhile",
            format!("Another credit note was made for invoice {number}. Nothing was issued."),
        )
        .way_on(format!("/invoices/{number}"), "Go to the invoice"),
        StoreError::DocumentFailed { .. } => {
            let mut refusal = Refusal::internal(error.to_string());
            refusal.reason = "The document could not be made, so nothing was issued.".to_owned();
            refusal
        }
        error => refused_by_store(error),
    }
}

/// Amounts that no document of ours can have.
fn miscounted(error: MoneyError) -> Refusal {
    Refusal::internal(error.to_string())
}

fn month_still_open(month: Month) -> Refusal {
    Refusal::new(
        StatusCode::CONFLICT,
        "month_still_open",
        "This month cannot be invoiced yet",
        format!(
            "{} is still running, or requests of it are still under way. Nothing was issued.",
            long_month(month)
        ),
    )
    .advice(format!("It can be issued from {} on.", in_utc(month.can_be_issued_from())))
    .way_on("/invoices", "Go to the invoices")
}

fn is_void(number: InvoiceNumber) -> Refusal {
    Refusal::new(
        StatusCode::CONFLICT,
        "invoice_is_void",
        "This invoice is void",
        format!(
            "Invoice {number} was credited as a whole, so nothing is left of it to do. Nothing was changed."
        ),
    )
    .way_on(format!("/invoices/{number}"), "Go to the invoice")
}

fn no_such_invoice() -> Refusal {
    Refusal::new(
        StatusCode::NOT_FOUND,
        "not_found",
        "There is no such invoice",
        "No invoice of the firm has this number.",
    )
    .advice("If you typed it, check it: a number looks like 2026-0031.")
    .way_on("/invoices", "Go to the invoices")
}

fn no_such_account() -> Refusal {
    Refusal::new(
        StatusCode::NOT_FOUND,
        "not_found",
        "There is no such account",
        "No account of the firm has this number.",
    )
    .advice("If you typed it, check it.")
    .way_on("/invoices", "Go to the invoices")
}

fn no_such_month() -> Refusal {
    Refusal::new(
        StatusCode::NOT_FOUND,
        "not_found",
        "There is no such month",
        "A month in an address is a year and a month, such as 2026-10.",
    )
    .advice("If you typed it, check it.")
    .way_on("/invoices", "Go to the invoices")
}

/// Something in an address of the list that no link of ours has.
fn bad_parameter(name: &str, why: &str) -> Refusal {
    Refusal::new(
        StatusCode::BAD_REQUEST,
        "bad_request",
        "This address cannot be read",
        format!("`{name}` {why}."),
    )
    .advice("If you typed it, check it; if a link led here, it is out of date.")
    .way_on("/invoices", "Go to the invoices")
}
