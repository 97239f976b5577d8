//! Compares every issued invoice with the ledger:
//!
//! 1. the numbers of each year: from 1 to the last one issued, none missing, none beyond it;
//! 2. an invoice's lines, sums, tax and exact amount, from its account's usage in its month, with its own currency and tax
//!    (the verification of the ledger checks the daily totals that this uses);
//! 3. a credit note's figures, account, month, currency and tax, from the invoice it credits and the earlier credit notes;
//! 4. an invoice's state and credited amount, from its timeline and its credit notes;
//! 5. the document, by its hash;
//! 6. which invoice bills each month: the one that is not void, and no other.
//!
//! A void invoice is compared with its own lines, because its month was reopened and may have more usage now. Usage is never
//! removed from a month, so the lines have at most what the ledger has.
//!
//! Invoices may be issued, paid and credited meanwhile. Numbers are only ever added, so the last ones are between those read
//! before and those read after. Any other difference is read again before it is reported.

mod documents;
mod figures;
mod timeline;

use crate::{Findings, VerifyError};
use chancery_domain::{AccountId, InvoiceKind, InvoiceNumber, InvoiceState, Month};
use chancery_store::{DbError, InvoiceRecord, VerifyStore};
use documents::{missing_finding, name, read};
use figures::figure_differences;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use timeline::{has_timeline_to_check, timeline_differences};

const MAX_REPORTED_FINDINGS: usize = 100;
/// Invoices or months per page.
const PAGE_ROWS: u32 = 200;
/// How often a difference is read before it is reported, because a concurrent change may cause it.
const MAX_READS: usize = 3;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvoiceVerification {
    /// Invoices and credit notes.
    pub documents: u64,
    pub findings: Findings,
}

/// What is still to be checked of a document once all are read.
struct PendingDocument {
    account: AccountId,
    month: Month,
    is_invoice: bool,
    state: InvoiceState,
    has_timeline_to_check: bool,
    /// The numbers of its credit notes.
    notes: Vec<InvoiceNumber>,
}

/// Calls `progress` with the number of documents read so far.
pub async fn verify_invoices(
    store: &VerifyStore,
    mut progress: impl FnMut(u64),
) -> Result<InvoiceVerification, VerifyError> {
    let (mut documents, mut findings) = (0, Findings::with_limit(MAX_REPORTED_FINDINGS));
    let before = store.issued_invoices.last_invoice_numbers().await?;
    let mut unchecked: BTreeMap<InvoiceNumber, PendingDocument> = BTreeMap::new();
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
                findings.add_all(recheck(async || check_figures(store, number).await).await?);
            }
            documents += 1;
            progress(documents);
            unchecked.insert(number, PendingDocument::of(&record));
        }
    }
    for InvoiceNumber { year, serial } in before {
        check_gap(&mut findings, year, last_serials.get(&year).copied().unwrap_or(0), serial);
    }
    check_number_issued(&mut findings, store, unchecked.keys()).await?;
    for (of, note) in notes {
        match unchecked.get_mut(&of).filter(|credited| credited.is_invoice) {
            Some(credited) => credited.notes.push(note),
            None => findings.add(format!("credit note {note}: invoice {of} not found")),
        }
    }
    for (number, document) in &unchecked {
        if document.has_timeline_to_check || !document.notes.is_empty() {
            let check = async || timeline_differences(store, *number, &document.notes).await;
            findings.add_all(recheck(check).await?);
        }
    }
    check_months(&mut findings, store, &unchecked).await?;
    Ok(InvoiceVerification { documents, findings })
}

/// Returns what the last of up to `MAX_READS` reads still finds.
async fn recheck(check: impl AsyncFn() -> Result<Vec<String>, DbError>) -> Result<Vec<String>, DbError> {
    let mut findings = check().await?;
    for _ in 1..MAX_READS {
        if findings.is_empty() {
            break;
        }
        findings = check().await?;
    }
    Ok(findings)
}

async fn check_figures(store: &VerifyStore, number: InvoiceNumber) -> Result<Vec<String>, DbError> {
    match read(store, number).await? {
        Some(record) => figure_differences(store, &record).await,
        None => Ok(missing_finding(number)),
    }
}

/// Differences between the invoice recorded for a month and the candidates that bill it.
async fn month_differences(
    store: &VerifyStore,
    (account, month): (AccountId, Month),
    numbers: &[InvoiceNumber],
) -> Result<Vec<String>, DbError> {
    let now = store.issued_invoices.billed_months(Some((account, month.previous())), 1).await?;
    let recorded =
        now.into_iter().find(|(a, m, _)| (*a, *m) == (account, month)).map(|(_, _, number)| number);
    let candidates: BTreeSet<InvoiceNumber> = numbers.iter().copied().chain(recorded).collect();
    let mut findings = Vec::new();
    for number in candidates {
        let record = read(store, number).await?;
        let bills_it = record.is_some_and(|InvoiceRecord { invoice, state, .. }| {
            let is_of_month = (invoice.buyer.account, invoice.month) == (account, month);
            is_of_month && matches!(invoice.kind, InvoiceKind::Invoice) && state != InvoiceState::Void
        });
        let is_recorded = recorded == Some(number);
        if bills_it && !is_recorded {
            let instead = recorded.map_or("none".to_owned(), |other| other.to_string());
            findings.push(format!(
                "invoice {number}: covers {month} of account {account}, but the month records {instead}"
            ));
        } else if is_recorded && !bills_it {
            findings.push(format!(
                "invoice {number}: recorded for {month} of account {account}, but is void or covers another month"
            ));
        }
    }
    Ok(findings)
}

async fn check_number_issued(
    findings: &mut Findings,
    store: &VerifyStore,
    numbers: impl Iterator<Item = &InvoiceNumber>,
) -> Result<(), DbError> {
    let last_numbers = store.issued_invoices.last_invoice_numbers().await?;
    for number in numbers {
        let year = number.year;
        let last = last_numbers.iter().find(|last| last.year == year).map_or(0, |last| last.serial);
        if number.serial > last {
            findings.add(format!("invoice {number}: beyond the last number issued in {year}, {last}"));
        }
    }
    Ok(())
}

/// Reports the serials after `last` up to `end` as missing.
fn check_gap(findings: &mut Findings, year: i16, last: u32, end: u32) {
    let number = |serial| InvoiceNumber { year, serial };
    match end.saturating_sub(last) {
        0 => {}
        1 => findings.add(format!("invoice {}: issued but missing", number(end))),
        missing => findings.add(format!(
            "invoices {} to {}: issued but missing ({missing})",
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
        None => findings.add(format!("{name}: PDF missing")),
        Some(document) if <[u8; 32]>::from(Sha256::digest(&document)) != record.document_hash => {
            findings.add(format!("{name}: PDF differs from the issued one"));
        }
        Some(_) => {}
    }
    Ok(())
}

async fn check_months(
    findings: &mut Findings,
    store: &VerifyStore,
    unchecked: &BTreeMap<InvoiceNumber, PendingDocument>,
) -> Result<(), DbError> {
    let mut billing: BTreeMap<(AccountId, Month), Vec<InvoiceNumber>> = BTreeMap::new();
    for (number, PendingDocument { account, month, is_invoice, state, .. }) in unchecked {
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
        for (account, month, recorded) in page {
            let mut numbers = billing.remove(&(account, month)).unwrap_or_default();
            if numbers != [recorded] {
                numbers.push(recorded);
                differing.push(((account, month), numbers));
            }
        }
    }
    differing.extend(billing);
    for (month, numbers) in differing {
        findings.add_all(recheck(async || month_differences(store, month, &numbers).await).await?);
    }
    Ok(())
}

impl PendingDocument {
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
