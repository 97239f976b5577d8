//! Rows of the list, for the page and as JSON.

use super::payment_status::{Badge, PaymentStatus};
use crate::drafting::settings::is_drafting;
use crate::time_format::{
    DisplayTime, LocalTime, day_and_time, day_or_time, long_day, long_month, short_day,
};
use chancery_domain::{Currency, Day, InvoiceKind, InvoiceNumber, MoneyError, Month, UnixMillis};
use chancery_store::{InvoicePage, InvoiceTotals, ListedInvoice, UnbilledMonth};
use serde_json::{Value, json};

pub(super) struct Row {
    pub(super) number: InvoiceNumber,
    pub(super) account: String,
    pub(super) month: String,
    pub(super) issued: DisplayTime,
    /// `None` for credit notes.
    pub(super) due: Option<DisplayTime>,
    pub(super) late: Option<String>,
    pub(super) badge: Badge,
    pub(super) total: String,
    /// The credited invoice, for a credit note.
    pub(super) credits: Option<InvoiceNumber>,
    /// The remaining amount of a partly credited invoice.
    pub(super) left: Option<String>,
}

pub(super) struct DraftRow {
    pub(super) href: String,
    pub(super) account: String,
    pub(super) month: String,
    pub(super) exact: String,
    /// Whether this is the portal's own account.
    pub(super) is_drafting: bool,
    /// `None` if it can be issued now.
    pub(super) from: Option<DisplayTime>,
    /// `false` once the month has ended, even if its last requests are still running.
    pub(super) is_running: bool,
}

pub(super) struct TotalsRow {
    pub(super) currency: String,
    pub(super) billed: String,
    pub(super) outstanding: String,
    pub(super) overdue: String,
    pub(super) is_overdue: bool,
}

/// The currency that all these documents share, for the column header.
pub(super) fn common_currency(listed: &[ListedInvoice]) -> Option<Currency> {
    let first = listed.first()?.currency;
    listed.iter().all(|row| row.currency == first).then_some(first)
}

impl Row {
    pub(super) fn new(
        listed: &ListedInvoice,
        header_currency: Option<Currency>,
        now: UnixMillis,
    ) -> Result<Self, MoneyError> {
        let (status, today) = (PaymentStatus::listed(listed)?, Day::containing(now));
        let amount = |amount| match header_currency {
            Some(currency) => currency.figures(amount),
            None => listed.currency.format_amount(amount),
        };
        let due = DisplayTime { iso: listed.due.to_string(), text: short_day(listed.due.start(), now) };
        let credits = match listed.kind {
            InvoiceKind::Invoice => None,
            InvoiceKind::CreditNote { of, .. } => Some(of),
        };
        let left = status.left;
        let is_part_left = credits.is_none() && left != listed.total && left.0 != 0;
        Ok(Self {
            number: listed.number,
            account: listed.buyer.to_string(),
            month: long_month(listed.month),
            issued: DisplayTime {
                iso: listed.issued_at.to_iso(),
                text: day_or_time(listed.issued_at, &LocalTime::utc(now)),
            },
            due: credits.is_none().then_some(due),
            late: status.overdue_text(today),
            badge: status.badge(today),
            total: amount(listed.total),
            credits,
            left: is_part_left.then(|| amount(left)),
        })
    }
}

impl DraftRow {
    pub(super) fn new(unbilled: &UnbilledMonth, now: UnixMillis) -> Self {
        let UnbilledMonth { account, name, month, totals } = unbilled;
        let (from, is_running) = (month.invoiceable_from(), Month::containing(now) <= *month);
        Self {
            href: format!("/invoices/drafts/{account}/{month}"),
            account: name.to_string(),
            month: long_month(*month),
            exact: totals.cost.figures(),
            is_drafting: is_drafting(name),
            from: (from > now).then(|| DisplayTime {
                iso: from.to_iso(),
                text: if is_running {
                    long_day(Day::containing(from))
                } else {
                    day_and_time(from, &LocalTime::utc(now))
                },
            }),
            is_running,
        }
    }
}

impl TotalsRow {
    pub(super) fn new(sums: &InvoiceTotals) -> Self {
        let InvoiceTotals { currency, billed, outstanding, overdue } = sums;
        Self {
            currency: currency.as_str().to_owned(),
            billed: currency.format_amount(*billed),
            outstanding: currency.format_amount(*outstanding),
            overdue: currency.format_amount(*overdue),
            is_overdue: overdue.0 > 0,
        }
    }
}

pub(super) fn as_json(found: &InvoicePage, page: u32, pages: u32, total: u64) -> Result<Value, MoneyError> {
    let invoices = found.invoices.iter().map(invoice_json).collect::<Result<Vec<_>, _>>()?;
    let drafts: Vec<_> = found.unbilled.iter().map(draft_json).collect();
    let sums: Vec<_> = found
        .sums
        .iter()
        .map(|InvoiceTotals { currency, billed, outstanding, overdue }| {
            json!({
                "currency": currency.as_str(),
                "billed": currency.to_decimal_string(*billed),
                "outstanding": currency.to_decimal_string(*outstanding),
                "overdue": currency.to_decimal_string(*overdue),
            })
        })
        .collect();
    Ok(json!({
        "invoices": invoices,
        "drafts": drafts,
        "sums": sums,
        "page": page,
        "pages": pages,
        "total": total,
    }))
}

fn invoice_json(listed: &ListedInvoice) -> Result<Value, MoneyError> {
    let currency = listed.currency;
    Ok(json!({
        "number": listed.number,
        "kind": kind_name(&listed.kind),
        "state": listed.state.as_str(),
        "account": {"id": listed.account, "name": listed.buyer.as_str()},
        "month": listed.month.to_string(),
        "issued_at": listed.issued_at.to_iso(),
        "due": listed.due.to_string(),
        "currency": currency.as_str(),
        "total": currency.to_decimal_string(listed.total),
        "outstanding": currency.to_decimal_string(PaymentStatus::listed(listed)?.outstanding),
    }))
}

fn draft_json(unbilled: &UnbilledMonth) -> Value {
    json!({
        "account": {"id": unbilled.account, "name": unbilled.name.as_str()},
        "month": unbilled.month.to_string(),
        "exact": unbilled.totals.cost.to_string(),
        "can_be_issued_from": unbilled.month.invoiceable_from().to_iso(),
    })
}

pub(super) fn kind_name(kind: &InvoiceKind) -> &'static str {
    match kind {
        InvoiceKind::Invoice => "invoice",
        InvoiceKind::CreditNote { .. } => "credit_note",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_store::UsageTotals;

    fn row(name: &str, now: &str) -> DraftRow {
        let unbilled = UnbilledMonth {
            account: chancery_domain::AccountId(7),
            name: name.parse().unwrap(),
            month: "2026-10".parse().unwrap(),
            totals: UsageTotals::default(),
        };
        DraftRow::new(&unbilled, UnixMillis(now.parse::<jiff::Timestamp>().unwrap().as_millisecond()))
    }

    #[test]
    fn month_is_ready_to_issue_an_hour_after_it_ends() {
        let states = ["2026-10-31T23:59:59Z", "2026-11-01T00:30:00Z", "2026-11-01T01:00:00Z"].map(|now| {
            let DraftRow { from, is_running, .. } = row("Hale", now);
            (is_running, from.map(|from| from.text))
        });
        let text = |text: &str| Some(text.to_owned());
        let expected = [(true, text("1 November 2026")), (false, text("today, 01:00 UTC")), (false, None)];
        assert_eq!(states, expected);
    }

    #[test]
    fn drafting_account_is_marked() {
        let now = "2026-11-13T09:00:00Z";
        assert!(
            row(crate::drafting::settings::DRAFTING_ACCOUNT, now).is_drafting
                && !row("Hale", now).is_drafting
        );
    }
}
