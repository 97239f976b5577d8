//! Holds every issued invoice against the ledger:
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

mod documents;
mod figures;
mod timeline;

use crate::{Findings, VerifyError};
use chancery_domain::{AccountId, InvoiceKind, InvoiceNumber, InvoiceState, Month};
use chancery_store::{DbError, InvoiceRecord, VerifyStore};
use documents::{gone, name, read};
use figures::figure_differences;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use timeline::{has_timeline_to_check, timeline_differences};

const MAX_FINDINGS_TOLD: usize = 100;
/// Invoices, and months, that are read at once.
const PAGE_ROWS: u32 = 200;
/// How often something that differs is read before it is told: somebody may be at work on it.
const MAX_READS: usize = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvoiceVerification {
    /// Invoices and credit notes.
    pub documents: u64,
    /// By number.
    pub findings: Findings,
}

/// What is left to be checked of a document once all are read.
struct Unchecked {
    account: AccountId,
    month: Month,
    is_invoice: bool,
    state: InvoiceState,
    has_timeline_to_check: bool,
    /// Its credit notes, by number.
    notes: Vec<InvoiceNumber>,
}

/// `progress` is told the number of documents read so far.
pub async fn verify_invoices(
    store: &VerifyStore,
    mut progress: impl FnMut(u64),
) -> Result<InvoiceVerification, VerifyError> {
    let (mut documents, mut findings) = (0, Findings::at_most(MAX_FINDINGS_TOLD));
    let before = store.issued_invoices.last_invoice_numbers().await?;
    let mut unchecked: BTreeMap<InvoiceNumber, Unchecked> = BTreeMap::new();
    let mut notes: Vec<(InvoiceNumber, InvoiceNumber)> = Vec::new();
    let mut last_serials: BTreeMap<i16, u32> = BTreeMap::new();
    let mut after = None;
    loop {
        let page = store.issued_invoices.issued_invoices(after, PAGE_ROWS).await?;
        let Some(end) = page.last() else { break };
        after = Some(end.invoice.number);
        for record in page {
            let number = record.invoice.number;
            let last = last_serials.insert(number.year, number.serial).unwrap_or(0);
            check_gap(&mut findings, number.year, last, number.serial.saturating_sub(1));
            check_document(&mut findings, store, &record).await?;
            if let InvoiceKind::CreditNote { of, .. } = record.invoice.kind {
                notes.push((of, number));
            } else if !figure_differences(store, &record).await?.is_empty() {
                findings.add_all(confirmed(async || figures_now(store, number).await).await?);
            }
            documents += 1;
            progress(documents);
            unchecked.insert(number, Unchecked::of(&record));
        }
    }
    for InvoiceNumber { year, serial } in before {
        check_gap(&mut findings, year, last_serials.get(&year).copied().unwrap_or(0), serial);
    }
    check_whether_given(&mut findings, store, unchecked.keys()).await?;
    for (of, note) in notes {
        match unchecked.get_mut(&of).filter(|credited| credited.is_invoice) {
            Some(credited) => credited.notes.push(note),
            None => findings.add(format!("credit note {note}: there is no invoice {of}")),
        }
    }
    for (number, document) in &unchecked {
        if document.has_timeline_to_check || !document.notes.is_empty() {
            let look = async || timeline_differences(store, *number, &document.notes).await;
            findings.add_all(confirmed(look).await?);
        }
    }
    check_months(&mut findings, store, &unchecked).await?;
    Ok(InvoiceVerification { documents, findings })
}

/// What is still found at the last look.
async fn confirmed(look: impl AsyncFn() -> Result<Vec<String>, DbError>) -> Result<Vec<String>, DbError> {
    let mut findings = look().await?;
    for _ in 1..MAX_READS {
        if findings.is_empty() {
            break;
        }
        findings = look().await?;
    }
    Ok(findings)
}

async fn figures_now(store: &VerifyStore, number: InvoiceNumber) -> Result<Vec<String>, DbError> {
    match read(store, number).await? {
        Some(record) => figure_differences(store, &record).await,
        None => Ok(gone(number)),
    }
}

/// How a month is billed by another invoice than it is said to be, of those that may have to do with it.
async fn month_differences(
    store: &VerifyStore,
    (account, month): (AccountId, Month),
    numbers: &[InvoiceNumber],
) -> Result<Vec<String>, DbError> {
    let now = store.issued_invoices.billed_months(Some((account, month.previous())), 1).await?;
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

async fn check_whether_given(
    findings: &mut Findings,
    store: &VerifyStore,
    numbers: impl Iterator<Item = &InvoiceNumber>,
) -> Result<(), DbError> {
    let given = store.issued_invoices.last_invoice_numbers().await?;
    for number in numbers {
        let year = number.year;
        let last = given.iter().find(|last| last.year == year).map_or(0, |last| last.serial);
        if number.serial > last {
            findings.add(format!("invoice {number}: the last number that was given in {year} is {last}"));
        }
    }
    Ok(())
}

/// Whatever comes after `last`, up to `end`, is missing.
fn check_gap(findings: &mut Findings, year: i16, last: u32, end: u32) {
    let number = |serial| InvoiceNumber { year, serial };
    match end.saturating_sub(last) {
        0 => {}
        1 => findings.add(format!("invoice {}: it was issued, and is missing", number(end))),
        missing => findings.add(format!(
            "invoices {} to {}: they were issued, and all {missing} are missing",
            number(last + 1),
            number(end)
        )),
    }
}

async fn check_document(
    findings: &mut Findings,
    store: &VerifyStore,
    record: &InvoiceRecord,
) -> Result<(), DbError> {
    let name = name(&record.invoice);
    match store.issued_invoices.issued_document(record.invoice.number).await? {
        None => findings.add(format!("{name}: its document is missing")),
        Some(document) if <[u8; 32]>::from(Sha256::digest(&document)) != record.document_hash => {
            findings.add(format!("{name}: its document is not the one that was issued"));
        }
        Some(_) => {}
    }
    Ok(())
}

async fn check_months(
    findings: &mut Findings,
    store: &VerifyStore,
    unchecked: &BTreeMap<InvoiceNumber, Unchecked>,
) -> Result<(), DbError> {
    let mut billing: BTreeMap<(AccountId, Month), Vec<InvoiceNumber>> = BTreeMap::new();
    for (number, Unchecked { account, month, is_invoice, state, .. }) in unchecked {
        if *is_invoice && *state != InvoiceState::Void {
            billing.entry((*account, *month)).or_default().push(*number);
        }
    }
    let mut differing = Vec::new();
    let mut after = None;
    loop {
        let page = store.issued_invoices.billed_months(after, PAGE_ROWS).await?;
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
        findings.add_all(confirmed(async || month_differences(store, month, &numbers).await).await?);
    }
    Ok(())
}

impl Unchecked {
    fn of(record: &InvoiceRecord) -> Self {
        let InvoiceRecord { invoice, state, .. } = record;
        Self {
            account: invoice.buyer.account,
            month: invoice.month,
            is_invoice: matches!(invoice.kind, InvoiceKind::Invoice),
            state: *state,
            has_timeline_to_check: has_timeline_to_check(record),
            notes: Vec::new(),
        }
    }
}
