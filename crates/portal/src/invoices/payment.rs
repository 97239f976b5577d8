//! `POST /invoices/{number}/paid` and `POST /invoices/{number}/not-paid`: marks an invoice as paid or unpaid. Both are
//! idempotent.

use super::done::CompletedAction;
use super::path_params::{PathParams, parse_number};
use crate::error::PageError;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_policy::{FirmResource, ManageInvoices};
use chancery_store::PaymentChange;
use std::sync::Arc;

pub(crate) async fn paid(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    number: PathParams<String>,
) -> Result<Response, PageError> {
    note(&portal, &signed_in, number, (PaymentChange::Paid, CompletedAction::Paid)).await
}

pub(crate) async fn mark_unpaid(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    number: PathParams<String>,
) -> Result<Response, PageError> {
    note(&portal, &signed_in, number, (PaymentChange::Unpaid, CompletedAction::Unpaid)).await
}

async fn note(
    portal: &Portal,
    signed_in: &SignedIn,
    number: PathParams<String>,
    (change, done): (PaymentChange, CompletedAction),
) -> Result<Response, PageError> {
    let permit = portal.permit::<ManageInvoices>(signed_in, FirmResource).await?;
    let number = parse_number(number)?;
    portal.store.invoices.record_payment(permit, number, change).await?;
    Ok(Redirect::to(&done.href(number)).into_response())
}
