//! Database rows of invoices and credit notes, with their lines and events.

use crate::db::{Conn, FromRow, Query, Row, corrupt, query};
use crate::{InvoiceRecord, ListedInvoice};
use chancery_domain::{
    AccountId, AccountName, Buyer, ContactEmail, Credited, Currency, Day, Direction, Invoice, InvoiceAmounts,
    InvoiceEvent, InvoiceEventKind, InvoiceKind, InvoiceLine, InvoiceNumber, InvoiceState, LineItem,
    MinorUnits, Month, Nanos, PostalAddress, Seller, Tax, TaxRate, TokenPrice,
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

pub(crate) fn invalid(what: &'static str, found: impl std::fmt::Display) -> sqlx::Error {
    corrupt(what, format!("it is {found}"))
}

pub(crate) fn parse_invoice_number(year: i64, serial: i64) -> Result<InvoiceNumber, sqlx::Error> {
    let number = i16::try_from(year).ok().zip(u32::try_from(serial).ok());
    let number = number.map(|(year, serial)| InvoiceNumber { year, serial });
    number.ok_or_else(|| invalid("an invoice's number", format!("{year}-{serial}")))
}

/// The two columns are both NULL or neither is.
pub(crate) fn read_number(
    row: &Row,
    [year, serial]: [&str; 2],
) -> Result<Option<InvoiceNumber>, sqlx::Error> {
    let (year, serial): (Option<i64>, Option<i64>) = (row.get(year)?, row.get(serial)?);
    year.zip(serial).map(|(year, serial)| parse_invoice_number(year, serial)).transpose()
}

pub(crate) fn read_month(row: &Row) -> Result<Month, sqlx::Error> {
    let stored: i64 = row.get("month")?;
    i32::try_from(stored).map(Month::from_months).map_err(|_| invalid("a month", stored))
}

pub(crate) fn read_currency(row: &Row) -> Result<Currency, sqlx::Error> {
    let stored: String = row.get("currency")?;
    stored.parse().map_err(|_| invalid("an invoice's currency", &stored))
}

fn read_due(row: &Row) -> Result<Day, sqlx::Error> {
    let stored: i64 = row.get("due_day")?;
    i32::try_from(stored).map(Day).map_err(|_| invalid("an invoice's due date", stored))
}

fn read_minor(row: &Row, column: &str) -> Result<MinorUnits, sqlx::Error> {
    row.get(column).map(MinorUnits)
}

fn read_kind(row: &Row) -> Result<InvoiceKind, sqlx::Error> {
    let stored: String = row.get("kind")?;
    match (stored.as_str(), read_number(row, ["credited_year", "credited_serial"])?) {
        (INVOICE, None) => Ok(InvoiceKind::Invoice),
        (CREDIT_NOTE, Some(of)) => Ok(InvoiceKind::CreditNote { of, reason: row.get("reason")? }),
        _ => Err(invalid("an invoice's document type", &stored)),
    }
}

fn read_tax(row: &Row) -> Result<Option<Tax>, sqlx::Error> {
    let (name, ppm): (Option<String>, Option<i64>) = (row.get("tax_name")?, row.get("tax_rate_ppm")?);
    let Some((name, ppm)) = name.zip(ppm) else { return Ok(None) };
    let ppm = u32::try_from(ppm).map_err(|_| invalid("an invoice's tax rate", ppm))?;
    Ok(Some(Tax { name, rate: TaxRate::from_ppm(ppm), amount: read_minor(row, "tax_minor")? }))
}

impl FromRow for InvoiceNumber {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        parse_invoice_number(row.get("year")?, row.get("serial")?)
    }
}

impl FromRow for InvoiceState {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let stored: String = row.get("state")?;
        stored.parse().map_err(|_| invalid("the state of an invoice", &stored))
    }
}

impl FromRow for Credited {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            subtotal: read_minor(row, "credited_subtotal")?,
            total: read_minor(row, "credited_total")?,
        })
    }
}

impl FromRow for ListedInvoice {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        Ok(Self {
            number: InvoiceNumber::from_row(row)?,
            kind: read_kind(row)?,
            account: AccountId(row.get("account_id")?),
            month: read_month(row)?,
            issued_at: row.time("issued_at_ms")?,
            due: read_due(row)?,
            currency: read_currency(row)?,
            total: read_minor(row, "total_minor")?,
            credited: Credited::from_row(row)?,
            state: InvoiceState::from_row(row)?,
            buyer: AccountName::from_stored(row.get("buyer_name")?),
        })
    }
}

/// Without lines and events, which have their own tables: see `add_lines_and_events`.
impl FromRow for InvoiceRecord {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let bill = InvoiceAmounts {
            currency: read_currency(row)?,
            lines: Vec::new(),
            subtotal: read_minor(row, "subtotal_minor")?,
            tax: read_tax(row)?,
            total: read_minor(row, "total_minor")?,
            exact: Nanos(row.get("exact_nanos")?),
        };
        let invoice = Invoice {
            number: InvoiceNumber::from_row(row)?,
            kind: read_kind(row)?,
            month: read_month(row)?,
            issued_at: row.time("issued_at_ms")?,
            due: read_due(row)?,
            seller: Seller {
                name: row.get("seller_name")?,
                letterhead: row.get("letterhead")?,
                payment: row.get("payment")?,
            },
            buyer: Buyer {
                account: AccountId(row.get("account_id")?),
                name: AccountName::from_stored(row.get("buyer_name")?),
                address: PostalAddress::from_stored(row.get("buyer_address")?),
                email: ContactEmail::from_stored(row.get("buyer_email")?),
            },
            bill,
        };
        let hash: Vec<u8> = row.get("document_hash")?;
        let document_hash = hash.try_into().map_err(|bytes: Vec<u8>| {
            invalid("the hash of an invoice's document", format!("{} bytes", bytes.len()))
        })?;
        let (state, credited) = (InvoiceState::from_row(row)?, Credited::from_row(row)?);
        Ok(Self { invoice, state, credited, events: Vec::new(), document_hash })
    }
}

impl FromRow for (InvoiceNumber, InvoiceLine) {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let (item, direction): (String, String) = (row.get("item")?, row.get("direction")?);
        let known = Direction::ALL.into_iter().find(|known| known.as_str() == direction);
        let item = match (item.as_str(), known) {
            (PARTIAL_CREDIT, None) => LineItem::Part,
            (TOKENS, Some(direction)) => LineItem::Tokens {
                model: row.get("model")?,
                direction,
                tokens: row.count("tokens")?,
                // Not validated, like the ledger's prices.
                price: TokenPrice::from_nanos_per_token(row.get("price_nanos")?),
            },
            _ => return Err(invalid("a line of an invoice", format!("{item} {direction:?}"))),
        };
        let (exact, amount) = (Nanos(row.get("exact_nanos")?), read_minor(row, "amount_minor")?);
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
    fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
        let stored: String = row.get("kind")?;
        let kind = match (stored.as_str(), read_number(row, ["credit_note_year", "credit_note_serial"])?) {
            ("issued", None) => InvoiceEventKind::Issued,
            ("paid", None) => InvoiceEventKind::Paid,
            ("payment_taken_back", None) => InvoiceEventKind::MarkedUnpaid,
            ("credited", Some(note)) => InvoiceEventKind::Credited(note),
            ("voided", Some(note)) => InvoiceEventKind::Voided(note),
            _ => return Err(invalid("an event in an invoice's history", stored)),
        };
        let event = InvoiceEvent { kind, at: row.time("at_ms")?, by: row.author()? };
        Ok((InvoiceNumber::from_row(row)?, event))
    }
}

pub(crate) async fn invoice(
    conn: &mut Conn<'_>,
    number: InvoiceNumber,
) -> Result<Option<InvoiceRecord>, sqlx::Error> {
    let read = query(ONE).bind(i64::from(number.year)).bind(i64::from(number.serial));
    let mut found = read.fetch_all(conn).await?;
    add_lines_and_events(conn, &mut found).await?;
    Ok(found.pop())
}

/// Ordered by number.
pub(crate) async fn invoices_after(
    conn: &mut Conn<'_>,
    after: Option<InvoiceNumber>,
    limit: u32,
) -> Result<Vec<InvoiceRecord>, sqlx::Error> {
    let (year, serial) =
        after.map_or((i64::MIN, 0), |number| (i64::from(number.year), i64::from(number.serial)));
    let read = query(PAGE).bind(year).bind(serial).bind(i64::from(limit));
    let mut found = read.fetch_all(conn).await?;
    add_lines_and_events(conn, &mut found).await?;
    Ok(found)
}

/// Requires records ordered by number, without gaps.
pub(crate) async fn add_lines_and_events(
    conn: &mut Conn<'_>,
    records: &mut [InvoiceRecord],
) -> Result<(), sqlx::Error> {
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
    for (number, line) in between(LINES).fetch_all(conn).await? {
        lines.entry(number).or_default().push(line);
    }
    let mut events: HashMap<InvoiceNumber, Vec<InvoiceEvent>> = HashMap::new();
    for (number, event) in between(EVENTS).fetch_all(conn).await? {
        events.entry(number).or_default().push(event);
    }
    for record in records {
        record.invoice.bill.lines = lines.remove(&record.invoice.number).unwrap_or_default();
        record.events = events.remove(&record.invoice.number).unwrap_or_default();
    }
    Ok(())
}

pub(crate) fn document<'q>(number: InvoiceNumber) -> Query<'q> {
    query(DOCUMENT).bind(i64::from(number.year)).bind(i64::from(number.serial))
}
