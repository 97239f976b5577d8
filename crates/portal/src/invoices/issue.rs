//! `POST /invoices/drafts/{account}/{month}/issue`: issues the invoice of a month that has ended. It cannot be changed afterwards.
//! If several people do so at once, one request issues it, and the others are redirected to it.

use super::done::CompletedAction;
use super::path_params::{PathParams, parse_month};
use crate::error::{PageError, invoice_account_error};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_policy::{FirmResource, ManageInvoices};
use chancery_store::{IssueOutcome, IssueRequest};
use std::sync::Arc;

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    segments: PathParams<(String, String)>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ManageInvoices>(&signed_in, FirmResource).await?;
    let (account, month) = parse_month(segments)?;
    let request = IssueRequest { account, month, terms: portal.settings.invoice_terms.clone() };
    let issued = portal.store.invoices.issue_invoice(permit, &request, &chancery_invoicing::pdf).await;
    let href = match issued.map_err(invoice_account_error)? {
        IssueOutcome::New(number) => CompletedAction::Issued.href(number),
        IssueOutcome::AlreadyIssued(number) => CompletedAction::AlreadyIssued.href(number),
    };
    Ok(Redirect::to(&href).into_response())
}
