//! `GET` and `POST /invoices/{number}/credit`: a credit note, which takes back an invoice or a part of it. The page shows what the
//! note will say before it is issued, for it cannot be changed afterwards.

use super::addressed::{Segments, number_in, read, read_at};
use super::credit_form::{CreditTyped, Wanted, refusal_words};
use super::done::Done;
use super::sheet::{NO_NUMBER, Sheet};
use crate::error::{PageError, invoice_is_void, no_such_invoice};
use crate::frame::{Frame, Section};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::when::long_month;
use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{
    Buyer, CREDIT_REASON, Credited, Day, Invoice, InvoiceKind, InvoiceNumber, InvoiceState, MinorUnits,
};
use chancery_policy::{ManageInvoices, ReadInvoices, TheFirm};
use chancery_store::{CreditOrder, InvoiceError, InvoiceRecord};
use chancery_web::{ErrorPage, Form, Notice, Posted, Problems, page};
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
) -> Result<Response, PageError> {
    let record = read_at(&portal, &who, number).await?;
    // Whoever may not make one has no use for its form.
    portal.ensure_allowed::<ManageInvoices>(&who, TheFirm).await?;
    let record = creditable(record)?;
    render(&portal, &who, &record, (Form::default(), None), StatusCode::OK).await
}

pub(crate) async fn submit(
    State(portal): State<Arc<Portal>>,
    who: SignedIn,
    number: Segments<String>,
    form: Result<Posted<CreditTyped>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ManageInvoices>(&who, TheFirm).await?;
    let (number, Posted(typed)) = (number_in(number)?, form?);
    let record = creditable(read(&portal, &who, number).await?)?;
    let Wanted { amount, reason } = match typed.read(&record.invoice, record.credited, record.left) {
        Ok(wanted) => wanted,
        Err(problems) => {
            let form = (Form { typed, problems }, None);
            return render(&portal, &who, &record, form, StatusCode::UNPROCESSABLE_ENTITY).await;
        }
    };
    if typed.is_outdated(record.credited) {
        let form = (Form::of(typed), Some(credited_meanwhile()));
        return render(&portal, &who, &record, form, StatusCode::CONFLICT).await;
    }
    if !typed.look.is_empty() {
        return render(&portal, &who, &record, (Form::of(typed), None), StatusCode::OK).await;
    }
    let terms = portal.settings.invoice_terms.clone();
    // What was credited is what the page has shown.
    let order = CreditOrder { invoice: number, amount, credited_before: record.credited, reason, terms };
    match portal.store.invoices.credit_invoice(permit, &order, &chancery_invoicing::pdf).await {
        Ok(note) => Ok(Redirect::to(&Done::Credited.href(note)).into_response()),
        // Somebody credited it in this very moment.
        Err(InvoiceError::CreditedMeanwhile(_)) => {
            let record = creditable(read(&portal, &who, number).await?)?;
            let form = (Form::of(typed), Some(credited_meanwhile()));
            render(&portal, &who, &record, form, StatusCode::CONFLICT).await
        }
        Err(InvoiceError::CreditRefused { why, .. }) => {
            let record = creditable(read(&portal, &who, number).await?)?;
            let invoice = &record.invoice;
            let words = refusal_words(why, invoice.bill.currency, record.left.subtotal);
            let problems = Problems::one("amount", words);
            let form = (Form { typed, problems }, Some(credited_meanwhile()));
            render(&portal, &who, &record, form, StatusCode::CONFLICT).await
        }
        Err(error) => Err(error.into()),
    }
}

fn credited_meanwhile() -> Notice {
    Notice::warning(
        "Credited meanwhile.",
        "Another credit note was made for this invoice since you opened this page. Nothing was issued; compare before you go on.",
    )
}

/// Only invoices are credited, and only while something is left of them.
fn creditable(record: InvoiceRecord) -> Result<Creditable, PageError> {
    let InvoiceRecord { invoice, state, credited, .. } = record;
    match (&invoice.kind, state) {
        (InvoiceKind::CreditNote { .. }, _) => Err(no_such_invoice().into()),
        (InvoiceKind::Invoice, InvoiceState::Void) => Err(invoice_is_void(invoice.number).into()),
        (InvoiceKind::Invoice, _) => {
            let left = credited.left_of(&invoice.bill)?;
            Ok(Creditable { invoice, state, credited, left })
        }
    }
}

struct Creditable {
    invoice: Invoice,
    state: InvoiceState,
    credited: Credited,
    /// What can still be taken back.
    left: Credited,
}

async fn render(
    portal: &Portal,
    who: &SignedIn,
    record: &Creditable,
    (Form { typed, problems }, notice): (Form<CreditTyped>, Option<Notice>),
    status: StatusCode,
) -> Result<Response, PageError> {
    let Creditable { invoice, state, credited, left } = record;
    let currency = invoice.bill.currency;
    let wanted = Some(&typed).filter(|typed| !typed.look.is_empty() && !problems.any());
    let wanted = wanted.and_then(|typed| typed.read(invoice, *credited, *left).ok());
    let preview = match wanted {
        None => None,
        Some(wanted) => Some(Preview::of(portal, record, wanted, buyer_now(portal, who, invoice).await?)?),
    };
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
        left: currency.to_read(left.total),
        left_of_subtotal: currency.to_read(left.subtotal),
        example: currency.decimal(left.subtotal),
        has_tax: invoice.bill.tax.is_some(),
        is_paid: *state == InvoiceState::Paid,
        so_far: credited.subtotal.0,
        max_reason_chars: CREDIT_REASON.max_chars,
        preview,
    };
    Ok(page(status, &credit_page)?)
}

/// Whoever was billed, as they are to be reached now: that is what the note will say.
async fn buyer_now(portal: &Portal, who: &SignedIn, invoice: &Invoice) -> Result<Buyer, PageError> {
    let permit = portal.permit::<ReadInvoices>(who, TheFirm).await?;
    let found = portal.store.invoices.month_to_bill(permit, invoice.buyer.account, invoice.month).await?;
    Ok(found.map_or_else(|| invoice.buyer.clone(), |month| month.buyer))
}

impl Preview {
    fn of(portal: &Portal, record: &Creditable, wanted: Wanted, buyer: Buyer) -> Result<Self, PageError> {
        let (invoice, now) = (&record.invoice, portal.clock.now());
        let (bill, after) = invoice
            .bill
            .credited(wanted.amount, record.credited)
            .map_err(|error| ErrorPage::internal(error.to_string()))?;
        let taken = bill.total.checked_neg()?;
        let left = after.left_of(&invoice.bill)?;
        let currency = bill.currency;
        let taken = currency.to_read(taken);
        let effect = match after.subtotal == invoice.bill.subtotal {
            true => format!(
                "It takes back {taken}, which is all that is left. Invoice {} becomes void, and {} can be invoiced again.",
                invoice.number,
                long_month(invoice.month)
            ),
            false => {
                format!(
                    "It takes back {taken}, and {} is left of invoice {}.",
                    currency.to_read(left.total),
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
            buyer,
            bill,
            ..invoice.clone()
        };
        Ok(Self { sheet: Sheet::credit_draft(&note), effect })
    }
}
