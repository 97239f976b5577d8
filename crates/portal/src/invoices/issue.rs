//! `POST /invoices/drafts/{account}/{month}/issue`: makes the invoice of a month that has ended. It cannot be changed afterwards. Of
//! several people who do so at once, one makes it, and the others are led to it.

use super::addressed::{Segments, month_in};
use super::done::Done;
use crate::error::{PageError, about_month};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_policy::{ManageInvoices, TheFirm};
use chancery_store::{IssueOrder, Issued};
use std::sync::Arc;

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    segments: Segments<(String, String)>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ManageInvoices>(&who, TheFirm).await?;
    let (account, month) = month_in(segments)?;
    let order = IssueOrder { account, month, terms: portal.settings.invoice_terms.clone() };
    let issued = portal.store.invoices.issue_invoice(permit, &order, &chancery_invoicing::pdf).await;
    let href = match issued.map_err(about_month)? {
        Issued::New(number) => Done::Issued.href(number),
        Issued::Already(number) => Done::AlreadyIssued.href(number),
    };
    Ok(Redirect::to(&href).into_response())
}
