//! `POST /invoices/{number}/paid` and `POST /invoices/{number}/not-paid`: notes that an invoice was paid, and that it was not after
//! all. Doing either again changes nothing.

use super::addressed::{Segments, number_in};
use super::done::Done;
use crate::error::PageError;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_policy::{ManageInvoices, TheFirm};
use chancery_store::PaymentDeed;
use std::sync::Arc;

pub(crate) async fn paid(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    number: Segments<String>,
) -> Result<Response, PageError> {
    note(&portal, &who, number, (PaymentDeed::Paid, Done::Paid)).await
}

pub(crate) async fn not_paid(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    number: Segments<String>,
) -> Result<Response, PageError> {
    note(&portal, &who, number, (PaymentDeed::TakenBack, Done::NotPaid)).await
}

async fn note(
    portal: &Portal,
    who: &SignedIn,
    number: Segments<String>,
    (deed, done): (PaymentDeed, Done),
) -> Result<Response, PageError> {
    let permit = portal.permit::<ManageInvoices>(who, TheFirm).await?;
    let number = number_in(number)?;
    portal.store.invoices.note_payment(permit, number, deed).await?;
    Ok(Redirect::to(&done.href(number)).into_response())
}
