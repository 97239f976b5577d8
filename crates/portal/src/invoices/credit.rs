//! `GET` and `POST /invoices/{number}/credit`: a credit note, which takes back an invoice or a part of it. The page shows what the
//! note will say before it is issued, for it cannot be changed afterwards.

use super::credit_form::{CreditTyped, MAX_REASON_CHARS, Wanted, left, refusal_words};
use super::notice::Done;
use super::sheet::{NO_NUMBER, Sheet};
use super::{Segments, is_void, no_such_invoice, number_in, read, read_at, refused};
use crate::clients::notice::Notice;
use crate::clients::posted::Posted;
use crate::frame::{Frame, Section};
use crate::session::SignedIn;
use crate::state::Portal;
use crate::when::long_month;
use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{Credited, Day, Invoice, InvoiceKind, InvoiceNumber, InvoiceState, MinorUnits};
use chancery_pages::{Problems, Refusal, page};
use chancery_policy::{ManageInvoices, TheFirm};
use chancery_store::{CreditOrder, InvoiceRecord, StoreError};
use std::sync::Arc;

#[derive(Template)]
#[template(path = "invoices/credit.html")]
struct CreditPage<'a> {
    frame: Frame<'a>,
    number: InvoiceNumber,
    account: String,
    month: String,
    notice: Option<Notice>,
    typed: CreditTyped,
    problems: Problems,
    currency: String,
    total: String,
    credited: Option<String>,
    /// Of the total, with its tax.
    left: String,
    left_of_subtotal: String,
    example: String,
    has_tax: bool,
    is_paid: bool,
    so_far: i64,
    max_reason_chars: usize,
    preview: Option<Preview>,
}

/// What the note will say, and what will be left.
struct Preview {
    sheet: Sheet,
    effect: String,
}

pub(crate) async fn show(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    number: Segments<String>,
) -> Result<Response, Refusal> {
    let record = read_at(&portal, &who, number).await?;
    // Whoever may not make one has no use for its form.
    portal.permit::<ManageInvoices>(&who, TheFirm).await?;
    let record = creditable(record)?;
    let form = Form { typed: CreditTyped::default(), problems: Problems::default(), notice: None };
    render(&portal, &who, &record, form, StatusCode::OK)
}

pub(crate) async fn submit(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    number: Segments<String>,
    Posted(typed): Posted<CreditTyped>,
) -> Result<Response, Refusal> {
    let permit = portal.permit::<ManageInvoices>(&who, TheFirm).await?;
    let number = number_in(number)?;
    let record = creditable(read(&portal, &who, number).await?)?;
    let Wanted { amount, reason } = match typed.read(&record.invoice, record.credited) {
        Ok(wanted) => wanted,
        Err(problems) => {
            let form = Form { typed, problems, notice: None };
            return render(&portal, &who, &record, form, StatusCode::UNPROCESSABLE_ENTITY);
        }
    };
    let form = |typed, notice| Form { typed, problems: Problems::default(), notice };
    if typed.is_outdated(record.credited) {
        let form = form(typed, Some(credited_meanwhile()));
        return render(&portal, &who, &record, form, StatusCode::CONFLICT);
    }
    if !typed.look.is_empty() {
        return render(&portal, &who, &record, form(typed, None), StatusCode::OK);
    }
    let terms = portal.settings.invoice_terms.clone();
    let order = CreditOrder { invoice: record.invoice.number, amount, reason, terms };
    match portal.store.credit_invoice(permit, &order, &chancery_invoicing::pdf).await {
        Ok(note) => Ok(Redirect::to(&Done::Credited.href(note)).into_response()),
        Err(StoreError::CreditRefused { why, .. }) => {
            // Somebody credited it in this very moment.
            let record = creditable(read(&portal, &who, number).await?)?;
            let invoice = &record.invoice;
            let words = refusal_words(why, invoice.bill.currency, left(invoice, record.credited));
            let problems = Problems::one("amount", words);
            let form = Form { typed, problems, notice: Some(credited_meanwhile()) };
            render(&portal, &who, &record, form, StatusCode::CONFLICT)
        }
        Err(error) => Err(refused(&error)),
    }
}

fn credited_meanwhile() -> Notice {
    Notice::warning(
        "Credited meanwhile.",
        "Another credit note was made for this invoice since you opened this page. Nothing was issued; compare before you go on.",
    )
}

/// Only invoices are credited, and only while something is left of them.
fn creditable(record: InvoiceRecord) -> Result<InvoiceRecord, Refusal> {
    match (&record.invoice.kind, record.state) {
        (InvoiceKind::CreditNote { .. }, _) => Err(no_such_invoice()),
        (InvoiceKind::Invoice, InvoiceState::Void) => Err(is_void(record.invoice.number)),
        (InvoiceKind::Invoice, _) => Ok(record),
    }
}

struct Form {
    typed: CreditTyped,
    problems: Problems,
    notice: Option<Notice>,
}

fn render(
    portal: &Portal,
    who: &SignedIn,
    record: &InvoiceRecord,
    Form { typed, problems, notice }: Form,
    status: StatusCode,
) -> Result<Response, Refusal> {
    let InvoiceRecord { invoice, credited, .. } = record;
    let currency = invoice.bill.currency;
    let wanted = Some(&typed).filter(|typed| !typed.look.is_empty() && !problems.any());
    let wanted = wanted.and_then(|typed| typed.read(invoice, *credited).ok());
    let preview = wanted.map(|wanted| Preview::of(portal, invoice, *credited, wanted)).transpose()?;
    let left_of_total = invoice.bill.total.checked_sub(credited.total).unwrap_or_default();
    let credit_page = CreditPage {
        frame: Frame::new(portal, who, Section::Invoices),
        number: invoice.number,
        account: invoice.buyer.name.to_string(),
        month: long_month(invoice.month),
        notice,
        typed,
        problems,
        currency: currency.as_str().to_owned(),
        total: currency.to_read(invoice.bill.total),
        credited: (credited.total != MinorUnits(0)).then(|| currency.to_read(credited.total)),
        left: currency.to_read(left_of_total),
        left_of_subtotal: currency.to_read(left(invoice, *credited)),
        example: currency.decimal(left(invoice, *credited)),
        has_tax: invoice.bill.tax.is_some(),
        is_paid: record.state == InvoiceState::Paid,
        so_far: credited.subtotal.0,
        max_reason_chars: MAX_REASON_CHARS,
        preview,
    };
    page(status, &credit_page)
}

impl Preview {
    fn of(portal: &Portal, invoice: &Invoice, credited: Credited, wanted: Wanted) -> Result<Self, Refusal> {
        let now = portal.clock.now();
        let (bill, after) = invoice
            .bill
            .credited(wanted.amount, credited)
            .map_err(|error| Refusal::internal(error.to_string()))?;
        let currency = bill.currency;
        let taken = currency.to_read(MinorUnits(bill.total.0.saturating_abs()));
        let left = invoice.bill.total.checked_sub(after.total).unwrap_or_default();
        let effect = match after.subtotal == invoice.bill.subtotal {
            true => format!(
                "It takes back {taken}, which is all that is left. Invoice {} becomes void, and {} can be invoiced again.",
                invoice.number,
                long_month(invoice.month)
            ),
            false => {
                format!(
                    "It takes back {taken}, and {} is left of invoice {}.",
                    currency.to_read(left),
                    invoice.number
                )
            }
        };
        let note = Invoice {
            number: NO_NUMBER,
            kind: InvoiceKind::CreditNote { of: invoice.number, reason: wanted.reason },
            issued_at: now,
            due: Day::of(now),
            seller: portal.settings.invoice_terms.seller.clone(),
            bill,
            ..invoice.clone()
        };
        Ok(Self { sheet: Sheet::credit_draft(&note), effect })
    }
}
