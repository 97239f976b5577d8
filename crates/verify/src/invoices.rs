//! Holds every issued invoice against the ledger, and names what differs:
//!
//! 1. the numbers of each year: from 1 to the last that was given, none missing, none past it;
//! 2. an invoice's lines, sums, tax and exact amount, from what its account has used in its month, at its own currency and tax
//!    (the sums by day that this is read from are held against the ledger's rows by the verification of the ledger);
//! 3. a credit note's figures, account, month, currency and tax, from the invoice it takes back and the notes that came before it;
//! 4. an invoice's state and what was credited of it, from its timeline and its notes;
//! 5. the document, by its hash;
//! 6. which invoice bills each month: the one that is not void, and no other.
//!
//! A void invoice is held against its own lines: its month was open again, and may have been added to. Nothing is ever taken out of
//! a month, so its lines have at most what the ledger has.
//!
//! Invoices may be issued, paid and credited meanwhile. Numbers are only ever added, so the last ones lie between those read before
//! and those read after; whatever else seems to differ is read anew before it is told.

use chancery_domain::{
    AccountId, Bill, CreditAmount, Credited, Direction, Invoice, InvoiceDeed, InvoiceKind, InvoiceLine,
    InvoiceNumber, InvoiceState, InvoiceTerms, LineItem, MinorUnits, ModelUsage, Month, Nanos, Prices,
    TokenPrice,
};
use chancery_store::{InvoiceRecord, Store, StoreError};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};

/// Findings that are told; the others are counted.
const FINDINGS: usize = 100;
/// Invoices, and months, that are read at once.
const PAGE_ROWS: u32 = 200;
/// How often something that differs is looked at before it is told: somebody may be at work on it.
const LOOKS: usize = 3;

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
    account: AccountId,
    month: Month,
    is_invoice: bool,
    state: InvoiceState,
    /// Its timeline names credit notes, or does not make its state.
    has_a_course: bool,
    /// Those that were read, by number.
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
    let mut notes: Vec<(InvoiceNumber, InvoiceNumber)> = Vec::new();
    let mut last_serials: BTreeMap<i16, u32> = BTreeMap::new();
    let mut after = None;
    loop {
        let page = store.issued_invoices(after, PAGE_ROWS).await?;
        let Some(end) = page.last() else { break };
        after = Some(end.invoice.number);
        for record in page {
            let number = record.invoice.number;
            let last = last_serials.insert(number.year, number.serial).unwrap_or(0);
            found.check_gap(number.year, last, number.serial.saturating_sub(1));
            found.check_document(store, &record).await?;
            if let InvoiceKind::CreditNote { of, .. } = record.invoice.kind {
                notes.push((of, number));
            } else if !figures(store, &record).await?.is_empty() {
                found.finds_all(look_again(async || figures_now(store, number).await).await?);
            }
            found.documents += 1;
            progress(found.documents);
            kept.insert(number, Kept::of(&record));
        }
    }
    for InvoiceNumber { year, serial } in before {
        found.check_gap(year, last_serials.get(&year).copied().unwrap_or(0), serial);
    }
    found.check_whether_given(store, kept.keys()).await?;
    for (of, note) in notes {
        match kept.get_mut(&of).filter(|credited| credited.is_invoice) {
            Some(credited) => credited.notes.push(note),
            None => found.finds(format!("credit note {note}: there is no invoice {of}")),
        }
    }
    for (number, kept) in kept.iter().filter(|(_, kept)| kept.has_a_course || !kept.notes.is_empty()) {
        found.finds_all(look_again(async || course(store, *number, &kept.notes).await).await?);
    }
    found.check_months(store, &kept).await?;
    Ok(found)
}

/// What is still found at the last look.
async fn look_again(
    look: impl AsyncFn() -> Result<Vec<String>, StoreError>,
) -> Result<Vec<String>, StoreError> {
    let mut findings = look().await?;
    for _ in 1..LOOKS {
        if findings.is_empty() {
            break;
        }
        findings = look().await?;
    }
    Ok(findings)
}

/// One document as it is now.
async fn read(store: &dyn Store, number: InvoiceNumber) -> Result<Option<InvoiceRecord>, StoreError> {
    let before = InvoiceNumber { serial: number.serial.saturating_sub(1), ..number };
    let page = store.issued_invoices(Some(before), 1).await?;
    Ok(page.into_iter().next().filter(|record| record.invoice.number == number))
}

fn gone(number: InvoiceNumber) -> Vec<String> {
    vec![format!("invoice {number}: it was there, and is gone")]
}

async fn figures_now(store: &dyn Store, number: InvoiceNumber) -> Result<Vec<String>, StoreError> {
    match read(store, number).await? {
        Some(record) => figures(store, &record).await,
        None => Ok(gone(number)),
    }
}

/// How the figures of an invoice differ from the ledger.
async fn figures(store: &dyn Store, record: &InvoiceRecord) -> Result<Vec<String>, StoreError> {
    let invoice = &record.invoice;
    let usage = store.month_usage(invoice.buyer.account, invoice.month).await?;
    if record.state != InvoiceState::Void {
        return Ok(compare(invoice, bill_of(&usage, invoice), "the ledger makes"));
    }
    let own = usage_of_lines(invoice);
    let mut findings = compare(invoice, bill_of(&own, invoice), "its tokens and prices make");
    findings.extend(more_than_the_ledger(invoice, &usage));
    Ok(findings)
}

/// The lines of an invoice that have more tokens than were used at their price.
fn more_than_the_ledger(invoice: &Invoice, usage: &[ModelUsage]) -> Vec<String> {
    let more = |line: &InvoiceLine| {
        let LineItem::Tokens { model, direction, tokens, price } = &line.item else { return None };
        let used = |usage: &ModelUsage| match direction {
            Direction::Input if usage.prices.input == *price => usage.input_tokens,
            Direction::Output if usage.prices.output == *price => usage.output_tokens,
            Direction::Input | Direction::Output => 0,
        };
        let in_ledger =
            usage.iter().filter(|usage| usage.model == *model).map(used).fold(0, u64::saturating_add);
        (*tokens > in_ledger).then(|| {
            let (name, line) = (name(invoice), line_name(line));
            format!("{name}, {line}: it says {tokens} tokens, and the ledger has {in_ledger}")
        })
    };
    invoice.bill.lines.iter().filter_map(more).collect()
}

/// How a document differs from what it should say.
fn compare(invoice: &Invoice, expected: Result<Bill, String>, source: &str) -> Vec<String> {
    let (said, name) = (&invoice.bill, name(invoice));
    let expected = match expected {
        Ok(expected) => expected,
        Err(why) => return vec![format!("{name}: its figures cannot be made again: {why}")],
    };
    let key = |line: &InvoiceLine| match &line.item {
        LineItem::Tokens { model, direction, price, .. } => (model.clone(), Some((*direction, *price))),
        LineItem::Part => (String::new(), None),
    };
    // There may be several of what should be there once.
    let mut lines: BTreeMap<_, (Vec<&InvoiceLine>, Vec<&InvoiceLine>)> = BTreeMap::new();
    said.lines.iter().for_each(|line| lines.entry(key(line)).or_default().0.push(line));
    expected.lines.iter().for_each(|line| lines.entry(key(line)).or_default().1.push(line));
    let mut findings = Vec::new();
    for (said, made) in lines.values() {
        for place in 0..said.len().max(made.len()) {
            let (is, made) = (said.get(place), made.get(place));
            if is == made {
                continue;
            }
            let line = is.or(made).map_or(String::new(), |line| line_name(line));
            let [is, made] =
                [is, made].map(|line| line.map_or("nothing".to_owned(), |line| line_figures(line, invoice)));
            findings.push(format!("{name}, {line}: it says {is}, {source} {made}"));
        }
    }
    if findings.is_empty() && said.lines != expected.lines {
        findings.push(format!("{name}: its lines are not in the order of models, directions and prices"));
    }
    let amount = |amount: MinorUnits| said.currency.decimal(amount);
    let tax = |bill: &Bill| bill.tax.as_ref().map_or("none".to_owned(), |tax| amount(tax.amount));
    let kind_of_tax = |bill: &Bill| {
        bill.tax.as_ref().map_or("none".to_owned(), |tax| format!("{}, {} %", tax.name, tax.rate))
    };
    for (what, is, should) in [
        ("currency", said.currency.to_string(), expected.currency.to_string()),
        ("kind of tax", kind_of_tax(said), kind_of_tax(&expected)),
        ("subtotal", amount(said.subtotal), amount(expected.subtotal)),
        ("tax", tax(said), tax(&expected)),
        ("total", amount(said.total), amount(expected.total)),
        ("exact amount", said.exact.to_string(), expected.exact.to_string()),
    ] {
        if is != should {
            findings.push(format!("{name}: its {what} is {is}, {source} {should}"));
        }
    }
    findings
}

/// How a document's state and credits differ from its timeline and its notes, and the notes from it.
async fn course(
    store: &dyn Store,
    number: InvoiceNumber,
    notes_read: &[InvoiceNumber],
) -> Result<Vec<String>, StoreError> {
    let Some(record) = read(store, number).await? else { return Ok(gone(number)) };
    let invoice = &record.invoice;
    let named = named_notes(&record);
    // In the order in which they were made, which need not be that of their numbers: at the turn of a year two clocks may
    // differ.
    let mut in_order: Vec<InvoiceNumber> = Vec::new();
    for note in named.iter().chain(notes_read) {
        if !in_order.contains(note) {
            in_order.push(*note);
        }
    }
    let (mut findings, mut notes, mut credited) = (Vec::new(), Vec::new(), Credited::default());
    for note in in_order {
        let Some(InvoiceRecord { invoice: note, .. }) = read(store, note).await? else { continue };
        if !matches!(note.kind, InvoiceKind::CreditNote { of, .. } if of == number) {
            continue;
        }
        notes.push(note.number);
        for (what, is, should) in [
            ("account", note.buyer.account.to_string(), invoice.buyer.account.to_string()),
            ("month", note.month.to_string(), invoice.month.to_string()),
        ] {
            if is != should {
                findings.push(format!(
                    "{}: its {what} is {is}, that of invoice {number} is {should}",
                    name(&note)
                ));
            }
        }
        let expected = taken_back(&invoice.bill, &note, credited).map(|(bill, after)| {
            credited = after;
            bill
        });
        findings.extend(compare(&note, expected, "the invoice makes"));
    }
    findings.extend(course_differences(&record, &named, &notes, credited));
    Ok(findings)
}

/// What the note must say, and what is credited with it.
fn taken_back(bill: &Bill, note: &Invoice, before: Credited) -> Result<(Bill, Credited), String> {
    let is_part = note.bill.lines.iter().any(|line| matches!(line.item, LineItem::Part));
    let net = note.bill.subtotal.checked_neg().map_err(|error| error.to_string())?;
    let amount = if is_part { CreditAmount::Part(net) } else { CreditAmount::Whole };
    bill.credited(amount, before).map_err(|error| error.to_string())
}

fn course_differences(
    record: &InvoiceRecord,
    named: &[InvoiceNumber],
    notes: &[InvoiceNumber],
    credited_by_notes: Credited,
) -> Vec<String> {
    let InvoiceRecord { invoice, state, credited, .. } = record;
    let (name, currency) = (name(invoice), invoice.bill.currency);
    let mut findings = Vec::new();
    if *credited != credited_by_notes {
        let in_words = |Credited { subtotal, total }: Credited| {
            format!(
                "{} of its subtotal, {} of its total",
                currency.decimal(subtotal),
                currency.decimal(total)
            )
        };
        let (said, made) = (in_words(*credited), in_words(credited_by_notes));
        findings.push(format!("{name}: it is said that {said} are credited, its credit notes make {made}"));
    }
    let expected = state_after(record);
    if expected != Some(*state) {
        let expected = expected.map_or("none that there is", InvoiceState::as_str);
        findings.push(format!("{name}: its state is {}, its timeline makes {expected}", state.as_str()));
    }
    if named != notes {
        let list = |notes: &[InvoiceNumber]| match notes {
            [] => "none".to_owned(),
            notes => notes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        };
        let (named, there) = (list(named), list(notes));
        findings
            .push(format!("{name}: the credit notes of its timeline are {named}, those there are {there}"));
    }
    findings
}

/// The credit notes of its timeline, in its order.
fn named_notes(record: &InvoiceRecord) -> Vec<InvoiceNumber> {
    let note = |deed: InvoiceDeed| match deed {
        InvoiceDeed::Credited(note) | InvoiceDeed::Voided(note) => Some(note),
        InvoiceDeed::Issued | InvoiceDeed::Paid | InvoiceDeed::PaymentTakenBack => None,
    };
    record.events.iter().filter_map(|event| note(event.deed)).collect()
}

/// How a month is billed by another invoice than it is said to be, of those that may have to do with it.
async fn month_differences(
    store: &dyn Store,
    (account, month): (AccountId, Month),
    numbers: &[InvoiceNumber],
) -> Result<Vec<String>, StoreError> {
    let now = store.billed_months(Some((account, month.previous())), 1).await?;
    let said = now.into_iter().find(|(a, m, _)| (*a, *m) == (account, month)).map(|(_, _, number)| number);
    let candidates: BTreeSet<InvoiceNumber> = numbers.iter().copied().chain(said).collect();
    let mut findings = Vec::new();
    for number in candidates {
        let record = read(store, number).await?;
        let bills_it = record.is_some_and(|InvoiceRecord { invoice, state, .. }| {
            let is_of_month = (invoice.buyer.account, invoice.month) == (account, month);
            is_of_month && matches!(invoice.kind, InvoiceKind::Invoice) && state != InvoiceState::Void
        });
        let said_to = said == Some(number);
        if bills_it && !said_to {
            let instead = said.map_or("none".to_owned(), |other| other.to_string());
            findings.push(format!(
                "invoice {number}: it bills {month} of account {account}, and the invoice that is noted there is {instead}"
            ));
        } else if said_to && !bills_it {
            findings.push(format!(
                "invoice {number}: it is noted as billing {month} of account {account}, and is void or does not"
            ));
        }
    }
    Ok(findings)
}

impl InvoiceVerification {
    fn finds(&mut self, finding: String) {
        if self.findings.len() < FINDINGS {
            self.findings.push(finding);
        } else {
            self.more_findings += 1;
        }
    }

    fn finds_all(&mut self, findings: Vec<String>) {
        findings.into_iter().for_each(|finding| self.finds(finding));
    }

    async fn check_whether_given(
        &mut self,
        store: &dyn Store,
        numbers: impl Iterator<Item = &InvoiceNumber>,
    ) -> Result<(), StoreError> {
        let given = store.last_invoice_numbers().await?;
        for number in numbers {
            let year = number.year;
            let last = given.iter().find(|last| last.year == year).map_or(0, |last| last.serial);
            if number.serial > last {
                self.finds(format!("invoice {number}: the last number that was given in {year} is {last}"));
            }
        }
        Ok(())
    }

    /// Whatever comes after `last`, up to `end`, is missing.
    fn check_gap(&mut self, year: i16, last: u32, end: u32) {
        let number = |serial| InvoiceNumber { year, serial };
        match end.saturating_sub(last) {
            0 => {}
            1 => self.finds(format!("invoice {}: it was issued, and is missing", number(end))),
            missing => self.finds(format!(
                "invoices {} to {}: they were issued, and all {missing} are missing",
                number(last + 1),
                number(end)
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
        let mut differing = Vec::new();
        let mut after = None;
        loop {
            let page = store.billed_months(after, PAGE_ROWS).await?;
            let Some((account, month, _)) = page.last() else { break };
            after = Some((*account, *month));
            for (account, month, said) in page {
                let mut numbers = billing.remove(&(account, month)).unwrap_or_default();
                if numbers != [said] {
                    numbers.push(said);
                    differing.push(((account, month), numbers));
                }
            }
        }
        differing.extend(billing);
        for (month, numbers) in differing {
            self.finds_all(look_again(async || month_differences(store, month, &numbers).await).await?);
        }
        Ok(())
    }
}

impl Kept {
    fn of(record: &InvoiceRecord) -> Self {
        let InvoiceRecord { invoice, state, .. } = record;
        let named = named_notes(record);
        Self {
            account: invoice.buyer.account,
            month: invoice.month,
            is_invoice: matches!(invoice.kind, InvoiceKind::Invoice),
            state: *state,
            has_a_course: !course_differences(record, &named, &[], Credited::default()).is_empty(),
            notes: Vec::new(),
        }
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
fn state_after(record: &InvoiceRecord) -> Option<InvoiceState> {
    let (first, rest) = record.events.split_first()?;
    if first.deed != InvoiceDeed::Issued {
        return None;
    }
    rest.iter().try_fold(InvoiceState::Issued, |state, event| match (state, event.deed) {
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
