//! `GET /invoices/{number}`: an invoice or credit note as issued, with its status and history, as a page or JSON. `.pdf` after the
//! number returns the document byte for byte as issued, `.csv` its lines.

use super::done::CompletedAction;
use super::history::{HistoryRow, credit_notes, history};
use super::path_params::{PathParams, read};
use super::payment_status::{Badge, PaymentStatus};
use super::sheet::Sheet;
use crate::authz::capabilities::can_manage_invoices;
use crate::error::{PageError, invoice_not_found};
use crate::file_response::{file_response, pdf_response};
use crate::frame::{Frame, Section};
use crate::person_names::PersonNames;
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::time_format::long_month;
use askama::Template;
use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use chancery_domain::{Day, InvoiceKind, InvoiceNumber, InvoiceState};
use chancery_invoicing::text::file_name;
use chancery_policy::{FirmResource, ReadInvoices};
use chancery_store::InvoiceRecord;
use chancery_web::{ErrorPage, Notice, page, wants_json};
use futures_util::stream;
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Template)]
#[template(path = "invoices/document.html")]
struct DocumentPage<'a> {
    frame: Frame<'a>,
    number: InvoiceNumber,
    notice: Option<Notice>,
    sheet: Sheet,
    badge: Badge,
    status_text: String,
    is_credit_note: bool,
    state: InvoiceState,
    total: String,
    /// `None` if nothing was credited.
    credited: Option<String>,
    left: String,
    credit_notes: Vec<InvoiceNumber>,
    history: Vec<HistoryRow>,
    /// For a void invoice: the URL of the draft that invoices its month again, and the month's name.
    draft: Option<(String, String)>,
    can_manage: bool,
}

impl DocumentPage<'_> {
    fn is_issued(&self) -> bool {
        self.state == InvoiceState::Issued
    }

    fn is_paid(&self) -> bool {
        self.state == InvoiceState::Paid
    }
}

pub(crate) async fn handle(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    headers: HeaderMap,
    Query(query): Query<HashMap<String, String>>,
    document: PathParams<String>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ReadInvoices>(&signed_in, FirmResource).await?;
    let Path(document) = document.map_err(|_| invoice_not_found())?;
    if let Some(number) = document.strip_suffix(".pdf") {
        let number = parse(number)?;
        let pdf = portal
            .store
            .invoices
            .read_invoice_document(permit, number)
            .await?
            .ok_or_else(invoice_not_found)?;
        let record = read(&portal, &signed_in, number).await?;
        return pdf_response(&format!("{}.pdf", file_name(&record.invoice)), pdf);
    }
    let (number, is_csv) = match document.strip_suffix(".csv") {
        Some(number) => (parse(number)?, true),
        None => (parse(&document)?, false),
    };
    let record = portal.store.invoices.read_invoice(permit, number).await?;
    let record = record.ok_or_else(invoice_not_found)?;
    match (is_csv, wants_json(&headers)) {
        (true, _) => csv_response(&record),
        (false, true) => Ok(Json(chancery_invoicing::record_json(&record)?).into_response()),
        (false, false) => show(&portal, &signed_in, &record, query.get("done").map(String::as_str)).await,
    }
}

fn parse(number: &str) -> Result<InvoiceNumber, ErrorPage> {
    number.parse().map_err(|_| invoice_not_found())
}

async fn show(
    portal: &Portal,
    signed_in: &SignedIn,
    record: &InvoiceRecord,
    done: Option<&str>,
) -> Result<Response, PageError> {
    let (invoice, now) = (&record.invoice, portal.clock.now());
    let (status, today, currency) = (PaymentStatus::of(record)?, Day::containing(now), invoice.bill.currency);
    let notice = match done.and_then(CompletedAction::parse).and_then(|done| done.notice(record, &status)) {
        Some(notice) => Some(with_invoice_outcome(portal, signed_in, record, notice).await?),
        None => None,
    };
    let draft = || {
        let href = format!("/invoices/drafts/{}/{}", invoice.buyer.account, invoice.month);
        (href, long_month(invoice.month))
    };
    let names = PersonNames::read(portal).await?;
    let document = DocumentPage {
        frame: Frame::new(portal, signed_in, Section::Invoices),
        number: invoice.number,
        notice,
        sheet: Sheet::of(invoice),
        badge: status.badge(today),
        status_text: status.text(today),
        is_credit_note: matches!(invoice.kind, InvoiceKind::CreditNote { .. }),
        state: record.state,
        total: currency.format_amount(invoice.bill.total),
        credited: (record.credited.total.0 != 0).then(|| currency.format_amount(record.credited.total)),
        left: currency.format_amount(status.outstanding),
        credit_notes: credit_notes(&record.events),
        history: history(&record.events, &names, &signed_in.local_time(portal)),
        draft: (record.state == InvoiceState::Void).then(draft),
        can_manage: can_manage_invoices(&portal.policy, signed_in.principal()),
    };
    Ok(page(StatusCode::OK, &document)?)
}

/// Adds what remains of the invoice to the notice about a new credit note.
async fn with_invoice_outcome(
    portal: &Portal,
    signed_in: &SignedIn,
    record: &InvoiceRecord,
    mut notice: Notice,
) -> Result<Notice, PageError> {
    let InvoiceKind::CreditNote { of, .. } = record.invoice.kind else { return Ok(notice) };
    let invoice = read(portal, signed_in, of).await?;
    let left = invoice.invoice.bill.currency.format_amount(PaymentStatus::of(&invoice)?.left);
    match invoice.state {
        InvoiceState::Void => {
            let month = long_month(invoice.invoice.month);
            notice.text += &format!(" Invoice {of} is now void. You can invoice {month} again.");
            let href =
                format!("/invoices/drafts/{}/{}", invoice.invoice.buyer.account, invoice.invoice.month);
            notice.link = Some((href, "Open draft"));
        }
        InvoiceState::Paid => {
            notice.text += &format!(
                " Invoice {of} is paid: refund the credited amount, or deduct it from the next invoice."
            );
            notice.link = Some((format!("/invoices/{of}"), "Go to invoice"));
        }
        _ => {
            notice.text += &format!(" {left} of invoice {of} remains due.");
            notice.link = Some((format!("/invoices/{of}"), "Go to invoice"));
        }
    }
    Ok(notice)
}

fn csv_response(record: &InvoiceRecord) -> Result<Response, PageError> {
    let name = format!("{}.csv", file_name(&record.invoice));
    let file =
        chancery_invoicing::csv(&record.invoice).map_err(|error| ErrorPage::internal(error.to_string()))?;
    Ok(file_response("text/csv; charset=utf-8; header=present", &name, file, stream::empty()))
}
