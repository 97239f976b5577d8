//! History of an invoice as text, newest first.

use crate::person_names::{DisplayPerson, PersonNames};
use crate::time_format::{DisplayTime, LocalTime};
use chancery_domain::{InvoiceEvent, InvoiceEventKind, InvoiceNumber};

pub(super) struct HistoryRow {
    /// `Marked as paid`
    pub(super) description: &'static str,
    /// The credit note that caused the event.
    pub(super) note: Option<InvoiceNumber>,
    /// `None` for the command line.
    pub(super) by: Option<DisplayPerson>,
    pub(super) at: DisplayTime,
}

/// Times are in the reader's zone: they say when a colleague did something, and decide nothing about the invoice.
pub(super) fn history(events: &[InvoiceEvent], names: &PersonNames, local: &LocalTime) -> Vec<HistoryRow> {
    events.iter().rev().map(|event| HistoryRow::new(event, names, local)).collect()
}

/// The credit notes of this invoice, oldest first.
pub(super) fn credit_notes(events: &[InvoiceEvent]) -> Vec<InvoiceNumber> {
    let note = |event: &InvoiceEvent| match event.kind {
        InvoiceEventKind::Credited(note) | InvoiceEventKind::Voided(note) => Some(note),
        InvoiceEventKind::Issued | InvoiceEventKind::Paid | InvoiceEventKind::MarkedUnpaid => None,
    };
    events.iter().filter_map(note).collect()
}

impl HistoryRow {
    fn new(event: &InvoiceEvent, names: &PersonNames, local: &LocalTime) -> Self {
        let (description, note) = match event.kind {
            InvoiceEventKind::Issued => ("Issued", None),
            InvoiceEventKind::Paid => ("Marked as paid", None),
            InvoiceEventKind::MarkedUnpaid => ("Marked as unpaid", None),
            InvoiceEventKind::Credited(note) => ("Partly credited", Some(note)),
            InvoiceEventKind::Voided(note) => ("Fully credited and voided", Some(note)),
        };
        let by = event.by.as_ref().map(|person| names.of_ref(person));
        Self { description, note, by, at: DisplayTime::new(event.at, local) }
    }
}
