//! Database rows of invoices and credit notes, with their lines and events.

use crate::db::{FromRow, Query, QueryError, Row, Tx, corrupt, from_row, query};
use crate::{InvoiceRecord, ListedInvoice};
use chancery_domain::{
    Buyer, Credited, Currency, Day, Direction, Invoice, InvoiceAmounts, InvoiceEvent, InvoiceEventKind,
    InvoiceKind, InvoiceLine, InvoiceNumber, InvoiceState, LineItem, Seller, Tax, TaxRate,
};
use std::collections::HashMap;

pub(crate) const INVOICE: &str = "invoice";
pub(crate) const CREDIT_NOTE: &str = "credit_note";
pub(crate) const TOKENS: &str = "tokens";
pub(crate) const PARTIAL_CREDIT: &str = "part";

pub(crate) const ONE: &str = "SELECT * FROM invoices WHERE year = $1 AND serial = $2";
const PAGE: &str = "SELECT * FROM invoices WHERE (year, serial) > ($1, $2) ORDER BY year, serial LIMIT $3";
const LINES: &str = "SELECT * FROM invoice_lines WHERE (year, serial) >= ($1, $2) AND (year, serial) <= ($3, $4) \
    ORDER BY year, serial, position";
const EVENTS: &str = "SELECT e.year, e.serial, e.kind, e.credit_note_year, e.credit_note_serial, e.actor_id, p.email AS actor_email, e.at_ms \
    FROM invoice_events e LEFT JOIN people p ON p.id = e.actor_id \
    WHERE (e.year, e.serial) >= ($1, $2) AND (e.year, e.serial) <= ($3, $4) ORDER BY e.id";
const DOCUMENT: &str = "SELECT pdf FROM invoice_documents WHERE year = $1 AND serial = $2";

pub(crate) fn invalid(what: &'static str, found: impl std::fmt::Display) -> QueryError {
    corrupt(what, format!("it is {found}"))
}

pub(crate) fn parse_invoice_number(year: i64, serial: i64) -> Result<InvoiceNumber, QueryError> {
    let number = i16::try_from(year).ok().zip(u32::try_from(serial).ok());
    let number = number.map(|(year, serial)| InvoiceNumber { year, serial });
    number.ok_or_else(|| invalid("an invoice's number", format!("{year}-{serial}")))
}

/// The two columns are both NULL or neither is.
pub(crate) fn read_number(
    row: &Row<'_>,
    [year, serial]: [&str; 2],
) -> Result<Option<InvoiceNumber>, QueryError> {
    let (year, serial): (Option<i64>, Option<i64>) = (row.get(year)?, row.get(serial)?);
    year.zip(serial).map(|(year, serial)| parse_invoice_number(year, serial)).transpose()
}

pub(crate) fn read_currency(row: &Row<'_>) -> Result<Currency, QueryError> {
    let stored: String = row.get("currency")?;
    stored.parse().map_err(|_| invalid("an invoice's currency", &stored))
}

fn read_due(row: &Row<'_>) -> Result<Day, QueryError> {
    let stored: i64 = row.get("due_day")?;
    i32::try_from(stored).map(Day).map_err(|_| invalid("an invoice's due date", stored))
}

fn read_kind(row: &Row<'_>) -> Result<InvoiceKind, QueryError> {
    let stored: String = row.get("kind")?;
    match (stored.as_str(), read_number(row, ["credited_year", "credited_serial"])?) {
        (INVOICE, None) => Ok(InvoiceKind::Invoice),
        (CREDIT_NOTE, Some(of)) => Ok(InvoiceKind::CreditNote { of, reason: row.get("reason")? }),
        _ => Err(invalid("an invoice's document type", &stored)),
    }
}

fn read_tax(row: &Row<'_>) -> Result<Option<Tax>, QueryError> {
    let (name, ppm): (Option<String>, Option<i64>) = (row.get("tax_name")?, row.get("tax_rate_ppm")?);
    let Some((name, ppm)) = name.zip(ppm) else { return Ok(None) };
    let ppm = u32::try_from(ppm).map_err(|_| invalid("an invoice's tax rate", ppm))?;
    Ok(Some(Tax { name, rate: TaxRate::from_ppm(ppm), amount: row.get("tax_minor")? }))
}

impl FromRow for InvoiceNumber {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        parse_invoice_number(row.get("year")?, row.get("serial")?)
    }
}

impl FromRow for InvoiceState {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        let stored: String = row.get("state")?;
        stored.parse().map_err(|_| invalid("the state of an invoice", &stored))
    }
}

from_row!(Credited { subtotal: "credited_subtotal", total: "credited_total" });

from_row!(ListedInvoice {
    number: InvoiceNumber::from_row,
    kind: read_kind,
    account: "account_id",
    month,
    issued_at: "issued_at_ms",
    due: read_due,
    currency: read_currency,
    total: "total_minor",
    credited: Credited::from_row,
    state: InvoiceState::from_row,
    buyer: "buyer_name"
});

/// Without lines and events, which have their own tables: see `add_lines_and_events`.
impl FromRow for InvoiceRecord {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        let bill = InvoiceAmounts {
            currency: read_currency(row)?,
            lines: Vec::new(),
            subtotal: row.get("subtotal_minor")?,
            tax: read_tax(row)?,
            total: row.get("total_minor")?,
            exact: row.get("exact_nanos")?,
        };
        let invoice = Invoice {
            number: InvoiceNumber::from_row(row)?,
            kind: read_kind(row)?,
            month: row.get("month")?,
            issued_at: row.get("issued_at_ms")?,
            due: read_due(row)?,
            seller: Seller {
                name: row.get("seller_name")?,
                letterhead: row.get("letterhead")?,
                payment: row.get("payment")?,
            },
            buyer: Buyer {
                account: row.get("account_id")?,
                name: row.get("buyer_name")?,
                address: row.get("buyer_address")?,
                email: row.get("buyer_email")?,
            },
            bill,
        };
        let document_hash = row.hash("document_hash", "the hash of an invoice's document")?;
        let (state, credited) = (InvoiceState::from_row(row)?, Credited::from_row(row)?);
        Ok(Self { invoice, state, credited, events: Vec::new(), document_hash })
    }
}

impl FromRow for (InvoiceNumber, InvoiceLine) {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        let (item, direction): (String, String) = (row.get("item")?, row.get("direction")?);
        let known = Direction::ALL.into_iter().find(|known| known.as_str() == direction);
        let item = match (item.as_str(), known) {
            (PARTIAL_CREDIT, None) => LineItem::Part,
            (TOKENS, Some(direction)) => LineItem::Tokens {
                model: row.get("model")?,
                direction,
                tokens: row.get("tokens")?,
                // Not validated, like the ledger's prices.
                price: row.get("price_nanos")?,
            },
            _ => return Err(invalid("a line of an invoice", format!("{item} {direction:?}"))),
        };
        let (exact, amount) = (row.get("exact_nanos")?, row.get("amount_minor")?);
        Ok((InvoiceNumber::from_row(row)?, InvoiceLine { item, exact, amount }))
    }
}

/// The stored text of a change, and the credit note it refers to.
pub(crate) fn change_columns(change: InvoiceEventKind) -> (&'static str, Option<InvoiceNumber>) {
    match change {
        InvoiceEventKind::Issued => ("issued", None),
        InvoiceEventKind::Paid => ("paid", None),
        InvoiceEventKind::MarkedUnpaid => ("payment_taken_back", None),
        InvoiceEventKind::Credited(note) => ("credited", Some(note)),
        InvoiceEventKind::Voided(note) => ("voided", Some(note)),
    }
}

impl FromRow for (InvoiceNumber, InvoiceEvent) {
    fn from_row(row: &Row<'_>) -> Result<Self, QueryError> {
        let stored: String = row.get("kind")?;
        let kind = match (stored.as_str(), read_number(row, ["credit_note_year", "credit_note_serial"])?) {
            ("issued", None) => InvoiceEventKind::Issued,
            ("paid", None) => InvoiceEventKind::Paid,
            ("payment_taken_back", None) => InvoiceEventKind::MarkedUnpaid,
            ("credited", Some(note)) => InvoiceEventKind::Credited(note),
            ("voided", Some(note)) => InvoiceEventKind::Voided(note),
            _ => return Err(invalid("an event in an invoice's history", stored)),
        };
        let event = InvoiceEvent { kind, at: row.get("at_ms")?, by: row.author()? };
        Ok((InvoiceNumber::from_row(row)?, event))
    }
}

pub(crate) fn invoice(tx: &mut Tx<'_>, number: InvoiceNumber) -> Result<Option<InvoiceRecord>, QueryError> {
    let read = query(ONE).bind(i64::from(number.year)).bind(i64::from(number.serial));
    let mut found = read.fetch_all(tx)?;
    add_lines_and_events(tx, &mut found)?;
    Ok(found.pop())
}

/// Ordered by number.
pub(crate) fn invoices_after(
    tx: &mut Tx<'_>,
    after: Option<InvoiceNumber>,
    limit: u32,
) -> Result<Vec<InvoiceRecord>, QueryError> {
    let (year, serial) =
        after.map_or((i64::MIN, 0), |number| (i64::from(number.year), i64::from(number.serial)));
    let read = query(PAGE).bind(year).bind(serial).bind(i64::from(limit));
    let mut found = read.fetch_all(tx)?;
    add_lines_and_events(tx, &mut found)?;
    Ok(found)
}

/// Requires records ordered by number, without gaps.
pub(crate) fn add_lines_and_events(tx: &mut Tx<'_>, records: &mut [InvoiceRecord]) -> Result<(), QueryError> {
    let (Some(first), Some(last)) = (records.first(), records.last()) else { return Ok(()) };
    let (first, last) = (first.invoice.number, last.invoice.number);
    let between = |sql| {
        query(sql)
            .bind(i64::from(first.year))
            .bind(i64::from(first.serial))
            .bind(i64::from(last.year))
            .bind(i64::from(last.serial))
    };
    let mut lines: HashMap<InvoiceNumber, Vec<InvoiceLine>> = HashMap::new();
    for (number, line) in between(LINES).fetch_all(tx)? {
        lines.entry(number).or_default().push(line);
    }
    let mut events: HashMap<InvoiceNumber, Vec<InvoiceEvent>> = HashMap::new();
    for (number, event) in between(EVENTS).fetch_all(tx)? {
        events.entry(number).or_default().push(event);
    }
    for record in records {
        record.invoice.bill.lines = lines.remove(&record.invoice.number).unwrap_or_default();
        record.events = events.remove(&record.invoice.number).unwrap_or_default();
    }
    Ok(())
}

pub(crate) fn document(number: InvoiceNumber) -> Query {
    query(DOCUMENT).bind(i64::from(number.year)).bind(i64::from(number.serial))
}
