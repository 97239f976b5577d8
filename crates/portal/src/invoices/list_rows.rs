//! The rows of the list, as its page shows them and as programs read them.

use super::standing::{Badge, Standing};
use crate::drafting::settings::is_drafting;
use crate::when::{Moment, day_and_time, day_or_time, long_day, long_month, short_day};
use chancery_domain::{Currency, Day, InvoiceKind, InvoiceNumber, MoneyError, Month, UnixMillis};
use chancery_store::{InvoicePage, InvoiceSums, ListedInvoice, UnbilledMonth};
use serde_json::{Value, json};

pub(super) struct Row {
    pub(super) number: InvoiceNumber,
    pub(super) account: String,
    pub(super) month: String,
    pub(super) issued: Moment,
    /// None for credit notes.
    pub(super) due: Option<Moment>,
    pub(super) late: Option<String>,
    pub(super) badge: Badge,
    pub(super) total: String,
    /// Of a credit note, the invoice that it credits.
    pub(super) credits: Option<InvoiceNumber>,
    /// What is left of an invoice that was credited in part.
    pub(super) left: Option<String>,
}

pub(super) struct DraftRow {
    pub(super) href: String,
    pub(super) account: String,
    pub(super) month: String,
    pub(super) exact: String,
    /// The portal’s own account.
    pub(super) is_drafting: bool,
    /// None: it can be issued now.
    pub(super) from: Option<Moment>,
    /// Otherwise it has ended, even if its last requests may be under way.
    pub(super) is_running: bool,
}

pub(super) struct SumsRow {
    pub(super) currency: String,
    pub(super) billed: String,
    pub(super) outstanding: String,
    pub(super) overdue: String,
    pub(super) is_overdue: bool,
}

/// The one currency of all these, to stand in the head of the column.
pub(super) fn one_currency(listed: &[ListedInvoice]) -> Option<Currency> {
    let first = listed.first()?.currency;
    listed.iter().all(|row| row.currency == first).then_some(first)
}

impl Row {
    pub(super) fn new(
        listed: &ListedInvoice,
        in_head: Option<Currency>,
        now: UnixMillis,
    ) -> Result<Self, MoneyError> {
        let (standing, today) = (Standing::listed(listed)?, Day::of(now));
        let amount = |amount| match in_head {
            Some(currency) => currency.figures(amount),
            None => listed.currency.to_read(amount),
        };
        let due = Moment { iso: listed.due.to_string(), words: short_day(listed.due.start(), now) };
        let credits = match listed.kind {
            InvoiceKind::Invoice => None,
            InvoiceKind::CreditNote { of, .. } => Some(of),
        };
        let left = standing.left;
        let is_part_left = credits.is_none() && left != listed.total && left.0 != 0;
        Ok(Self {
            number: listed.number,
            account: listed.buyer.to_string(),
            month: long_month(listed.month),
            issued: Moment { iso: listed.issued_at.to_iso(), words: day_or_time(listed.issued_at, now) },
            due: credits.is_none().then_some(due),
            late: standing.days_late(today),
            badge: standing.badge(today),
            total: amount(listed.total),
            credits,
            left: is_part_left.then(|| amount(left)),
        })
    }
}

impl DraftRow {
    pub(super) fn new(unbilled: &UnbilledMonth, now: UnixMillis) -> Self {
        let UnbilledMonth { account, name, month, totals } = unbilled;
        let (from, is_running) = (month.can_be_issued_from(), Month::of(now) <= *month);
        Self {
            href: format!("/invoices/drafts/{account}/{month}"),
            account: name.to_string(),
            month: long_month(*month),
            exact: totals.cost.figures(),
            is_drafting: is_drafting(name),
            from: (from > now).then(|| Moment {
                iso: from.to_iso(),
                words: if is_running { long_day(Day::of(from)) } else { day_and_time(from, now) },
            }),
            is_running,
        }
    }
}

impl SumsRow {
    pub(super) fn new(sums: &InvoiceSums) -> Self {
        let InvoiceSums { currency, billed, outstanding, overdue } = sums;
        Self {
            currency: currency.as_str().to_owned(),
            billed: currency.to_read(*billed),
            outstanding: currency.to_read(*outstanding),
            overdue: currency.to_read(*overdue),
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
        .map(|InvoiceSums { currency, billed, outstanding, overdue }| {
            json!({
                "currency": currency.as_str(),
                "billed": currency.decimal(*billed),
                "outstanding": currency.decimal(*outstanding),
                "overdue": currency.decimal(*overdue),
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
        "total": currency.decimal(listed.total),
        "outstanding": currency.decimal(Standing::listed(listed)?.outstanding),
    }))
}

fn draft_json(unbilled: &UnbilledMonth) -> Value {
    json!({
        "account": {"id": unbilled.account, "name": unbilled.name.as_str()},
        "month": unbilled.month.to_string(),
        "exact": unbilled.totals.cost.to_string(),
        "can_be_issued_from": unbilled.month.can_be_issued_from().to_iso(),
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
    fn a_month_is_running_then_ended_and_an_hour_later_ready() {
        let states = ["2026-10-31T23:59:59Z", "2026-11-01T00:30:00Z", "2026-11-01T01:00:00Z"].map(|now| {
            let DraftRow { from, is_running, .. } = row("Hale", now);
            (is_running, from.map(|from| from.words))
        });
        let words = |words: &str| Some(words.to_owned());
        let expected = [(true, words("1 November 2026")), (false, words("today, 01:00 UTC")), (false, None)];
        assert_eq!(states, expected);
    }

    #[test]
    fn the_portals_own_account_is_marked() {
        let now = "2026-11-13T09:00:00Z";
        assert!(
            row(crate::drafting::settings::DRAFTING_ACCOUNT, now).is_drafting
                && !row("Hale", now).is_drafting
        );
    }
}
