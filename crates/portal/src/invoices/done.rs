//! What a document's page says about what just happened. The address says which deed it was (`done=`); the words, the numbers and the
//! addresses are ours.

use super::standing::Standing;
use crate::when::long_month;
use chancery_domain::{InvoiceKind, InvoiceNumber, InvoiceState};
use chancery_store::InvoiceRecord;
use chancery_web::Notice;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    Issued,
    /// Somebody else was quicker.
    AlreadyIssued,
    Paid,
    NotPaid,
    /// On the page of the credit note.
    Credited,
}

impl Done {
    const ALL: [Self; 5] = [Self::Issued, Self::AlreadyIssued, Self::Paid, Self::NotPaid, Self::Credited];

    fn as_str(self) -> &'static str {
        match self {
            Self::Issued => "issued",
            Self::AlreadyIssued => "already-issued",
            Self::Paid => "paid",
            Self::NotPaid => "not-paid",
            Self::Credited => "credited",
        }
    }

    /// An address may be old, or made up: what it does not say well, it does not say.
    pub(super) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|done| done.as_str() == text)
    }

    pub(super) fn href(self, number: InvoiceNumber) -> String {
        format!("/invoices/{number}?done={}", self.as_str())
    }

    /// None where it does not fit what the document is now: the address is older than the last deed.
    pub(super) fn notice(self, record: &InvoiceRecord, standing: &Standing) -> Option<Notice> {
        let (invoice, state) = (&record.invoice, record.state);
        let (number, month) = (invoice.number, long_month(invoice.month));
        let is_note = matches!(invoice.kind, InvoiceKind::CreditNote { .. });
        let send = match invoice.buyer.email.as_str() {
            "" => "Download the PDF and send it.".to_owned(),
            email => format!("Send the PDF to {email}."),
        };
        match self {
            Self::Issued if !is_note => {
                Some(Notice::good("Issued.", format!("Invoice {number} can no longer change. {send}")))
            }
            Self::AlreadyIssued if !is_note => Some(Notice::warning(
                "Issued already.",
                format!(
                    "{} has been invoiced for {month} before you sent this: here is that invoice, and no second one was made.",
                    invoice.buyer.name
                ),
            )),
            Self::Paid if state == InvoiceState::Paid => {
                let amount = invoice.bill.currency.to_read(standing.left);
                Some(Notice::good("Marked as paid.", format!("{amount} of invoice {number} counts as paid.")))
            }
            Self::NotPaid if state == InvoiceState::Issued && !is_note => Some(Notice::good(
                "Taken back.",
                format!("Invoice {number} is waiting for its payment again."),
            )),
            Self::Credited if is_note => {
                Some(Notice::good("Issued.", format!("Credit note {number} can no longer change. {send}")))
            }
            _ => None,
        }
    }
}
