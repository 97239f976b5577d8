//! Holds every issued invoice against the ledger, and names what differs:
//!
//! 1. the numbers of each year: from 1 to the last that was given, none missing, none past it;
//! 2. an invoice's lines, sums, tax and exact amount, from what its account has used in its month, at its own currency and tax
//!    (the sums by day that this is read from are held against the ledger's rows by the verification of the ledger);
//! 3. a credit note's figures, from the invoice it takes back and the notes that came before it;
//! 4. an invoice's state and what was credited of it, from its timeline and its notes;
//! 5. the document, by its hash;
//! 6. which invoice bills each month: the one that is not void, and no other.
//!
//! A void invoice is held against its own lines: its month was open again, and may have been added to.
//!
//! Invoices may be issued, paid and credited meanwhile. Numbers are only ever added, so the last ones lie between those read before
//! and those read after; whatever else seems to differ is read once more, by itself, before it is told.

use chancery_domain::{
    AccountId, Bill, CreditAmount, Credited, Currency, Direction, Invoice, InvoiceDeed, InvoiceKind,
    InvoiceLine, InvoiceNumber, InvoiceState, InvoiceTerms, LineItem, MinorUnits, ModelUsage, Month, Nanos,
    Prices, TokenPrice,
};
use chancery_store::{InvoiceRecord, Store, StoreError};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};

/// Findings that are told; the others are counted.
const FINDINGS: usize = 100;
/// Invoices, and months, that are read at once.
const PAGE_ROWS: u32 = 200;

/// What was looked at and what was found. No findings means that everything agrees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InvoiceVerification {
    /// Invoices and credit notes.
    pub documents: u64,
    /// The first of them, by number.
    pub findings: Vec<String>,
    /// How many more there are.
    pub more_findings: u64,
}

/// What is left to be checked of a document once all are read.
struct Kept {
    name: String,
    account: AccountId,
    month: Month,
    is_invoice: bool,
    currency: Currency,
    state: InvoiceState,
    credited: Credited,
    deeds: Vec<InvoiceDeed>,
    /// What the notes that were read take back of it, and which they are.
    credited_by_notes: Credited,
    notes: Vec<InvoiceNumber>,
}

/// `progress` is told the number of documents read so far.
pub async fn verify_invoices(
    store: &dyn Store,
    mut progress: impl FnMut(u64),
) -> Result<InvoiceVerification, StoreError> {
    let mut found = InvoiceVerification::default();
    let before = store.last_invoice_numbers().await?;
    let mut kept: BTreeMap<InvoiceNumber, Kept> = BTreeMap::new();
    let mut next_serials: BTreeMap<i16, u32> = BTreeMap::new();
    let mut after = None;
    loop {
        let page = store.issued_invoices(after, PAGE_ROWS).await?;
        let Some(end) = page.last() else { break };
        after = Some(end.invoice.number);
        for record in page {
            let InvoiceNumber { year, serial } = record.invoice.number;
            let expected = next_serials.insert(year, serial.saturating_add(1)).unwrap_or(1);
            found.check_gap(year, expected, serial);
            found.check_document(store, &record).await?;
            found.check_figures(store, &record, &mut kept).await?;
            found.documents += 1;
            progress(found.documents);
            kept.insert(record.invoice.number, Kept::of(&record));
        }
    }
    for InvoiceNumber { year, serial } in before {
        let next = next_serials.get(&year).copied().unwrap_or(1);
        found.check_gap(year, next, serial.saturating_add(1));
    }
    found.check_whether_given(store, &next_serials).await?;
    for (number, kept) in &kept {
        found.check_course(store, *number, kept).await?;
    }
    found.check_months(store, &kept).await?;
    Ok(found)
}

/// One document as it is now.
async fn read(store: &dyn Store, number: InvoiceNumber) -> Result<Option<InvoiceRecord>, StoreError> {
    let before = InvoiceNumber { serial: number.serial.saturating_sub(1), ..number };
    let page = store.issued_invoices(Some(before), 1).await?;
    Ok(page.into_iter().next().filter(|record| record.invoice.number == number))
}

impl InvoiceVerification {
    fn finds(&mut self, finding: String) {
        if self.findings.len() < FINDINGS {
            self.findings.push(finding);
        } else {
            self.more_findings += 1;
        }
    }

    async fn check_whether_given(
        &mut self,
        store: &dyn Store,
        next_serials: &BTreeMap<i16, u32>,
    ) -> Result<(), StoreError> {
        let given = store.last_invoice_numbers().await?;
        for (year, next) in next_serials {
            let last = given.iter().find(|number| number.year == *year).map_or(0, |number| number.serial);
            for serial in last.saturating_add(1)..*next {
                let number = InvoiceNumber { year: *year, serial };
                self.finds(format!("invoice {number}: the last number that was given in {year} is {last}"));
            }
        }
        Ok(())
    }

    fn check_gap(&mut self, year: i16, expected: u32, found: u32) {
        let number = |serial| InvoiceNumber { year, serial };
        match found.checked_sub(expected) {
            None | Some(0) => {}
            Some(1) => self.finds(format!("invoice {}: it was issued, and is missing", number(expected))),
            Some(missing) => self.finds(format!(
                "invoices {} to {}: they were issued, and all {missing} are missing",
                number(expected),
                number(found - 1)
            )),
        }
    }

    async fn check_document(&mut self, store: &dyn Store, record: &InvoiceRecord) -> Result<(), StoreError> {
        let name = name(&record.invoice);
        match store.issued_document(record.invoice.number).await? {
            None => self.finds(format!("{name}: its document is missing")),
            Some(document) if <[u8; 32]>::from(Sha256::digest(&document)) != record.document_hash => {
                self.finds(format!("{name}: its document is not the one that was issued"));
            }
            Some(_) => {}
        }
        Ok(())
    }

    async fn check_figures(
        &mut self,
        store: &dyn Store,
        record: &InvoiceRecord,
        kept: &mut BTreeMap<InvoiceNumber, Kept>,
    ) -> Result<(), StoreError> {
        let invoice = &record.invoice;
        let (expected, source) = match &invoice.kind {
            InvoiceKind::Invoice if record.state == InvoiceState::Void => {
                (bill_of(&usage_of_lines(invoice), invoice), "its tokens and prices make")
            }
            InvoiceKind::Invoice => {
                let usage = store.month_usage(invoice.buyer.account, invoice.month).await?;
                (bill_of(&usage, invoice), "the ledger makes")
            }
            InvoiceKind::CreditNote { of, .. } => {
                let (Some(credited), Some(record)) = (kept.get_mut(of), read(store, *of).await?) else {
                    self.finds(format!("{}: there is no invoice {of} before it", name(invoice)));
                    return Ok(());
                };
                (credited.take_back(&record.invoice.bill, invoice), "the invoice makes")
            }
        };
        match expected {
            Ok(bill) => self.compare(invoice, &bill, source),
            Err(why) => self.finds(format!("{}: its figures cannot be made again: {why}", name(invoice))),
        }
        Ok(())
    }

    fn compare(&mut self, invoice: &Invoice, expected: &Bill, source: &str) {
        let (said, name) = (&invoice.bill, name(invoice));
        let key = |line: &InvoiceLine| match &line.item {
            LineItem::Tokens { model, direction, price, .. } => (model.clone(), Some((*direction, *price))),
            LineItem::Part => (String::new(), None),
        };
        let mut lines: BTreeMap<_, (Option<&InvoiceLine>, Option<&InvoiceLine>)> = BTreeMap::new();
        said.lines.iter().for_each(|line| lines.entry(key(line)).or_default().0 = Some(line));
        expected.lines.iter().for_each(|line| lines.entry(key(line)).or_default().1 = Some(line));
        for (is, made) in lines.values().filter(|(is, made)| is != made) {
            let line = is.or(*made).map_or(String::new(), line_name);
            let figures = |line: &Option<&InvoiceLine>| {
                line.map_or("nothing".to_owned(), |line| line_figures(line, invoice))
            };
            self.finds(format!("{name}, {line}: it says {}, {source} {}", figures(is), figures(made)));
        }
        let amount = |amount: MinorUnits| said.currency.decimal(amount);
        let tax = |bill: &Bill| bill.tax.as_ref().map_or("none".to_owned(), |tax| amount(tax.amount));
        for (what, is, should) in [
            ("subtotal", amount(said.subtotal), amount(expected.subtotal)),
            ("tax", tax(said), tax(expected)),
            ("total", amount(said.total), amount(expected.total)),
            ("exact amount", said.exact.to_string(), expected.exact.to_string()),
        ] {
            if is != should {
                self.finds(format!("{name}: its {what} is {is}, {source} {should}"));
            }
        }
    }

    /// State and credits of a document, from its timeline and its notes.
    async fn check_course(
        &mut self,
        store: &dyn Store,
        number: InvoiceNumber,
        kept: &Kept,
    ) -> Result<(), StoreError> {
        if kept.differences().is_empty() {
            return Ok(());
        }
        // It may have been credited while the others were read.
        let Some(record) = read(store, number).await? else { return Ok(()) };
        let mut fresh = Kept::of(&record);
        let named = fresh.named_notes();
        let notes: BTreeSet<InvoiceNumber> = kept.notes.iter().copied().chain(named).collect();
        for note in notes {
            if let Some(note) = read(store, note).await?
                && matches!(note.invoice.kind, InvoiceKind::CreditNote { of, .. } if of == number)
            {
                // Whatever is wrong with its figures has been told.
                let _ = fresh.take_back(&record.invoice.bill, &note.invoice);
            }
        }
        fresh.differences().into_iter().for_each(|finding| self.finds(finding));
        Ok(())
    }

    async fn check_months(
        &mut self,
        store: &dyn Store,
        kept: &BTreeMap<InvoiceNumber, Kept>,
    ) -> Result<(), StoreError> {
        let mut billing: BTreeMap<(AccountId, Month), Vec<InvoiceNumber>> = BTreeMap::new();
        for (number, Kept { account, month, is_invoice, state, .. }) in kept {
            if *is_invoice && *state != InvoiceState::Void {
                billing.entry((*account, *month)).or_default().push(*number);
            }
        }
        let mut after = None;
        loop {
            let page = store.billed_months(after, PAGE_ROWS).await?;
            let Some((account, month, _)) = page.last() else { break };
            after = Some((*account, *month));
            for (account, month, said) in page {
                let numbers = billing.remove(&(account, month)).unwrap_or_default();
                if numbers != [said] {
                    self.check_month(store, (account, month), &numbers, Some(said)).await?;
                }
            }
        }
        for (month, numbers) in billing {
            self.check_month(store, month, &numbers, None).await?;
        }
        Ok(())
    }

    /// A month that seems to be billed by another invoice than it is said to be, looked at once more.
    async fn check_month(
        &mut self,
        store: &dyn Store,
        (account, month): (AccountId, Month),
        numbers: &[InvoiceNumber],
        said: Option<InvoiceNumber>,
    ) -> Result<(), StoreError> {
        let now = store.billed_months(Some((account, month.previous())), 1).await?;
        let said_now =
            now.into_iter().find(|(a, m, _)| (*a, *m) == (account, month)).map(|(_, _, number)| number);
        let candidates: BTreeSet<InvoiceNumber> =
            numbers.iter().copied().chain(said).chain(said_now).collect();
        for number in candidates {
            let record = read(store, number).await?;
            let bills_it = record.is_some_and(|InvoiceRecord { invoice, state, .. }| {
                let is_of_month = (invoice.buyer.account, invoice.month) == (account, month);
                is_of_month && matches!(invoice.kind, InvoiceKind::Invoice) && state != InvoiceState::Void
            });
            let said_to = said_now == Some(number);
            if bills_it && !said_to {
                let instead = said_now.map_or("none".to_owned(), |other| other.to_string());
                self.finds(format!(
                    "invoice {number}: it bills {month} of account {account}, and the invoice that is noted there is {instead}"
                ));
            } else if said_to && !bills_it {
                self.finds(format!(
                    "invoice {number}: it is noted as billing {month} of account {account}, and is void or does not"
                ));
            }
        }
        Ok(())
    }
}

impl Kept {
    fn of(record: &InvoiceRecord) -> Self {
        let InvoiceRecord { invoice, state, credited, events, .. } = record;
        Self {
            name: name(invoice),
            account: invoice.buyer.account,
            month: invoice.month,
            is_invoice: matches!(invoice.kind, InvoiceKind::Invoice),
            currency: invoice.bill.currency,
            state: *state,
            credited: *credited,
            deeds: events.iter().map(|event| event.deed).collect(),
            credited_by_notes: Credited::default(),
            notes: Vec::new(),
        }
    }

    /// What the note must say; what it takes back is noted.
    fn take_back(&mut self, bill: &Bill, note: &Invoice) -> Result<Bill, String> {
        self.notes.push(note.number);
        let is_part = note.bill.lines.iter().any(|line| matches!(line.item, LineItem::Part));
        let net = note.bill.subtotal.checked_neg().map_err(|error| error.to_string())?;
        let amount = if is_part { CreditAmount::Part(net) } else { CreditAmount::Whole };
        let (bill, credited) =
            bill.credited(amount, self.credited_by_notes).map_err(|error| error.to_string())?;
        self.credited_by_notes = credited;
        Ok(bill)
    }

    /// The credit notes of its timeline.
    fn named_notes(&self) -> Vec<InvoiceNumber> {
        let note = |deed: &InvoiceDeed| match deed {
            InvoiceDeed::Credited(note) | InvoiceDeed::Voided(note) => Some(*note),
            InvoiceDeed::Issued | InvoiceDeed::Paid | InvoiceDeed::PaymentTakenBack => None,
        };
        self.deeds.iter().filter_map(note).collect()
    }

    fn differences(&self) -> Vec<String> {
        let Self { name, currency, state, credited, credited_by_notes, notes, .. } = self;
        let mut findings = Vec::new();
        if credited != credited_by_notes {
            let in_words = |Credited { subtotal, total }: &Credited| {
                format!(
                    "{} of its subtotal, {} of its total",
                    currency.decimal(*subtotal),
                    currency.decimal(*total)
                )
            };
            let (said, made) = (in_words(credited), in_words(credited_by_notes));
            findings
                .push(format!("{name}: it is said that {said} are credited, its credit notes make {made}"));
        }
        let expected = state_after(&self.deeds);
        if expected != Some(*state) {
            let expected = expected.map_or("none that there is", InvoiceState::as_str);
            findings.push(format!("{name}: its state is {}, its timeline makes {expected}", state.as_str()));
        }
        let named = self.named_notes();
        if named != *notes {
            let list = |notes: &[InvoiceNumber]| match notes {
                [] => "none".to_owned(),
                notes => notes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
            };
            let (named, there) = (list(&named), list(notes));
            findings.push(format!(
                "{name}: the credit notes of its timeline are {named}, those there are {there}"
            ));
        }
        findings
    }
}

fn bill_of(usage: &[ModelUsage], invoice: &Invoice) -> Result<Bill, String> {
    Bill::of(usage, &terms_of(invoice)).map_err(|error| error.to_string())
}

/// What its lines say was used.
fn usage_of_lines(invoice: &Invoice) -> Vec<ModelUsage> {
    let free = TokenPrice::from_nanos_per_token(0);
    let usage = |line: &InvoiceLine| {
        let LineItem::Tokens { model, direction, tokens, price } = &line.item else { return None };
        let (prices, input_tokens, output_tokens) = match direction {
            Direction::Input => (Prices { input: *price, output: free }, *tokens, 0),
            Direction::Output => (Prices { input: free, output: *price }, 0, *tokens),
        };
        Some(ModelUsage {
            model: model.clone(),
            prices,
            requests: 0,
            input_tokens,
            output_tokens,
            cost: Nanos(0),
        })
    };
    invoice.bill.lines.iter().filter_map(usage).collect()
}

/// The terms that an invoice was made on, as far as its figures go.
fn terms_of(invoice: &Invoice) -> InvoiceTerms {
    InvoiceTerms {
        currency: invoice.bill.currency,
        seller: invoice.seller.clone(),
        tax: invoice.bill.tax.as_ref().map(|tax| (tax.name.clone(), tax.rate)),
        payment_days: 0,
    }
}

/// None where a timeline begins or goes on as none can.
fn state_after(deeds: &[InvoiceDeed]) -> Option<InvoiceState> {
    let (first, rest) = deeds.split_first()?;
    if *first != InvoiceDeed::Issued {
        return None;
    }
    rest.iter().try_fold(InvoiceState::Issued, |state, deed| match (state, deed) {
        (InvoiceState::Void, _) | (_, InvoiceDeed::Issued) => None,
        (_, InvoiceDeed::Paid) => Some(InvoiceState::Paid),
        (_, InvoiceDeed::PaymentTakenBack) => Some(InvoiceState::Issued),
        (state, InvoiceDeed::Credited(_)) => Some(state),
        (_, InvoiceDeed::Voided(_)) => Some(InvoiceState::Void),
    })
}

fn name(invoice: &Invoice) -> String {
    match invoice.kind {
        InvoiceKind::Invoice => format!("invoice {}", invoice.number),
        InvoiceKind::CreditNote { .. } => format!("credit note {}", invoice.number),
    }
}

fn line_name(line: &InvoiceLine) -> String {
    match &line.item {
        LineItem::Tokens { model, direction, price, .. } => {
            format!("{model} {} at {price} a million", direction.as_str())
        }
        LineItem::Part => "the part that is credited".to_owned(),
    }
}

fn line_figures(line: &InvoiceLine, invoice: &Invoice) -> String {
    let amount = invoice.bill.currency.decimal(line.amount);
    match &line.item {
        LineItem::Tokens { tokens, .. } => format!("{tokens} tokens, exactly {}, {amount}", line.exact),
        LineItem::Part => format!("exactly {}, {amount}", line.exact),
    }
}
