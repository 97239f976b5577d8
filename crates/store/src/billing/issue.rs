//! Issues invoices and credit notes, and records payments.
//!
//! 1. The issuer first locks the invoice numbers, on all nodes. So documents are issued one after the other, numbers
//!    have no gaps, and concurrent requests for one month create one invoice.
//! 2. For an invoice it then locks the account's month. A concurrent settlement into that month finishes before, or
//!    waits for the invoice and is then rejected by the database. Settlements into other months never wait.
//! 3. The document is rendered under these locks. If that fails, everything is rolled back.

use crate::DbError;
use crate::billing::months::{self, buyer, invoice_of_month};
use crate::billing::rows::{
    self, CREDIT_NOTE, INVOICE, PARTIAL_CREDIT, TOKENS, add_lines_and_events, change_columns, invalid,
    parse_invoice_number,
};
use crate::db::{Dialect, QueryError, Statement, Tx, query};
use crate::ledger::batch::to_db_count;
use crate::{
    CreditRequest, InvoiceError, InvoiceRecord, IssueOutcome, IssueRequest, PaymentChange, RenderInvoice,
};
use chancery_domain::{
    AccessRequest, Credited, Day, Invoice, InvoiceAmounts, InvoiceEventKind, InvoiceKind, InvoiceNumber,
    InvoiceState, InvoiceTerms, LineItem, ModelUsage, Month, Nanos, UnixMillis,
};
use sha2::{Digest, Sha256};

/// Invoice lines per INSERT.
const MAX_LINES_PER_STATEMENT: usize = 500;

const NEXT_SERIAL: &str = "UPDATE invoice_serials SET serial = serial + 1 WHERE year = $1 RETURNING serial";
const FIRST_SERIAL: &str = "INSERT INTO invoice_serials (year, serial) VALUES ($1, 1)";
const LAST_ISSUED: &str = "SELECT issued_at_ms FROM invoices ORDER BY year DESC, serial DESC LIMIT 1";
const ADD_INVOICE: &str = "INSERT INTO invoices (year, serial, kind, credited_year, credited_serial, reason, account_id, month, \
    issued_at_ms, due_day, currency, seller_name, letterhead, payment, buyer_name, buyer_address, buyer_email, \
    tax_name, tax_rate_ppm, subtotal_minor, tax_minor, total_minor, exact_nanos, document_hash, state) VALUES \
    ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25)";
const ADD_DOCUMENT: &str = "INSERT INTO invoice_documents (year, serial, pdf) VALUES ($1, $2, $3)";
const ADD_EVENT: &str = "INSERT INTO invoice_events (year, serial, kind, credit_note_year, credit_note_serial, actor_id, at_ms) \
    VALUES ($1, $2, $3, $4, $5, $6, $7)";
const SET_BILLED: &str = "UPDATE billing_months SET invoice_year = $3, invoice_serial = $4 \
    WHERE account_id = $1 AND month = $2 AND invoice_year IS NULL";
const SET_UNBILLED: &str = "UPDATE billing_months SET invoice_year = NULL, invoice_serial = NULL \
    WHERE account_id = $1 AND month = $2 AND invoice_year = $3 AND invoice_serial = $4";
const SET_CREDITED: &str = "UPDATE invoices SET state = $3, credited_subtotal = $4, credited_total = $5 \
    WHERE year = $1 AND serial = $2";
const SET_STATE: &str = "UPDATE invoices SET state = $3 WHERE year = $1 AND serial = $2";

const LOCK_INVOICE_NUMBERS: &str = "LOCK TABLE invoice_serials IN SHARE ROW EXCLUSIVE MODE";
/// Locks account `$1` and month `$2`. The trigger `invoiced_usage_is_closed` takes the same lock in shared mode.
const LOCK_USAGE: &str = "SELECT pg_advisory_xact_lock($2::bigint::integer, usage_lock_key($1::bigint))";
const LOCK_INVOICE: &str = "SELECT * FROM invoices WHERE year = $1 AND serial = $2 FOR NO KEY UPDATE";

/// SQLite needs no lock: it has one writer.
fn lock_invoice_numbers(tx: &mut Tx<'_>) -> Result<(), QueryError> {
    match tx.dialect() {
        Dialect::Sqlite => Ok(()),
        Dialect::Postgres => query(LOCK_INVOICE_NUMBERS).execute(tx).map(|_| ()),
    }
}

pub(crate) fn issue(
    tx: &mut Tx<'_>,
    access_request: &AccessRequest,
    request: &IssueRequest,
    render: &RenderInvoice,
) -> Result<IssueOutcome, InvoiceError> {
    let IssueRequest { account, month, terms } = request;
    lock_invoice_numbers(tx)?;
    let Some(buyer) = buyer(tx, *account)? else {
        return Err(InvoiceError::NoSuchAccountId(*account));
    };
    if let Some(number) = invoice_of_month(tx, *account, *month)? {
        return Ok(IssueOutcome::AlreadyIssued(number));
    }
    if access_request.at < month.invoiceable_from() {
        return Err(InvoiceError::MonthStillOpen { month: *month });
    }
    if tx.dialect() == Dialect::Postgres {
        query(LOCK_USAGE).bind(account.0).bind(i64::from(month.number())).execute(tx)?;
    }
    let bill = compute_bill(&months::usage(*account, *month).fetch_all(tx)?, terms)?;
    if bill.lines.is_empty() {
        return Err(InvoiceError::NothingToBill { account: buyer.name, month: *month });
    }
    let issued_at = issue_time(tx, access_request)?;
    let number = next_number(tx, issued_at)?;
    let invoice = Invoice {
        number,
        kind: InvoiceKind::Invoice,
        month: *month,
        issued_at,
        due: Day(Day::containing(issued_at).0.saturating_add(i32::from(terms.payment_days))),
        seller: terms.seller.clone(),
        buyer,
        bill,
    };
    add_invoice(tx, access_request, &invoice, render)?;
    let set_billed = query(SET_BILLED)
        .bind(account.0)
        .bind(i64::from(month.number()))
        .bind(i64::from(number.year))
        .bind(i64::from(number.serial));
    match set_billed.execute(tx)? {
        1 => Ok(IssueOutcome::New(number)),
        _ => Err(invalid("an account's monthly usage", format!("missing for {month}")).into()),
    }
}

pub(crate) fn credit(
    tx: &mut Tx<'_>,
    access_request: &AccessRequest,
    request: &CreditRequest,
    render: &RenderInvoice,
) -> Result<InvoiceNumber, InvoiceError> {
    let number = request.invoice;
    lock_invoice_numbers(tx)?;
    let mut record = [lock_invoice(tx, number)?];
    let (state, before) = (record[0].state, record[0].credited);
    if state == InvoiceState::Void {
        return Err(nothing_left_to_credit(number));
    }
    if before != request.expected_credited {
        return Err(InvoiceError::ConcurrentCredit(number));
    }
    add_lines_and_events(tx, &mut record)?;
    let [InvoiceRecord { invoice, .. }] = record;
    let (bill, credited) = invoice
        .bill
        .credit_note(request.amount, before)
        .map_err(|why| InvoiceError::CreditRejected { number, why })?;
    let account = invoice.buyer.account;
    let Some(buyer) = buyer(tx, account)? else {
        return Err(InvoiceError::NoSuchAccountId(account));
    };
    let issued_at = issue_time(tx, access_request)?;
    let note = Invoice {
        number: next_number(tx, issued_at)?,
        kind: InvoiceKind::CreditNote { of: number, reason: request.reason.clone() },
        month: invoice.month,
        issued_at,
        // A credit note is not payable.
        due: Day::containing(issued_at),
        seller: request.terms.seller.clone(),
        buyer,
        bill,
    };
    add_invoice(tx, access_request, &note, render)?;
    let is_void = is_fully_credited(&invoice.bill, credited);
    let state = if is_void { InvoiceState::Void } else { state };
    let set_credited = query(SET_CREDITED)
        .bind(i64::from(number.year))
        .bind(i64::from(number.serial))
        .bind(state.as_str())
        .bind(credited.subtotal.0)
        .bind(credited.total.0);
    set_credited.execute(tx)?;
    if is_void {
        let set_unbilled = query(SET_UNBILLED)
            .bind(account.0)
            .bind(i64::from(invoice.month.number()))
            .bind(i64::from(number.year))
            .bind(i64::from(number.serial));
        set_unbilled.execute(tx)?;
    }
    let change = if is_void { InvoiceEventKind::Voided } else { InvoiceEventKind::Credited };
    add_event(tx, access_request, issued_at, number, change(note.number))?;
    Ok(note.number)
}

pub(crate) fn record_payment(
    tx: &mut Tx<'_>,
    access_request: &AccessRequest,
    number: InvoiceNumber,
    change: PaymentChange,
) -> Result<InvoiceState, InvoiceError> {
    let record = lock_invoice(tx, number)?;
    let (after, change) = match change {
        PaymentChange::Paid => (InvoiceState::Paid, InvoiceEventKind::Paid),
        PaymentChange::Unpaid => (InvoiceState::Issued, InvoiceEventKind::MarkedUnpaid),
    };
    match record.state {
        InvoiceState::Void => return Err(InvoiceError::InvoiceIsVoid(number)),
        state if state == after => return Ok(state),
        _ => {}
    }
    let (year, serial) = (i64::from(number.year), i64::from(number.serial));
    query(SET_STATE).bind(year).bind(serial).bind(after.as_str()).execute(tx)?;
    add_event(tx, access_request, access_request.at, number, change)?;
    Ok(after)
}

/// The invoice without lines and events, locked until the transaction ends. `NoSuchInvoice` also for a credit note.
fn lock_invoice(tx: &mut Tx<'_>, number: InvoiceNumber) -> Result<InvoiceRecord, InvoiceError> {
    let lock = query(match tx.dialect() {
        Dialect::Sqlite => rows::ONE,
        Dialect::Postgres => LOCK_INVOICE,
    });
    let lock = lock.bind(i64::from(number.year)).bind(i64::from(number.serial));
    match lock.fetch_optional::<InvoiceRecord>(tx)? {
        Some(record) if record.invoice.kind == InvoiceKind::Invoice => Ok(record),
        _ => Err(InvoiceError::NoSuchInvoice(number)),
    }
}

/// The issue time: never before the last document, so that numbers and dates have the same order even if clocks differ.
/// Requires the lock on the numbers.
fn issue_time(tx: &mut Tx<'_>, access_request: &AccessRequest) -> Result<UnixMillis, QueryError> {
    let last: Option<i64> = query(LAST_ISSUED).fetch_optional(tx)?;
    Ok(last.map_or(access_request.at, |last| access_request.at.max(UnixMillis(last))))
}

/// Requires the lock on the numbers.
fn next_number(tx: &mut Tx<'_>, at: UnixMillis) -> Result<InvoiceNumber, QueryError> {
    let year = i64::from(Month::containing(at).year());
    let next: Option<i64> = query(NEXT_SERIAL).bind(year).fetch_optional(tx)?;
    if next.is_none() {
        query(FIRST_SERIAL).bind(year).execute(tx)?;
    }
    parse_invoice_number(year, next.unwrap_or(1))
}

/// Renders the document and stores it with its figures.
fn add_invoice(
    tx: &mut Tx<'_>,
    access_request: &AccessRequest,
    invoice: &Invoice,
    render: &RenderInvoice,
) -> Result<(), InvoiceError> {
    let Invoice { number, kind, month, issued_at, due, seller, buyer, bill } = invoice;
    let (year, serial) = (i64::from(number.year), i64::from(number.serial));
    let document = render(invoice).map_err(|why| InvoiceError::DocumentFailed { number: *number, why })?;
    let (kind, of, reason) = match kind {
        InvoiceKind::Invoice => (INVOICE, None, ""),
        InvoiceKind::CreditNote { of, reason } => (CREDIT_NOTE, Some(of), reason.as_str()),
    };
    let tax = bill.tax.as_ref();
    let add = query(ADD_INVOICE)
        .bind(year)
        .bind(serial)
        .bind(kind)
        .bind(of.map(|of| i64::from(of.year)))
        .bind(of.map(|of| i64::from(of.serial)))
        .bind(reason)
        .bind(buyer.account.0)
        .bind(i64::from(month.number()))
        .bind(issued_at.0)
        .bind(i64::from(due.0))
        .bind(bill.currency.as_str())
        .bind(seller.name.as_str())
        .bind(seller.letterhead.as_str())
        .bind(seller.payment.as_str())
        .bind(buyer.name.as_str())
        .bind(buyer.address.as_str())
        .bind(buyer.email.as_str())
        .bind(tax.map(|tax| tax.name.as_str()))
        .bind(tax.map(|tax| i64::from(tax.rate.ppm())))
        .bind(bill.subtotal.0)
        .bind(tax.map_or(0, |tax| tax.amount.0))
        .bind(bill.total.0)
        .bind(bill.exact.0)
        .bind(Sha256::digest(&document).to_vec())
        .bind(InvoiceState::Issued.as_str());
    add.execute(tx)?;
    add_lines(tx, *number, bill)?;
    query(ADD_DOCUMENT).bind(year).bind(serial).bind(document).execute(tx)?;
    Ok(add_event(tx, access_request, *issued_at, *number, InvoiceEventKind::Issued)?)
}

fn add_lines(tx: &mut Tx<'_>, number: InvoiceNumber, bill: &InvoiceAmounts) -> Result<(), QueryError> {
    let mut position: i64 = 0;
    for lines in bill.lines.chunks(MAX_LINES_PER_STATEMENT) {
        let mut add = Statement::new(
            "INSERT INTO invoice_lines \
             (year, serial, position, item, model, direction, tokens, price_nanos, exact_nanos, amount_minor) ",
        );
        add.push_values(lines, |line| {
            let (item, model, direction, tokens, price) = match &line.item {
                LineItem::Part => (PARTIAL_CREDIT, "", "", 0, 0),
                LineItem::Tokens { model, direction, tokens, price } => {
                    (TOKENS, model.as_str(), direction.as_str(), *tokens, price.nanos_per_token())
                }
            };
            position += 1;
            [
                i64::from(number.year).into(),
                i64::from(number.serial).into(),
                (position - 1).into(),
                item.into(),
                model.into(),
                direction.into(),
                to_db_count(tokens).into(),
                price.into(),
                line.exact.0.into(),
                line.amount.0.into(),
            ]
        });
        add.build().persistent(false).execute(tx)?;
    }
    Ok(())
}

fn add_event(
    tx: &mut Tx<'_>,
    access_request: &AccessRequest,
    at: UnixMillis,
    number: InvoiceNumber,
    change: InvoiceEventKind,
) -> Result<(), QueryError> {
    let (change, note) = change_columns(change);
    let add = query(ADD_EVENT)
        .bind(i64::from(number.year))
        .bind(i64::from(number.serial))
        .bind(change)
        .bind(note.map(|note| i64::from(note.year)))
        .bind(note.map(|note| i64::from(note.serial)))
        .bind(access_request.by.person().map(|person| person.0))
        .bind(at.0);
    add.execute(tx).map(|_| ())
}

/// Checks that the summed cost is tokens times prices, as in every ledger row.
fn compute_bill(usage: &[ModelUsage], terms: &InvoiceTerms) -> Result<InvoiceAmounts, InvoiceError> {
    let bill = InvoiceAmounts::of(usage, terms).map_err(|_| DbError::SumTooLarge)?;
    let cost = usage.iter().try_fold(Nanos(0), |sum, usage| sum.checked_add(usage.cost));
    match cost {
        Ok(cost) if cost == bill.exact => Ok(bill),
        Ok(cost) => {
            let why = format!("tokens and prices give {}, but the costs are {cost}", bill.exact);
            Err(DbError::Corrupt { what: "an account's monthly usage", why }.into())
        }
        Err(_) => Err(DbError::SumTooLarge.into()),
    }
}

fn is_fully_credited(bill: &InvoiceAmounts, credited: Credited) -> bool {
    credited == Credited { subtotal: bill.subtotal, total: bill.total }
}

fn nothing_left_to_credit(number: InvoiceNumber) -> InvoiceError {
    InvoiceError::CreditRejected { number, why: chancery_domain::CreditError::ExceedsRemaining }
}
