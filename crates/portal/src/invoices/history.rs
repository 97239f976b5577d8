//! What was done with an invoice, in words, the last first.

use crate::when::Moment;
use chancery_domain::{InvoiceDeed, InvoiceEvent, InvoiceNumber, UnixMillis};

pub(super) struct Event {
    /// `Marked as paid`
    pub(super) what: &'static str,
    /// The credit note that it was done by.
    pub(super) note: Option<InvoiceNumber>,
    /// None: the command line.
    pub(super) by: Option<String>,
    pub(super) at: Moment,
}

pub(super) fn history(events: &[InvoiceEvent], now: UnixMillis) -> Vec<Event> {
    events.iter().rev().map(|event| Event::new(event, now)).collect()
}

/// Those that credited it, the first first.
pub(super) fn credit_notes(events: &[InvoiceEvent]) -> Vec<InvoiceNumber> {
    let note = |event: &InvoiceEvent| match event.deed {
        InvoiceDeed::Credited(note) | InvoiceDeed::Voided(note) => Some(note),
        InvoiceDeed::Issued | InvoiceDeed::Paid | InvoiceDeed::PaymentTakenBack => None,
    };
    events.iter().filter_map(note).collect()
}

impl Event {
    fn new(event: &InvoiceEvent, now: UnixMillis) -> Self {
        let (what, note) = match event.deed {
            InvoiceDeed::Issued => ("Issued", None),
            InvoiceDeed::Paid => ("Marked as paid", None),
            InvoiceDeed::PaymentTakenBack => ("Marked as not paid after all", None),
            InvoiceDeed::Credited(note) => ("Credited in part", Some(note)),
            InvoiceDeed::Voided(note) => ("Credited as a whole, and void since", Some(note)),
        };
        let by = event.by.as_ref().map(|person| person.email.to_string());
        Self { what, note, by, at: Moment::new(event.at, now) }
    }
}
