//! Invoices and credit notes as the database has them, with their lines and what was done with them.

use crate::audit::step::Stopped;
use crate::clients::entries::changed_by;
use crate::clients::rows::count;
use crate::db::both::{for_both_connections, stored_row};
use crate::{InvoiceRecord, ListedInvoice, StoreError};
use chancery_domain::{
    AccountId, AccountName, Bill, Buyer, ContactEmail, Credited, Currency, Day, Direction, Invoice,
    InvoiceDeed, InvoiceEvent, InvoiceKind, InvoiceLine, InvoiceNumber, InvoiceState, LineItem, MinorUnits,
    Month, Nanos, PostalAddress, Seller, Tax, TaxRate, TokenPrice, UnixMillis,
};
use std::collections::HashMap;

pub(crate) const INVOICE: &str = "invoice";
pub(crate) const CREDIT_NOTE: &str = "credit_note";
pub(crate) const TOKENS: &str = "tokens";
pub(crate) const PART: &str = "part";

const ONE: &str = "SELECT * FROM invoices WHERE year = $1 AND serial = $2";
const PAGE: &str = "SELECT * FROM invoices WHERE (year, serial) > ($1, $2) ORDER BY year, serial LIMIT $3";
const LINES: &str = "SELECT * FROM invoice_lines WHERE (year, serial) >= ($1, $2) AND (year, serial) <= ($3, $4) \
    ORDER BY year, serial, place";
const EVENTS: &str = "SELECT e.year, e.serial, e.deed, e.note_year, e.note_serial, e.by_id, p.email AS by_email, e.at_ms \
    FROM invoice_events e LEFT JOIN people p ON p.id = e.by_id \
    WHERE (e.year, e.serial) >= ($1, $2) AND (e.year, e.serial) <= ($3, $4) ORDER BY e.id";
const DOCUMENT: &str = "SELECT pdf FROM invoice_documents WHERE year = $1 AND serial = $2";

pub(crate) fn corrupt(what: &'static str, found: impl std::fmt::Display) -> StoreError {
    StoreError::Corrupt { what, why: format!("it is {found}") }
}

pub(crate) fn stored_number(year: i64, serial: i64) -> Result<InvoiceNumber, StoreError> {
    let number = i16::try_from(year).ok().zip(u32::try_from(serial).ok());
    let number = number.map(|(year, serial)| InvoiceNumber { year, serial });
    number.ok_or_else(|| corrupt("an invoice's number", format!("{year}-{serial}")))
}

/// Of columns that are there together or not at all.
pub(crate) fn stored_number_if_any(
    year: Option<i64>,
    serial: Option<i64>,
) -> Result<Option<InvoiceNumber>, StoreError> {
    year.zip(serial).map(|(year, serial)| stored_number(year, serial)).transpose()
}

pub(crate) fn stored_month(stored: i64) -> Result<Month, StoreError> {
    i32::try_from(stored).map(Month::from_number).map_err(|_| corrupt("a month", stored))
}

fn stored_day(stored: i64) -> Result<Day, StoreError> {
    i32::try_from(stored).map(Day).map_err(|_| corrupt("the day on which an invoice is due", stored))
}

stored_row! {
    struct StoredInvoice {
        year: i64,
        serial: i64,
        kind: String,
        of_year: Option<i64>,
        of_serial: Option<i64>,
        reason: String,
        account_id: i64,
        month: i64,
        issued_at_ms: i64,
        due_day: i64,
        currency: String,
        seller_name: String,
        letterhead: String,
        payment: String,
        buyer_name: String,
        buyer_address: String,
        buyer_email: String,
        tax_name: Option<String>,
        tax_rate_ppm: Option<i64>,
        subtotal_minor: i64,
        tax_minor: i64,
        total_minor: i64,
        exact_nanos: i64,
        document_hash: Vec<u8>,
        state: String,
        credited_subtotal: i64,
        credited_total: i64,
    }
}

impl StoredInvoice {
    pub(crate) fn number(&self) -> Result<InvoiceNumber, StoreError> {
        stored_number(self.year, self.serial)
    }

    pub(crate) fn state(&self) -> Result<InvoiceState, StoreError> {
        self.state.parse().map_err(|_| corrupt("the state of an invoice", &self.state))
    }

    pub(crate) fn credited(&self) -> Credited {
        Credited { subtotal: MinorUnits(self.credited_subtotal), total: MinorUnits(self.credited_total) }
    }

    fn kind(&self) -> Result<InvoiceKind, StoreError> {
        match (self.kind.as_str(), stored_number_if_any(self.of_year, self.of_serial)?) {
            (INVOICE, None) => Ok(InvoiceKind::Invoice),
            (CREDIT_NOTE, Some(of)) => Ok(InvoiceKind::CreditNote { of, reason: self.reason.clone() }),
            _ => Err(corrupt("what kind of document an invoice is", &self.kind)),
        }
    }

    fn currency(&self) -> Result<Currency, StoreError> {
        self.currency.parse().map_err(|_| corrupt("an invoice's currency", &self.currency))
    }

    fn tax(&self) -> Result<Option<Tax>, StoreError> {
        let Some((name, ppm)) = self.tax_name.clone().zip(self.tax_rate_ppm) else { return Ok(None) };
        let ppm = u32::try_from(ppm).map_err(|_| corrupt("an invoice's tax rate", ppm))?;
        Ok(Some(Tax { name, rate: TaxRate::from_ppm(ppm), amount: MinorUnits(self.tax_minor) }))
    }

    pub(crate) fn into_listed(self) -> Result<ListedInvoice, StoreError> {
        Ok(ListedInvoice {
            number: self.number()?,
            kind: self.kind()?,
            account: AccountId(self.account_id),
            month: stored_month(self.month)?,
            issued_at: UnixMillis(self.issued_at_ms),
            due: stored_day(self.due_day)?,
            currency: self.currency()?,
            total: MinorUnits(self.total_minor),
            credited: self.credited(),
            state: self.state()?,
            buyer: AccountName::from_stored(self.buyer_name),
        })
    }

    fn into_record(
        self,
        lines: Vec<InvoiceLine>,
        events: Vec<InvoiceEvent>,
    ) -> Result<InvoiceRecord, StoreError> {
        let bill = Bill {
            currency: self.currency()?,
            lines,
            subtotal: MinorUnits(self.subtotal_minor),
            tax: self.tax()?,
            total: MinorUnits(self.total_minor),
            exact: Nanos(self.exact_nanos),
        };
        let (state, credited) = (self.state()?, self.credited());
        let invoice = Invoice {
            number: self.number()?,
            kind: self.kind()?,
            month: stored_month(self.month)?,
            issued_at: UnixMillis(self.issued_at_ms),
            due: stored_day(self.due_day)?,
            seller: Seller { name: self.seller_name, letterhead: self.letterhead, payment: self.payment },
            buyer: Buyer {
                account: AccountId(self.account_id),
                name: AccountName::from_stored(self.buyer_name),
                address: PostalAddress::from_stored(self.buyer_address),
                email: ContactEmail::from_stored(self.buyer_email),
            },
            bill,
        };
        let document_hash = self.document_hash.try_into().map_err(|bytes: Vec<u8>| {
            corrupt("the hash of an invoice's document", format!("{} bytes", bytes.len()))
        })?;
        Ok(InvoiceRecord { invoice, state, credited, events, document_hash })
    }
}

stored_row! {
    struct StoredLine {
        year: i64,
        serial: i64,
        item: String,
        model: String,
        direction: String,
        tokens: i64,
        price_nanos: i64,
        exact_nanos: i64,
        amount_minor: i64,
    }
}

impl StoredLine {
    fn into_line(self) -> Result<InvoiceLine, StoreError> {
        let directions = [Direction::Input, Direction::Output];
        let direction = directions.into_iter().find(|direction| direction.as_str() == self.direction);
        let item = match (self.item.as_str(), direction) {
            (PART, None) => LineItem::Part,
            (TOKENS, Some(direction)) => LineItem::Tokens {
                model: self.model,
                direction,
                tokens: count(self.tokens)?,
                // Taken as it stands, like the ledger's.
                price: TokenPrice::from_nanos_per_token(self.price_nanos),
            },
            _ => return Err(corrupt("a line of an invoice", format!("{} {:?}", self.item, self.direction))),
        };
        Ok(InvoiceLine { item, exact: Nanos(self.exact_nanos), amount: MinorUnits(self.amount_minor) })
    }
}

stored_row! {
    struct StoredEvent {
        year: i64,
        serial: i64,
        deed: String,
        note_year: Option<i64>,
        note_serial: Option<i64>,
        by_id: Option<i64>,
        by_email: Option<String>,
        at_ms: i64,
    }
}

/// As it is stored, with the note that it is about.
pub(crate) fn deed_words(deed: InvoiceDeed) -> (&'static str, Option<InvoiceNumber>) {
    match deed {
        InvoiceDeed::Issued => ("issued", None),
        InvoiceDeed::Paid => ("paid", None),
        InvoiceDeed::PaymentTakenBack => ("payment_taken_back", None),
        InvoiceDeed::Credited(note) => ("credited", Some(note)),
        InvoiceDeed::Voided(note) => ("voided", Some(note)),
    }
}

impl StoredEvent {
    fn into_event(self) -> Result<InvoiceEvent, StoreError> {
        let deed = match (self.deed.as_str(), stored_number_if_any(self.note_year, self.note_serial)?) {
            ("issued", None) => InvoiceDeed::Issued,
            ("paid", None) => InvoiceDeed::Paid,
            ("payment_taken_back", None) => InvoiceDeed::PaymentTakenBack,
            ("credited", Some(note)) => InvoiceDeed::Credited(note),
            ("voided", Some(note)) => InvoiceDeed::Voided(note),
            _ => return Err(corrupt("what was done with an invoice", self.deed)),
        };
        let by = changed_by(self.by_id, self.by_email.as_deref())?;
        Ok(InvoiceEvent { deed, at: UnixMillis(self.at_ms), by })
    }
}

#[async_trait::async_trait]
pub(crate) trait InvoiceRows {
    async fn invoice(&mut self, number: InvoiceNumber) -> Result<Option<InvoiceRecord>, Stopped>;

    /// By number.
    async fn invoices_after(
        &mut self,
        after: Option<InvoiceNumber>,
        limit: u32,
    ) -> Result<Vec<InvoiceRecord>, Stopped>;

    /// With their lines and events. The rows are in the order of their numbers, without one left out in between.
    async fn whole_invoices(&mut self, rows: Vec<StoredInvoice>) -> Result<Vec<InvoiceRecord>, Stopped>;

    async fn document(&mut self, number: InvoiceNumber) -> Result<Option<Vec<u8>>, Stopped>;
}

for_both_connections! {
    impl InvoiceRows {
        async fn invoice(&mut self, number: InvoiceNumber) -> Result<Option<InvoiceRecord>, Stopped> {
            let read = sqlx::query_as(ONE).bind(i64::from(number.year)).bind(i64::from(number.serial));
            let row: Option<StoredInvoice> = read.fetch_optional(&mut *self).await?;
            Ok(self.whole_invoices(row.into_iter().collect()).await?.pop())
        }

        async fn invoices_after(
            &mut self,
            after: Option<InvoiceNumber>,
            limit: u32,
        ) -> Result<Vec<InvoiceRecord>, Stopped> {
            let (year, serial) =
                after.map_or((i64::MIN, 0), |number| (i64::from(number.year), i64::from(number.serial)));
            let read = sqlx::query_as(PAGE).bind(year).bind(serial).bind(i64::from(limit));
            let rows = read.fetch_all(&mut *self).await?;
            self.whole_invoices(rows).await
        }

        async fn whole_invoices(&mut self, rows: Vec<StoredInvoice>) -> Result<Vec<InvoiceRecord>, Stopped> {
            let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return Ok(Vec::new()) };
            let ends = (first.year, first.serial, last.year, last.serial);
            let (from_year, from_serial, to_year, to_serial) = ends;
            let read = sqlx::query_as(LINES).bind(from_year).bind(from_serial).bind(to_year).bind(to_serial);
            let stored: Vec<StoredLine> = read.fetch_all(&mut *self).await?;
            let mut lines: HashMap<(i64, i64), Vec<InvoiceLine>> = HashMap::new();
            for line in stored {
                lines.entry((line.year, line.serial)).or_default().push(line.into_line()?);
            }
            let read = sqlx::query_as(EVENTS).bind(from_year).bind(from_serial).bind(to_year).bind(to_serial);
            let stored: Vec<StoredEvent> = read.fetch_all(&mut *self).await?;
            let mut events: HashMap<(i64, i64), Vec<InvoiceEvent>> = HashMap::new();
            for event in stored {
                events.entry((event.year, event.serial)).or_default().push(event.into_event()?);
            }
            let whole = |row: StoredInvoice| {
                let number = (row.year, row.serial);
                row.into_record(
                    lines.remove(&number).unwrap_or_default(),
                    events.remove(&number).unwrap_or_default(),
                )
            };
            Ok(rows.into_iter().map(whole).collect::<Result<_, StoreError>>()?)
        }

        async fn document(&mut self, number: InvoiceNumber) -> Result<Option<Vec<u8>>, Stopped> {
            let read = sqlx::query_scalar(DOCUMENT).bind(i64::from(number.year)).bind(i64::from(number.serial));
            Ok(read.fetch_optional(&mut *self).await?)
        }
    }
}
