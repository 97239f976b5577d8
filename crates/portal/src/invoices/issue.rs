//! `GET` and `POST /invoices/drafts/{account}/{month}/issue`: asks for confirmation, then issues the invoice of a month that has
//! ended. It cannot be changed afterwards. If several people do so at once, one request issues it, and the others are redirected to
//! it.

use super::done::CompletedAction;
use super::issue_check::{IssueProblem, address_form};
use super::path_params::{PathParams, parse_month};
use super::sheet::draft_invoice;
use crate::error::{PageError, invoice_account_error, invoice_account_not_found};
use crate::frame::{Frame, Section};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::time_format::{long_day, long_month};
use crate::unprintable::{UNPRINTABLE_ADVICE, unprintable_sentence};
use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::Invoice;
use chancery_invoicing::printable_pdf;
use chancery_policy::{FirmResource, ManageInvoices, ReadInvoices};
use chancery_store::{BillableMonth, IssueOutcome, IssueRequest};
use chancery_web::{ErrorPage, page};
use std::sync::{Arc, mpsc};

#[derive(Template)]
#[template(path = "invoices/issue.html")]
struct IssuePage<'a> {
    frame: Frame<'a>,
    draft: String,
    name: String,
    month: String,
    total: String,
    due: String,
    buyer_lines: Vec<String>,
    address_form: String,
    has_address: bool,
    /// Why it cannot be printed.
    unprintable: Option<String>,
    unprintable_advice: &'static str,
}

pub(crate) async fn show(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    segments: PathParams<(String, String)>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ReadInvoices>(&signed_in, FirmResource).await?;
    let (account, month) = parse_month(segments)?;
    let found = portal.store.invoices.billable_month(permit, account, month).await?;
    let found = found.ok_or_else(invoice_account_not_found)?;
    // Users who may not issue invoices are not asked to confirm.
    portal.ensure_allowed::<ManageInvoices>(&signed_in, FirmResource).await?;
    if let Some(number) = found.invoice {
        return Ok(Redirect::to(&format!("/invoices/{number}")).into_response());
    }
    let href = format!("/invoices/drafts/{account}/{month}");
    // The draft says why it cannot be issued yet.
    if !is_issuable(&portal, &found) {
        return Ok(Redirect::to(&href).into_response());
    }
    let draft = draft_invoice(&found, &portal.settings.invoice_terms, portal.clock.now())?;
    let (has_address, unprintable) = match IssueProblem::of(&portal, &draft).map_err(ErrorPage::internal)? {
        None => (true, None),
        Some(IssueProblem::NoAddress(..)) => (false, None),
        Some(IssueProblem::Unprintable(texts)) => (true, Some(unprintable_sentence(&texts))),
    };
    let buyer = &draft.buyer;
    let mut buyer_lines: Vec<String> = buyer.address.as_str().lines().map(str::to_owned).collect();
    buyer_lines.extend(Some(buyer.email.to_string()).filter(|email| !email.is_empty()));
    let issue_page = IssuePage {
        frame: Frame::new(&portal, &signed_in, Section::Invoices),
        draft: href,
        name: buyer.name.to_string(),
        month: long_month(month),
        total: draft.bill.currency.format_amount(draft.bill.total),
        due: long_day(draft.due),
        buyer_lines,
        address_form: address_form(account, month),
        has_address,
        unprintable,
        unprintable_advice: UNPRINTABLE_ADVICE,
    };
    Ok(page(StatusCode::OK, &issue_page)?)
}

pub(crate) async fn submit(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    segments: PathParams<(String, String)>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ManageInvoices>(&signed_in, FirmResource).await?;
    let (account, month) = parse_month(segments)?;
    let request = IssueRequest { account, month, terms: portal.settings.invoice_terms.clone() };
    // Checked in the transaction, because the address may have changed since the confirmation was shown.
    let (sender, problem) = mpsc::channel();
    let printing = Arc::clone(&portal);
    let render = Box::new(move |invoice: &Invoice| match IssueProblem::of(&printing, invoice)? {
        None => printable_pdf(invoice, &printing.settings.pdf_fonts),
        Some(found) => {
            // Nobody reads it if the browser has gone away.
            let _ = sender.send(found);
            Err("the invoice was rejected".to_owned())
        }
    });
    let issued = portal.store.invoices.issue_invoice(permit, &request, render).await;
    if issued.is_err()
        && let Ok(problem) = problem.try_recv()
    {
        return Err(ErrorPage::from(problem).into());
    }
    let href = match issued.map_err(invoice_account_error)? {
        IssueOutcome::New(number) => CompletedAction::Issued.href(number),
        IssueOutcome::AlreadyIssued(number) => CompletedAction::AlreadyIssued.href(number),
    };
    Ok(Redirect::to(&href).into_response())
}

/// The month has ended and has usage.
fn is_issuable(portal: &Portal, found: &BillableMonth) -> bool {
    !found.usage.is_empty() && found.month.invoiceable_from() <= portal.clock.now()
}
