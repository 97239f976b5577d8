//! Confirmation after a change to a document. The URL only names the change (`done=`); text, numbers and links come from the
//! server.

use super::payment_status::PaymentStatus;
use crate::time_format::long_month;
use chancery_domain::{InvoiceKind, InvoiceNumber, InvoiceState};
use chancery_store::InvoiceRecord;
use chancery_web::Notice;

chancery_domain::closed_enum! {
    /// By the value of `done=`. Unknown values are ignored: the URL may be old or made up.
    pub(super) enum CompletedAction {
        Issued = "issued",
        /// Someone else issued it first.
        AlreadyIssued = "already-issued",
        Paid = "paid",
        Unpaid = "not-paid",
        /// On the page of the credit note.
        Credited = "credited",
    }
}

impl CompletedAction {
    pub(super) fn href(self, number: InvoiceNumber) -> String {
        format!("/invoices/{number}?done={}", self.as_str())
    }

    /// `None` if it does not match the document's current state: the URL is older than the latest change.
    pub(super) fn notice(self, record: &InvoiceRecord, status: &PaymentStatus) -> Option<Notice> {
        let (invoice, state) = (&record.invoice, record.state);
        let (number, month) = (invoice.number, long_month(invoice.month));
        let is_note = matches!(invoice.kind, InvoiceKind::CreditNote { .. });
        let send = match invoice.buyer.email.as_str() {
            "" => "Download the PDF and send it.".to_owned(),
            email => format!("Send the PDF to {email}."),
        };
        match self {
            Self::Issued if !is_note => {
                Some(Notice::success("Issued.", format!("Invoice {number} can no longer be changed. {send}")))
            }
            Self::AlreadyIssued if !is_note => Some(Notice::warning(
                "Already issued.",
                format!(
                    "{} already has this invoice for {month}. No second invoice was issued.",
                    invoice.buyer.name
                ),
            )),
            Self::Paid if state == InvoiceState::Paid => {
                let amount = invoice.bill.currency.format_amount(status.left);
                Some(Notice::success("Marked as paid.", format!("Invoice {number}: {amount}.")))
            }
            Self::Unpaid if state == InvoiceState::Issued && !is_note => Some(Notice::success(
                "Marked as unpaid.",
                format!("Invoice {number} is awaiting payment again."),
            )),
            Self::Credited if is_note => Some(Notice::success(
                "Issued.",
                format!("Credit note {number} can no longer be changed. {send}"),
            )),
            _ => None,
        }
    }
}
