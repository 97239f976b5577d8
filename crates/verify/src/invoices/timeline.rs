//! Compares the state and credited amount of an invoice with its timeline and its credit notes.

use super::documents::{missing_finding, name, read};
use super::figures::compare;
use chancery_domain::{
    CreditAmount, Credited, Invoice, InvoiceAmounts, InvoiceEventKind, InvoiceKind, InvoiceNumber,
    InvoiceState, LineItem,
};
use chancery_store::{DbError, InvoiceRecord, VerifyStore};

/// Whether its timeline lists credit notes, or does not result in its state.
pub(super) fn has_timeline_to_check(record: &InvoiceRecord) -> bool {
    !state_differences(record, &timeline_credit_notes(record), &[], Credited::default()).is_empty()
}

/// Differences between a document's state and credits and its timeline and credit notes, and between it and the notes.
pub(super) async fn timeline_differences(
    store: &VerifyStore,
    number: InvoiceNumber,
    notes_read: &[InvoiceNumber],
) -> Result<Vec<String>, DbError> {
    let Some(record) = read(store, number).await? else { return Ok(missing_finding(number)) };
    let invoice = &record.invoice;
    let named = timeline_credit_notes(&record);
    // In the order of issue, which may differ from the order of the numbers: at the turn of a year, two clocks may disagree.
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
                findings.push(format!("{}: {what} is {is}, invoice {number} has {should}", name(&note)));
            }
        }
        let expected = apply_credit(&invoice.bill, &note, credited).map(|(bill, after)| {
            credited = after;
            bill
        });
        findings.extend(compare(&note, expected, "invoice"));
    }
    findings.extend(state_differences(&record, &named, &notes, credited));
    Ok(findings)
}

/// The amounts that the note must have, and the credited totals including it.
fn apply_credit(
    bill: &InvoiceAmounts,
    note: &Invoice,
    before: Credited,
) -> Result<(InvoiceAmounts, Credited), String> {
    let is_part = note.bill.lines.iter().any(|line| matches!(line.item, LineItem::Part));
    let net = note.bill.subtotal.checked_neg().map_err(|error| error.to_string())?;
    let amount = if is_part { CreditAmount::Part(net) } else { CreditAmount::Full };
    bill.credit_note(amount, before).map_err(|error| error.to_string())
}

fn state_differences(
    record: &InvoiceRecord,
    named: &[InvoiceNumber],
    notes: &[InvoiceNumber],
    credited_by_notes: Credited,
) -> Vec<String> {
    let InvoiceRecord { invoice, state, credited, .. } = record;
    let (name, currency) = (name(invoice), invoice.bill.currency);
    let mut findings = Vec::new();
    if *credited != credited_by_notes {
        let describe = |Credited { subtotal, total }: Credited| {
            format!(
                "{} of its subtotal, {} of its total",
                currency.to_decimal_string(subtotal),
                currency.to_decimal_string(total)
            )
        };
        let (recorded, from_notes) = (describe(*credited), describe(credited_by_notes));
        findings.push(format!("{name}: credited {recorded}, credit notes total {from_notes}"));
    }
    let expected = state_after(record);
    if expected != Some(*state) {
        let expected = expected.map_or("invalid", InvoiceState::as_str);
        findings.push(format!("{name}: state is {}, timeline gives {expected}", state.as_str()));
    }
    if named != notes {
        let list = |notes: &[InvoiceNumber]| match notes {
            [] => "none".to_owned(),
            notes => notes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        };
        let (named, found) = (list(named), list(notes));
        findings.push(format!("{name}: timeline lists credit notes {named}, found {found}"));
    }
    findings
}

/// The credit notes that the timeline lists, in its order.
fn timeline_credit_notes(record: &InvoiceRecord) -> Vec<InvoiceNumber> {
    let note = |kind: InvoiceEventKind| match kind {
        InvoiceEventKind::Credited(note) | InvoiceEventKind::Voided(note) => Some(note),
        InvoiceEventKind::Issued | InvoiceEventKind::Paid | InvoiceEventKind::MarkedUnpaid => None,
    };
    record.events.iter().filter_map(|event| note(event.kind)).collect()
}

/// Returns `None` for an invalid timeline.
fn state_after(record: &InvoiceRecord) -> Option<InvoiceState> {
    let (first, rest) = record.events.split_first()?;
    if first.kind != InvoiceEventKind::Issued {
        return None;
    }
    rest.iter().try_fold(InvoiceState::Issued, |state, event| match (state, event.kind) {
        (InvoiceState::Void, _) | (_, InvoiceEventKind::Issued) => None,
        (_, InvoiceEventKind::Paid) => Some(InvoiceState::Paid),
        (_, InvoiceEventKind::MarkedUnpaid) => Some(InvoiceState::Issued),
        (state, InvoiceEventKind::Credited(_)) => Some(state),
        (_, InvoiceEventKind::Voided(_)) => Some(InvoiceState::Void),
    })
}
