//! `GET /invoices/{number}`: an invoice or credit note as the sheet that was sent, with what became of it; as JSON for whoever asks
//! for that. With `.pdf` after the number it is the document byte for byte as it was issued, with `.csv` its lines.

use super::addressed::{Segments, read};
use super::done::Done;
use super::history::{Event, credit_notes, history};
use super::sheet::Sheet;
use super::standing::{Badge, Standing};
use crate::authz::capabilities::may_manage_invoices;
use crate::error::{PageError, no_such_invoice};
use crate::file_reply::file_reply;
use crate::frame::{Frame, Section};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::when::long_month;
use askama::Template;
use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use chancery_domain::{Day, InvoiceKind, InvoiceNumber, InvoiceState};
use chancery_invoicing::words::file_name;
use chancery_policy::{ReadInvoices, TheFirm};
use chancery_store::InvoiceRecord;
use chancery_web::{ErrorPage, Notice, page, wants_json};
use futures_util::stream;
use std::collections::HashMap;
use std::sync::Arc;

/// Nothing in a PDF of ours needs anything; the browser's own viewer needs its own styles and pictures, which the pages' policy
/// would forbid it.
const PDF_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; object-src 'self'; \
                          frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

#[derive(Template)]
#[template(path = "invoices/document.html")]
struct DocumentPage<'a> {
    frame: Frame<'a>,
    number: InvoiceNumber,
    notice: Option<Notice>,
    sheet: Sheet,
    badge: Badge,
    standing: String,
    is_credit_note: bool,
    state: InvoiceState,
    total: String,
    /// None: nothing was.
    credited: Option<String>,
    left: String,
    credit_notes: Vec<InvoiceNumber>,
    history: Vec<Event>,
    /// Where the month of a void invoice is invoiced again.
    draft: Option<(String, String)>,
    may_manage: bool,
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
    who: SignedIn,
    headers: HeaderMap,
    Query(query): Query<HashMap<String, String>>,
    document: Segments<String>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ReadInvoices>(&who, TheFirm).await?;
    let Path(document) = document.map_err(|_| no_such_invoice())?;
    if let Some(number) = document.strip_suffix(".pdf") {
        let number = parse(number)?;
        let pdf =
            portal.store.invoices.read_invoice_document(permit, number).await?.ok_or_else(no_such_invoice)?;
        return pdf_reply(&read(&portal, &who, number).await?, pdf);
    }
    let (number, is_csv) = match document.strip_suffix(".csv") {
        Some(number) => (parse(number)?, true),
        None => (parse(&document)?, false),
    };
    let record = portal.store.invoices.read_invoice(permit, number).await?;
    let record = record.ok_or_else(no_such_invoice)?;
    match (is_csv, wants_json(&headers)) {
        (true, _) => csv_reply(&record),
        (false, true) => Ok(Json(chancery_invoicing::record_json(&record)?).into_response()),
        (false, false) => show(&portal, &who, &record, query.get("done").map(String::as_str)).await,
    }
}

fn parse(number: &str) -> Result<InvoiceNumber, ErrorPage> {
    number.parse().map_err(|_| no_such_invoice())
}

async fn show(
    portal: &Portal,
    who: &SignedIn,
    record: &InvoiceRecord,
    done: Option<&str>,
) -> Result<Response, PageError> {
    let (invoice, now) = (&record.invoice, portal.clock.now());
    let (standing, today, currency) = (Standing::of(record)?, Day::of(now), invoice.bill.currency);
    let notice = match done.and_then(Done::parse).and_then(|done| done.notice(record, &standing)) {
        Some(notice) => Some(with_what_became_of_the_invoice(portal, who, record, notice).await?),
        None => None,
    };
    let draft = || {
        let href = format!("/invoices/drafts/{}/{}", invoice.buyer.account, invoice.month);
        (href, long_month(invoice.month))
    };
    let document = DocumentPage {
        frame: Frame::new(portal, who, Section::Invoices),
        number: invoice.number,
        notice,
        sheet: Sheet::of(invoice),
        badge: standing.badge(today),
        standing: standing.words(today),
        is_credit_note: matches!(invoice.kind, InvoiceKind::CreditNote { .. }),
        state: record.state,
        total: currency.to_read(invoice.bill.total),
        credited: (record.credited.total.0 != 0).then(|| currency.to_read(record.credited.total)),
        left: currency.to_read(standing.outstanding),
        credit_notes: credit_notes(&record.events),
        history: history(&record.events, now),
        draft: (record.state == InvoiceState::Void).then(draft),
        may_manage: may_manage_invoices(&portal.policy, who.principal()),
    };
    Ok(page(StatusCode::OK, &document)?)
}

/// A credit note that was just issued says what is left of its invoice.
async fn with_what_became_of_the_invoice(
    portal: &Portal,
    who: &SignedIn,
    record: &InvoiceRecord,
    mut notice: Notice,
) -> Result<Notice, PageError> {
    let InvoiceKind::CreditNote { of, .. } = record.invoice.kind else { return Ok(notice) };
    let invoice = read(portal, who, of).await?;
    let left = invoice.invoice.bill.currency.to_read(Standing::of(&invoice)?.left);
    match invoice.state {
        InvoiceState::Void => {
            let month = long_month(invoice.invoice.month);
            notice.text += &format!(" Invoice {of} is void, and {month} can be invoiced again.");
            let href =
                format!("/invoices/drafts/{}/{}", invoice.invoice.buyer.account, invoice.invoice.month);
            notice.link = Some((href, "Open the draft"));
        }
        _ => {
            notice.text += &format!(" {left} is left of invoice {of}.");
            notice.link = Some((format!("/invoices/{of}"), "Go to the invoice"));
        }
    }
    Ok(notice)
}

fn pdf_reply(record: &InvoiceRecord, pdf: Vec<u8>) -> Result<Response, PageError> {
    let disposition =
        HeaderValue::from_str(&format!("inline; filename=\"{}.pdf\"", file_name(&record.invoice)));
    let disposition = disposition.map_err(|error| ErrorPage::internal(error.to_string()))?;
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/pdf")),
        (header::CONTENT_DISPOSITION, disposition),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(PDF_POLICY)),
    ];
    Ok((headers, pdf).into_response())
}

fn csv_reply(record: &InvoiceRecord) -> Result<Response, PageError> {
    let name = format!("{}.csv", file_name(&record.invoice));
    let file =
        chancery_invoicing::csv(&record.invoice).map_err(|error| ErrorPage::internal(error.to_string()))?;
    Ok(file_reply("text/csv; charset=utf-8; header=present", &name, file, stream::empty()))
}
