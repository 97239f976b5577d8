//! Where an invoice stands, in a word and in a sentence.

use crate::when::long_day;
use chancery_domain::{Credited, Currency, Day, InvoiceKind, InvoiceState, MinorUnits};
use chancery_store::{InvoiceRecord, ListedInvoice};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Badge {
    pub(super) class: &'static str,
    pub(super) word: &'static str,
}

/// What decides where an invoice stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    is_credit_note: bool,
    state: InvoiceState,
    due: Day,
    currency: Currency,
    total: MinorUnits,
    credited: Credited,
}

impl Standing {
    pub(super) fn of(record: &InvoiceRecord) -> Self {
        let invoice = &record.invoice;
        Self {
            is_credit_note: matches!(invoice.kind, InvoiceKind::CreditNote { .. }),
            state: record.state,
            due: invoice.due,
            currency: invoice.bill.currency,
            total: invoice.bill.total,
            credited: record.credited,
        }
    }

    pub(super) fn listed(listed: &ListedInvoice) -> Self {
        Self {
            is_credit_note: matches!(listed.kind, InvoiceKind::CreditNote { .. }),
            state: listed.state,
            due: listed.due,
            currency: listed.currency,
            total: listed.total,
            credited: listed.credited,
        }
    }

    /// What is still to be paid.
    pub(super) fn outstanding(&self) -> MinorUnits {
        match self.state {
            InvoiceState::Issued if !self.is_credit_note => self.left(),
            _ => MinorUnits(0),
        }
    }

    /// The total less what was credited, paid or not. A note never takes back more than there is.
    pub(super) fn left(&self) -> MinorUnits {
        self.total.checked_sub(self.credited.total).unwrap_or_default()
    }

    pub(super) fn is_overdue(&self, today: Day) -> bool {
        self.outstanding() > MinorUnits(0) && self.due < today
    }

    /// None for what is not late.
    pub(super) fn days_late(&self, today: Day) -> Option<String> {
        let days = today.0.saturating_sub(self.due.0);
        let plural = if days == 1 { "" } else { "s" };
        self.is_overdue(today).then(|| format!("{days} day{plural} late"))
    }

    pub(super) fn badge(&self, today: Day) -> Badge {
        let (class, word) = match self.state {
            _ if self.is_credit_note => ("badge-role", "Credit note"),
            InvoiceState::Draft => ("badge-draft", "Draft"),
            InvoiceState::Issued if self.is_overdue(today) => ("badge-overdue", "Overdue"),
            InvoiceState::Issued => ("badge-issued", "Issued"),
            InvoiceState::Paid => ("badge-paid", "Paid"),
            InvoiceState::Void => ("badge-void", "Void"),
        };
        Badge { class, word }
    }

    pub(super) fn words(&self, today: Day) -> String {
        let (amount, due) = (self.currency.to_read(self.outstanding()), long_day(self.due));
        match self.state {
            _ if self.is_credit_note => {
                "A credit note is not paid: it takes back what an invoice said.".to_owned()
            }
            InvoiceState::Draft => "Not issued.".to_owned(),
            InvoiceState::Issued if self.is_overdue(today) => {
                format!("Overdue: {amount} was due on {due} and is not marked as paid.")
            }
            InvoiceState::Issued => format!("Waiting for payment of {amount}, due on {due}."),
            InvoiceState::Paid => "Marked as paid.".to_owned(),
            InvoiceState::Void => "Void: credited as a whole, so nothing of it is to be paid.".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(state: InvoiceState, due: &str, credited: i64) -> Standing {
        Standing {
            is_credit_note: false,
            state,
            due: due.parse().unwrap(),
            currency: Currency::USD,
            total: MinorUnits(20_770),
            credited: Credited { subtotal: MinorUnits(credited), total: MinorUnits(credited) },
        }
    }

    #[test]
    fn an_invoice_is_late_from_the_day_after_it_was_due_until_it_is_paid_or_credited() {
        let due = "2026-12-02".parse().unwrap();
        let (next, later) = ("2026-12-03".parse().unwrap(), "2026-12-12".parse().unwrap());
        let issued = standing(InvoiceState::Issued, "2026-12-02", 770);
        assert!(!issued.is_overdue(due) && issued.is_overdue(next));
        assert_eq!(issued.days_late(next).as_deref(), Some("1 day late"));
        assert_eq!(issued.days_late(later).as_deref(), Some("10 days late"));
        assert_eq!(issued.badge(due).word, "Issued");
        assert_eq!(issued.badge(next).word, "Overdue");
        assert_eq!(
            issued.words(next),
            "Overdue: $200.00 was due on 2 December 2026 and is not marked as paid."
        );
        for state in [InvoiceState::Paid, InvoiceState::Void] {
            let done = standing(state, "2026-12-02", 0);
            assert_eq!((done.is_overdue(later), done.outstanding()), (false, MinorUnits(0)));
        }
        let note = Standing { is_credit_note: true, total: MinorUnits(-500), ..issued };
        assert_eq!((note.is_overdue(later), note.outstanding()), (false, MinorUnits(0)));
        assert_eq!(note.badge(later).word, "Credit note");
    }
}
