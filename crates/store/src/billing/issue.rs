//! How invoices and credit notes are issued, and what becomes of them.
//!
//! 1. Whoever issues something holds the numbers first, so that documents come one after the other, on all nodes: two who issue
//!    one month make one invoice, and there is no gap between two numbers.
//! 2. For an invoice the account's month is held next. Who settles into it at this moment is done before, or waits until the
//!    invoice is there and is then refused by the database. Who settles into other months never waits.
//! 3. The document is made while all this is held. Where that fails, nothing has happened.

use crate::audit::step::Stopped;
use crate::billing::months::InvoiceMonths;
use crate::billing::rows::{
    CREDIT_NOTE, INVOICE, InvoiceRows, PART, StoredInvoice, TOKENS, corrupt, deed_words, stored_number,
};
use crate::db::both::{Statement, for_both_connections};
use crate::ledger::batch::stored_count;
use crate::{CreditOrder, IssueOrder, Issued, PaymentDeed, Render, StoreError};
use chancery_domain::{
    Asked, Bill, Credited, Day, Invoice, InvoiceDeed, InvoiceKind, InvoiceNumber, InvoiceState, InvoiceTerms,
    LineItem, ModelUsage, Month, Nanos, UnixMillis,
};
use sha2::{Digest, Sha256};
use sqlx::{PgConnection, SqliteConnection};

/// Lines that one statement adds.
const MAX_LINES_AT_ONCE: usize = 500;

const NEXT_SERIAL: &str = "UPDATE invoice_serials SET serial = serial + 1 WHERE year = $1 RETURNING serial";
const FIRST_SERIAL: &str = "INSERT INTO invoice_serials (year, serial) VALUES ($1, 1)";
const LAST_ISSUED: &str = "SELECT issued_at_ms FROM invoices ORDER BY year DESC, serial DESC LIMIT 1";
const KEEP_INVOICE: &str = "INSERT INTO invoices (year, serial, kind, of_year, of_serial, reason, account_id, month, \
    issued_at_ms, due_day, currency, seller_name, letterhead, payment, buyer_name, buyer_address, buyer_email, \
    tax_name, tax_rate_ppm, subtotal_minor, tax_minor, total_minor, exact_nanos, document_hash, state) VALUES \
    ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25)";
const KEEP_DOCUMENT: &str = "INSERT INTO invoice_documents (year, serial, pdf) VALUES ($1, $2, $3)";
const NOTE_EVENT: &str = "INSERT INTO invoice_events (year, serial, deed, note_year, note_serial, by_id, at_ms) \
    VALUES ($1, $2, $3, $4, $5, $6, $7)";
const SET_BILLED: &str = "UPDATE account_months SET invoice_year = $3, invoice_serial = $4 \
    WHERE account_id = $1 AND month = $2 AND invoice_year IS NULL";
const SET_UNBILLED: &str = "UPDATE account_months SET invoice_year = NULL, invoice_serial = NULL \
    WHERE account_id = $1 AND month = $2 AND invoice_year = $3 AND invoice_serial = $4";
const SET_CREDITED: &str = "UPDATE invoices SET state = $3, credited_subtotal = $4, credited_total = $5 \
    WHERE year = $1 AND serial = $2";
const SET_STATE: &str = "UPDATE invoices SET state = $3 WHERE year = $1 AND serial = $2";

/// What is held until the transaction ends.
pub(crate) trait HoldInvoices {
    const HOLD_NUMBERS: &'static str;
    /// Of the account $1 and the month $2.
    const HOLD_USAGE: &'static str;
    const HOLD_INVOICE: &'static str;
}

/// There is one writer anyway.
impl HoldInvoices for SqliteConnection {
    const HOLD_NUMBERS: &'static str = "";
    const HOLD_USAGE: &'static str = "SELECT $1, $2";
    const HOLD_INVOICE: &'static str = "SELECT * FROM invoices WHERE year = $1 AND serial = $2";
}

impl HoldInvoices for PgConnection {
    const HOLD_NUMBERS: &'static str = "LOCK TABLE invoice_serials IN SHARE ROW EXCLUSIVE MODE";
    /// The trigger `invoiced_usage_is_closed` shares it.
    const HOLD_USAGE: &'static str =
        "SELECT pg_advisory_xact_lock($2::bigint::integer, usage_lock($1::bigint))";
    const HOLD_INVOICE: &'static str =
        "SELECT * FROM invoices WHERE year = $1 AND serial = $2 FOR NO KEY UPDATE";
}

#[async_trait::async_trait]
pub(crate) trait InvoiceIssue {
    async fn issue(
        &mut self,
        asked: &Asked,
        order: &IssueOrder,
        render: Render<'_>,
    ) -> Result<Issued, Stopped>;

    async fn credit(
        &mut self,
        asked: &Asked,
        order: &CreditOrder,
        render: Render<'_>,
    ) -> Result<InvoiceNumber, Stopped>;

    async fn pay(
        &mut self,
        asked: &Asked,
        number: InvoiceNumber,
        deed: PaymentDeed,
    ) -> Result<InvoiceState, Stopped>;

    /// The invoice, held for changing. `NoSuchInvoice` for a credit note too.
    async fn hold_invoice(&mut self, number: InvoiceNumber) -> Result<StoredInvoice, Stopped>;

    /// When what is issued now is issued: never before the last document, or numbers and dates would run against each other
    /// where two clocks differ. While the numbers are held.
    async fn moment_of_issue(&mut self, asked: &Asked) -> Result<UnixMillis, Stopped>;

    /// While the numbers are held.
    async fn next_number(&mut self, at: UnixMillis) -> Result<InvoiceNumber, Stopped>;

    /// Makes the document and keeps it with its figures.
    async fn keep_invoice(
        &mut self,
        asked: &Asked,
        invoice: &Invoice,
        render: Render<'_>,
    ) -> Result<(), Stopped>;

    async fn keep_lines(&mut self, number: InvoiceNumber, bill: &Bill) -> Result<(), Stopped>;

    async fn note_deed(
        &mut self,
        asked: &Asked,
        at: UnixMillis,
        number: InvoiceNumber,
        deed: InvoiceDeed,
    ) -> Result<(), Stopped>;
}

for_both_connections! {
    impl InvoiceIssue {
        async fn issue(
            &mut self,
            asked: &Asked,
            order: &IssueOrder,
            render: Render<'_>,
        ) -> Result<Issued, Stopped> {
            let IssueOrder { account, month, terms } = order;
            sqlx::raw_sql(Self::HOLD_NUMBERS).execute(&mut *self).await?;
            let Some(buyer) = self.buyer(*account).await? else {
                return Err(StoreError::NoSuchAccountId(*account).into());
            };
            if let Some(number) = self.billed_by(*account, *month).await? {
                return Ok(Issued::Already(number));
            }
            if asked.at < month.can_be_issued_from() {
                return Err(StoreError::MonthStillOpen { month: *month }.into());
            }
            sqlx::query(Self::HOLD_USAGE)
                .bind(account.0)
                .bind(i64::from(month.number()))
                .execute(&mut *self)
                .await?;
            let bill = bill_of(&self.usage_of_month(*account, *month).await?, terms)?;
            if bill.lines.is_empty() {
                return Err(StoreError::NothingToBill { account: buyer.name, month: *month }.into());
            }
            let issued_at = self.moment_of_issue(asked).await?;
            let number = self.next_number(issued_at).await?;
            let invoice = Invoice {
                number,
                kind: InvoiceKind::Invoice,
                month: *month,
                issued_at,
                due: Day(Day::of(issued_at).0.saturating_add(i32::from(terms.payment_days))),
                seller: terms.seller.clone(),
                buyer,
                bill,
            };
            self.keep_invoice(asked, &invoice, render).await?;
            let billed = sqlx::query(SET_BILLED)
                .bind(account.0)
                .bind(i64::from(month.number()))
                .bind(i64::from(number.year))
                .bind(i64::from(number.serial))
                .execute(&mut *self)
                .await?;
            match billed.rows_affected() {
                1 => Ok(Issued::New(number)),
                _ => Err(corrupt("what an account has used in a month", format!("missing for {month}")).into()),
            }
        }

        async fn credit(
            &mut self,
            asked: &Asked,
            order: &CreditOrder,
            render: Render<'_>,
        ) -> Result<InvoiceNumber, Stopped> {
            let number = order.invoice;
            sqlx::raw_sql(Self::HOLD_NUMBERS).execute(&mut *self).await?;
            let held = self.hold_invoice(number).await?;
            let (state, before) = (held.state()?, held.credited());
            if state == InvoiceState::Void {
                return Err(nothing_left(number).into());
            }
            if before != order.credited_before {
                return Err(StoreError::CreditedMeanwhile(number).into());
            }
            let Some(invoice) = self.whole_invoices(vec![held]).await?.pop() else {
                return Err(StoreError::NoSuchInvoice(number).into());
            };
            let invoice = invoice.invoice;
            let (bill, credited) = invoice
                .bill
                .credited(order.amount, before)
                .map_err(|why| StoreError::CreditRefused { number, why })?;
            let account = invoice.buyer.account;
            let Some(buyer) = self.buyer(account).await? else {
                return Err(StoreError::NoSuchAccountId(account).into());
            };
            let issued_at = self.moment_of_issue(asked).await?;
            let note = Invoice {
                number: self.next_number(issued_at).await?,
                kind: InvoiceKind::CreditNote { of: number, reason: order.reason.clone() },
                month: invoice.month,
                issued_at,
                // Nobody has to pay it.
                due: Day::of(issued_at),
                seller: order.terms.seller.clone(),
                buyer,
                bill,
            };
            self.keep_invoice(asked, &note, render).await?;
            let is_void = is_all_of(&invoice.bill, credited);
            let state = if is_void { InvoiceState::Void } else { state };
            sqlx::query(SET_CREDITED)
                .bind(i64::from(number.year))
                .bind(i64::from(number.serial))
                .bind(state.as_str())
                .bind(credited.subtotal.0)
                .bind(credited.total.0)
                .execute(&mut *self)
                .await?;
            if is_void {
                sqlx::query(SET_UNBILLED)
                    .bind(account.0)
                    .bind(i64::from(invoice.month.number()))
                    .bind(i64::from(number.year))
                    .bind(i64::from(number.serial))
                    .execute(&mut *self)
                    .await?;
            }
            let deed = if is_void { InvoiceDeed::Voided } else { InvoiceDeed::Credited };
            self.note_deed(asked, issued_at, number, deed(note.number)).await?;
            Ok(note.number)
        }

        async fn pay(
            &mut self,
            asked: &Asked,
            number: InvoiceNumber,
            deed: PaymentDeed,
        ) -> Result<InvoiceState, Stopped> {
            let held = self.hold_invoice(number).await?;
            let (wanted, deed) = match deed {
                PaymentDeed::Paid => (InvoiceState::Paid, InvoiceDeed::Paid),
                PaymentDeed::TakenBack => (InvoiceState::Issued, InvoiceDeed::PaymentTakenBack),
            };
            match held.state()? {
                InvoiceState::Void => return Err(StoreError::InvoiceIsVoid(number).into()),
                state if state == wanted => return Ok(state),
                _ => {}
            }
            sqlx::query(SET_STATE)
                .bind(i64::from(number.year))
                .bind(i64::from(number.serial))
                .bind(wanted.as_str())
                .execute(&mut *self)
                .await?;
            self.note_deed(asked, asked.at, number, deed).await?;
            Ok(wanted)
        }

        async fn hold_invoice(&mut self, number: InvoiceNumber) -> Result<StoredInvoice, Stopped> {
            let hold = sqlx::query_as(Self::HOLD_INVOICE).bind(i64::from(number.year)).bind(i64::from(number.serial));
            let held: Option<StoredInvoice> = hold.fetch_optional(&mut *self).await?;
            match held {
                Some(held) if held.kind == INVOICE => Ok(held),
                _ => Err(StoreError::NoSuchInvoice(number).into()),
            }
        }

        async fn moment_of_issue(&mut self, asked: &Asked) -> Result<UnixMillis, Stopped> {
            let last: Option<i64> = sqlx::query_scalar(LAST_ISSUED).fetch_optional(&mut *self).await?;
            Ok(last.map_or(asked.at, |last| asked.at.max(UnixMillis(last))))
        }

        async fn next_number(&mut self, at: UnixMillis) -> Result<InvoiceNumber, Stopped> {
            let year = i64::from(Month::of(at).year());
            let next: Option<i64> = sqlx::query_scalar(NEXT_SERIAL).bind(year).fetch_optional(&mut *self).await?;
            if next.is_none() {
                sqlx::query(FIRST_SERIAL).bind(year).execute(&mut *self).await?;
            }
            Ok(stored_number(year, next.unwrap_or(1))?)
        }

        async fn keep_invoice(
            &mut self,
            asked: &Asked,
            invoice: &Invoice,
            render: Render<'_>,
        ) -> Result<(), Stopped> {
            let Invoice { number, kind, month, issued_at, due, seller, buyer, bill } = invoice;
            let (year, serial) = (i64::from(number.year), i64::from(number.serial));
            let document =
                render(invoice).map_err(|why| StoreError::DocumentFailed { number: *number, why })?;
            let (kind, of, reason) = match kind {
                InvoiceKind::Invoice => (INVOICE, None, ""),
                InvoiceKind::CreditNote { of, reason } => (CREDIT_NOTE, Some(of), reason.as_str()),
            };
            let tax = bill.tax.as_ref();
            sqlx::query(KEEP_INVOICE)
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
                .bind(InvoiceState::Issued.as_str())
                .execute(&mut *self)
                .await?;
            self.keep_lines(*number, bill).await?;
            sqlx::query(KEEP_DOCUMENT).bind(year).bind(serial).bind(document).execute(&mut *self).await?;
            self.note_deed(asked, *issued_at, *number, InvoiceDeed::Issued).await
        }

        async fn keep_lines(&mut self, number: InvoiceNumber, bill: &Bill) -> Result<(), Stopped> {
            let mut place = 0;
            for lines in bill.lines.chunks(MAX_LINES_AT_ONCE) {
                let mut keep = Statement::<Self>::new(
                    "INSERT INTO invoice_lines \
                     (year, serial, place, item, model, direction, tokens, price_nanos, exact_nanos, amount_minor) ",
                );
                keep.push_values(lines, |mut columns, line| {
                    let (item, model, direction, tokens, price) = match &line.item {
                        LineItem::Part => (PART, "", "", 0, 0),
                        LineItem::Tokens { model, direction, tokens, price } => {
                            (TOKENS, model.as_str(), direction.as_str(), *tokens, price.nanos_per_token())
                        }
                    };
                    columns
                        .push_bind(i64::from(number.year))
                        .push_bind(i64::from(number.serial))
                        .push_bind(place)
                        .push_bind(item)
                        .push_bind(model)
                        .push_bind(direction)
                        .push_bind(stored_count(tokens))
                        .push_bind(price)
                        .push_bind(line.exact.0)
                        .push_bind(line.amount.0);
                    place += 1;
                });
                keep.build().persistent(false).execute(&mut *self).await?;
            }
            Ok(())
        }

        async fn note_deed(
            &mut self,
            asked: &Asked,
            at: UnixMillis,
            number: InvoiceNumber,
            deed: InvoiceDeed,
        ) -> Result<(), Stopped> {
            let (words, note) = deed_words(deed);
            sqlx::query(NOTE_EVENT)
                .bind(i64::from(number.year))
                .bind(i64::from(number.serial))
                .bind(words)
                .bind(note.map(|note| i64::from(note.year)))
                .bind(note.map(|note| i64::from(note.serial)))
                .bind(asked.by.person().map(|person| person.0))
                .bind(at.0)
                .execute(&mut *self)
                .await?;
            Ok(())
        }
    }
}

/// The ledger's rows cost their tokens times their prices, and so must what was summed of them.
fn bill_of(usage: &[ModelUsage], terms: &InvoiceTerms) -> Result<Bill, StoreError> {
    let bill = Bill::of(usage, terms).map_err(|_| StoreError::SumTooLarge)?;
    let cost = usage.iter().try_fold(Nanos(0), |sum, usage| sum.checked_add(usage.cost));
    match cost {
        Ok(cost) if cost == bill.exact => Ok(bill),
        Ok(cost) => {
            let why = format!("tokens and prices make {}, but the costs are {cost}", bill.exact);
            Err(StoreError::Corrupt { what: "what an account has used in a month", why })
        }
        Err(_) => Err(StoreError::SumTooLarge),
    }
}

fn is_all_of(bill: &Bill, credited: Credited) -> bool {
    credited == Credited { subtotal: bill.subtotal, total: bill.total }
}

fn nothing_left(number: InvoiceNumber) -> StoreError {
    StoreError::CreditRefused { number, why: chancery_domain::CreditError::MoreThanIsLeft }
}
