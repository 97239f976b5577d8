//! Status of an invoice, as a badge and as a sentence.

use crate::time_format::long_day;
use chancery_domain::{
    Credited, Currency, Day, InvoiceKind, InvoiceState, MinorUnits, MoneyError, outstanding,
    total_after_credits,
};
use chancery_store::{InvoiceRecord, ListedInvoice};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Badge {
    pub(super) class: &'static str,
    pub(super) label: &'static str,
}

/// The values that determine an invoice's status.
#[derive(Clone, Copy, Debug)]
pub(super) struct PaymentStatus {
    is_credit_note: bool,
    state: InvoiceState,
    due: Day,
    currency: Currency,
    /// The total less credits, whether paid or not.
    pub(super) left: MinorUnits,
    /// The amount still to be paid.
    pub(super) outstanding: MinorUnits,
}

impl PaymentStatus {
    pub(super) fn of(record: &InvoiceRecord) -> Result<Self, MoneyError> {
        let invoice = &record.invoice;
        let (currency, total) = (invoice.bill.currency, invoice.bill.total);
        Self::new(&invoice.kind, record.state, invoice.due, currency, (total, record.credited))
    }

    pub(super) fn listed(listed: &ListedInvoice) -> Result<Self, MoneyError> {
        let ListedInvoice { kind, state, due, currency, total, credited, .. } = listed;
        Self::new(kind, *state, *due, *currency, (*total, *credited))
    }

    fn new(
        kind: &InvoiceKind,
        state: InvoiceState,
        due: Day,
        currency: Currency,
        (total, credited): (MinorUnits, Credited),
    ) -> Result<Self, MoneyError> {
        Ok(Self {
            is_credit_note: matches!(kind, InvoiceKind::CreditNote { .. }),
            state,
            due,
            currency,
            left: total_after_credits(total, credited)?,
            outstanding: outstanding(kind, state, total, credited)?,
        })
    }

    pub(super) fn is_overdue(&self, today: Day) -> bool {
        self.outstanding > MinorUnits(0) && self.due < today
    }

    /// `None` if not overdue.
    pub(super) fn overdue_text(&self, today: Day) -> Option<String> {
        let days = today.0.saturating_sub(self.due.0);
        let plural = if days == 1 { "" } else { "s" };
        self.is_overdue(today).then(|| format!("{days} day{plural} overdue"))
    }

    pub(super) fn badge(&self, today: Day) -> Badge {
        let (class, label) = match self.state {
            _ if self.is_credit_note => ("badge-role", "Credit note"),
            InvoiceState::Draft => ("badge-draft", "Draft"),
            InvoiceState::Issued if self.is_overdue(today) => ("badge-overdue", "Overdue"),
            InvoiceState::Issued => ("badge-issued", "Issued"),
            InvoiceState::Paid => ("badge-paid", "Paid"),
            InvoiceState::Void => ("badge-void", "Void"),
        };
        Badge { class, label }
    }

    pub(super) fn text(&self, today: Day) -> String {
        let (amount, due) = (self.currency.format_amount(self.outstanding), long_day(self.due));
        match self.state {
            _ if self.is_credit_note => {
                "Deducted from the amount due on its invoice, or refunded if that invoice is paid.".to_owned()
            }
            InvoiceState::Draft => "Not issued.".to_owned(),
            InvoiceState::Issued if self.is_overdue(today) => {
                format!("Overdue: {amount} was due on {due}.")
            }
            InvoiceState::Issued => format!("{amount} due on {due}."),
            InvoiceState::Paid => "Paid.".to_owned(),
            InvoiceState::Void => "Void: fully credited. Nothing is due.".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(state: InvoiceState, due: &str, credited: i64) -> PaymentStatus {
        of_kind(&InvoiceKind::Invoice, state, due, (20_770, credited))
    }

    fn of_kind(
        kind: &InvoiceKind,
        state: InvoiceState,
        due: &str,
        (total, credited): (i64, i64),
    ) -> PaymentStatus {
        let credited = Credited { subtotal: MinorUnits(credited), total: MinorUnits(credited) };
        let figures = (MinorUnits(total), credited);
        PaymentStatus::new(kind, state, due.parse().unwrap(), Currency::USD, figures).unwrap()
    }

    #[test]
    fn invoice_is_overdue_after_its_due_date_until_paid_or_credited() {
        let due = "2026-12-02".parse().unwrap();
        let (next, later) = ("2026-12-03".parse().unwrap(), "2026-12-12".parse().unwrap());
        let issued = status(InvoiceState::Issued, "2026-12-02", 770);
        assert!(!issued.is_overdue(due) && issued.is_overdue(next));
        assert_eq!(issued.overdue_text(next).as_deref(), Some("1 day overdue"));
        assert_eq!(issued.overdue_text(later).as_deref(), Some("10 days overdue"));
        assert_eq!(issued.badge(due).label, "Issued");
        assert_eq!(issued.badge(next).label, "Overdue");
        assert_eq!(issued.text(next), "Overdue: $200.00 was due on 2 December 2026.");
        for state in [InvoiceState::Paid, InvoiceState::Void] {
            let done = status(state, "2026-12-02", 0);
            assert_eq!((done.is_overdue(later), done.outstanding), (false, MinorUnits(0)));
        }
        let kind = InvoiceKind::CreditNote { of: "2026-0001".parse().unwrap(), reason: "x".to_owned() };
        let note = of_kind(&kind, InvoiceState::Issued, "2026-12-02", (-500, 0));
        assert_eq!((note.is_overdue(later), note.outstanding), (false, MinorUnits(0)));
        assert_eq!(note.badge(later).label, "Credit note");
    }
}
