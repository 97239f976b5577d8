//! `GET` and `POST /invoices/{number}/credit`: credits an invoice in full or in part. The page previews the credit note before it is
//! issued, because it cannot be changed afterwards.

use super::credit_form::{CreditInput, ValidCredit, credit_error_message};
use super::done::CompletedAction;
use super::issue_check::unprintable;
use super::path_params::{PathParams, parse_number, read, read_from_path};
use super::sheet::{DRAFT_NUMBER, Sheet};
use crate::error::{PageError, invoice_is_void, invoice_not_found};
use crate::frame::{Frame, Section};
use crate::sign_in::session::SignedIn;
use crate::state::Portal;
use crate::time_format::long_month;
use crate::unprintable::{UNPRINTABLE_ADVICE, unprintable_sentence};
use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use chancery_domain::{
    Buyer, CREDIT_REASON_BOUNDS, Credited, Day, Invoice, InvoiceKind, InvoiceNumber, InvoiceState, MinorUnits,
};
use chancery_invoicing::printable_pdf;
use chancery_policy::{FirmResource, ManageInvoices, ReadInvoices};
use chancery_store::{CreditRequest, InvoiceError, InvoiceRecord};
use chancery_web::{ErrorPage, Form, Notice, PostedForm, Problems, page};
use std::sync::Arc;

#[derive(Template)]
#[template(path = "invoices/credit.html")]
struct CreditPage<'a> {
    frame: Frame<'a>,
    number: InvoiceNumber,
    account: String,
    month: String,
    notice: Option<Notice>,
    typed: CreditInput,
    problems: Problems,
    currency: String,
    total: String,
    credited: Option<String>,
    /// Remaining total, including tax.
    left: String,
    left_of_subtotal: String,
    example: String,
    has_tax: bool,
    is_paid: bool,
    so_far: i64,
    max_reason_chars: usize,
    preview: Option<Preview>,
}

/// Preview of the note, and what will remain of the invoice.
struct Preview {
    sheet: Sheet,
    effect: String,
}

pub(crate) async fn show(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    number: PathParams<String>,
) -> Result<Response, PageError> {
    let record = read_from_path(&portal, &signed_in, number).await?;
    // Users who may not issue credit notes do not get the form.
    portal.ensure_allowed::<ManageInvoices>(&signed_in, FirmResource).await?;
    let record = creditable(record)?;
    render(&portal, &signed_in, &record, (Form::default(), None), StatusCode::OK).await
}

pub(crate) async fn submit(
    State(portal): State<Arc<Portal>>,
    signed_in: SignedIn,
    number: PathParams<String>,
    form: Result<PostedForm<CreditInput>, ErrorPage>,
) -> Result<Response, PageError> {
    let permit = portal.permit::<ManageInvoices>(&signed_in, FirmResource).await?;
    let (number, PostedForm(mut typed)) = (parse_number(number)?, form?);
    let record = creditable(read(&portal, &signed_in, number).await?)?;
    let credit = match typed.read(&record.invoice, record.credited, record.left) {
        Ok(credit) => credit,
        Err(problems) => {
            let form = (Form { typed, problems }, None);
            return render(&portal, &signed_in, &record, form, StatusCode::UNPROCESSABLE_ENTITY).await;
        }
    };
    if typed.is_outdated(record.credited) {
        let form = (Form::of(typed), Some(credit_conflict_notice()));
        return render(&portal, &signed_in, &record, form, StatusCode::CONFLICT).await;
    }
    let buyer = current_buyer(&portal, &signed_in, &record.invoice).await?;
    let (draft, _) = draft_note(&portal, &record, &credit, buyer)?;
    let texts = unprintable(&portal, &draft)?;
    if !texts.is_empty() {
        let text = format!("{} {UNPRINTABLE_ADVICE} Nothing was issued.", unprintable_sentence(&texts));
        // A preview would offer to issue it.
        typed.look.clear();
        let form = (Form::of(typed), Some(Notice::warning("Text cannot be printed.", text)));
        return render(&portal, &signed_in, &record, form, StatusCode::UNPROCESSABLE_ENTITY).await;
    }
    if !typed.look.is_empty() {
        return render(&portal, &signed_in, &record, (Form::of(typed), None), StatusCode::OK).await;
    }
    let (ValidCredit { amount, reason }, terms) = (credit, portal.settings.invoice_terms.clone());
    let fonts = portal.settings.pdf_fonts.clone();
    let render_pdf = Box::new(move |invoice: &Invoice| printable_pdf(invoice, &fonts));
    // `is_outdated` has checked that the page showed this credited amount.
    let request =
        CreditRequest { invoice: number, amount, expected_credited: record.credited, reason, terms };
    match portal.store.invoices.credit_invoice(permit, &request, render_pdf).await {
        Ok(note) => Ok(Redirect::to(&CompletedAction::Credited.href(note)).into_response()),
        // Someone else credited the invoice after it was read.
        Err(InvoiceError::ConcurrentCredit(_)) => {
            let record = creditable(read(&portal, &signed_in, number).await?)?;
            let form = (Form::of(typed), Some(credit_conflict_notice()));
            render(&portal, &signed_in, &record, form, StatusCode::CONFLICT).await
        }
        Err(InvoiceError::CreditRejected { why, .. }) => {
            let record = creditable(read(&portal, &signed_in, number).await?)?;
            let invoice = &record.invoice;
            let message = credit_error_message(why, invoice.bill.currency, record.left.subtotal);
            let problems = Problems::one("amount", message);
            let form = (Form { typed, problems }, Some(credit_conflict_notice()));
            render(&portal, &signed_in, &record, form, StatusCode::CONFLICT).await
        }
        Err(error) => Err(error.into()),
    }
}

fn credit_conflict_notice() -> Notice {
    Notice::warning(
        "Someone else credited this invoice.",
        "Nothing was issued. Check the remaining amount before you continue.",
    )
}

/// Only an invoice with a remaining amount can be credited.
fn creditable(record: InvoiceRecord) -> Result<Creditable, PageError> {
    let InvoiceRecord { invoice, state, credited, .. } = record;
    match (&invoice.kind, state) {
        (InvoiceKind::CreditNote { .. }, _) => Err(invoice_not_found().into()),
        (InvoiceKind::Invoice, InvoiceState::Void) => Err(invoice_is_void(invoice.number).into()),
        (InvoiceKind::Invoice, _) => {
            let left = credited.remaining_of(&invoice.bill)?;
            Ok(Creditable { invoice, state, credited, left })
        }
    }
}

struct Creditable {
    invoice: Invoice,
    state: InvoiceState,
    credited: Credited,
    /// The amount that can still be credited.
    left: Credited,
}

async fn render(
    portal: &Portal,
    signed_in: &SignedIn,
    record: &Creditable,
    (Form { typed, problems }, notice): (Form<CreditInput>, Option<Notice>),
    status: StatusCode,
) -> Result<Response, PageError> {
    let Creditable { invoice, state, credited, left } = record;
    let currency = invoice.bill.currency;
    let credit = Some(&typed).filter(|typed| !typed.look.is_empty() && !problems.any());
    let credit = credit.and_then(|typed| typed.read(invoice, *credited, *left).ok());
    let preview = match credit {
        None => None,
        Some(credit) => {
            Some(Preview::of(portal, record, &credit, current_buyer(portal, signed_in, invoice).await?)?)
        }
    };
    let credit_page = CreditPage {
        frame: Frame::new(portal, signed_in, Section::Invoices),
        number: invoice.number,
        account: invoice.buyer.name.to_string(),
        month: long_month(invoice.month),
        notice,
        typed,
        problems,
        currency: currency.as_str().to_owned(),
        total: currency.format_amount(invoice.bill.total),
        credited: (credited.total != MinorUnits(0)).then(|| currency.format_amount(credited.total)),
        left: currency.format_amount(left.total),
        left_of_subtotal: currency.format_amount(left.subtotal),
        example: currency.to_decimal_string(left.subtotal),
        has_tax: invoice.bill.tax.is_some(),
        is_paid: *state == InvoiceState::Paid,
        so_far: credited.subtotal.0,
        max_reason_chars: CREDIT_REASON_BOUNDS.max_chars,
        preview,
    };
    Ok(page(status, &credit_page)?)
}

/// The buyer's current billing details, which the note will show.
async fn current_buyer(portal: &Portal, signed_in: &SignedIn, invoice: &Invoice) -> Result<Buyer, PageError> {
    let permit = portal.permit::<ReadInvoices>(signed_in, FirmResource).await?;
    let found = portal.store.invoices.billable_month(permit, invoice.buyer.account, invoice.month).await?;
    Ok(found.map_or_else(|| invoice.buyer.clone(), |month| month.buyer))
}

/// The credit note that would be issued now, and the amount that the invoice is credited with then. It has no number yet.
fn draft_note(
    portal: &Portal,
    record: &Creditable,
    credit: &ValidCredit,
    buyer: Buyer,
) -> Result<(Invoice, Credited), PageError> {
    let (invoice, now) = (&record.invoice, portal.clock.now());
    let (bill, after) = invoice
        .bill
        .credit_note(credit.amount, record.credited)
        .map_err(|error| ErrorPage::internal(error.to_string()))?;
    let note = Invoice {
        number: DRAFT_NUMBER,
        kind: InvoiceKind::CreditNote { of: invoice.number, reason: credit.reason.clone() },
        issued_at: now,
        due: Day::containing(now),
        seller: portal.settings.invoice_terms.seller.clone(),
        buyer,
        bill,
        ..invoice.clone()
    };
    Ok((note, after))
}

impl Preview {
    fn of(
        portal: &Portal,
        record: &Creditable,
        credit: &ValidCredit,
        buyer: Buyer,
    ) -> Result<Self, PageError> {
        let invoice = &record.invoice;
        let (note, after) = draft_note(portal, record, credit, buyer)?;
        let credited_amount = note.bill.total.checked_neg()?;
        let left = after.remaining_of(&invoice.bill)?;
        let currency = note.bill.currency;
        let credited_amount = currency.format_amount(credited_amount);
        let effect = match after.subtotal == invoice.bill.subtotal {
            true => format!(
                "This credits {credited_amount}, the full remaining amount. Invoice {} becomes void and {} can be invoiced again.",
                invoice.number,
                long_month(invoice.month)
            ),
            false if record.state == InvoiceState::Paid => {
                format!("This credits {credited_amount}. Invoice {} stays marked as paid.", invoice.number)
            }
            false => {
                format!(
                    "This credits {credited_amount}. {} of invoice {} remains due.",
                    currency.format_amount(left.total),
                    invoice.number
                )
            }
        };
        Ok(Self { sheet: Sheet::credit_draft(&note), effect })
    }
}
