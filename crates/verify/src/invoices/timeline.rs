//! How the state of an invoice, and what was credited of it, differ from its timeline and its credit notes.

use super::documents::{gone, name, read};
use super::figures::compare;
use chancery_domain::{
    Bill, CreditAmount, Credited, Invoice, InvoiceDeed, InvoiceKind, InvoiceNumber, InvoiceState, LineItem,
};
use chancery_store::{DbError, InvoiceRecord, VerifyStore};

/// Whether its timeline names credit notes, or does not make its state.
pub(super) fn has_timeline_to_check(record: &InvoiceRecord) -> bool {
    !state_differences(record, &named_notes(record), &[], Credited::default()).is_empty()
}

/// How a document's state and credits differ from its timeline and its notes, and the notes from it.
pub(super) async fn timeline_differences(
    store: &VerifyStore,
    number: InvoiceNumber,
    notes_read: &[InvoiceNumber],
) -> Result<Vec<String>, DbError> {
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
    findings.extend(state_differences(&record, &named, &notes, credited));
    Ok(findings)
}

/// What the note must say, and what is credited with it.
fn taken_back(bill: &Bill, note: &Invoice, before: Credited) -> Result<(Bill, Credited), String> {
    let is_part = note.bill.lines.iter().any(|line| matches!(line.item, LineItem::Part));
    let net = note.bill.subtotal.checked_neg().map_err(|error| error.to_string())?;
    let amount = if is_part { CreditAmount::Part(net) } else { CreditAmount::Whole };
    bill.credited(amount, before).map_err(|error| error.to_string())
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
