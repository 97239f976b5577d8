//! A document as a page shows it, in the manner of the sheet of paper that is sent: letterhead, facts, lines, sums, how to pay and how
//! it adds up. The same for an invoice, for a credit note and for what a month's invoice would say now.

use crate::when::{long_day, long_month};
use chancery_domain::{
    Bill, Currency, Day, Invoice, InvoiceKind, InvoiceLine, InvoiceNumber, InvoiceTerms, LineItem, LinedUp,
    MoneyError, UnixMillis, grouped, lined_up,
};
use chancery_invoicing::words::{self, Paragraph};
use chancery_store::MonthToBill;

pub(super) struct Sheet {
    /// `Invoice 2026-0031`
    pub(super) name: String,
    pub(super) is_draft: bool,
    pub(super) seller: String,
    pub(super) letterhead: Vec<String>,
    /// None: not issued yet.
    pub(super) issued: Option<Date>,
    pub(super) buyer: String,
    pub(super) buyer_lines: Vec<String>,
    pub(super) month: String,
    /// What a credit note takes back, and why.
    pub(super) credit: Option<Credit>,
    /// Credit notes have none.
    pub(super) due: Option<Due>,
    pub(super) amount_label: &'static str,
    pub(super) amount: String,
    pub(super) currency: Currency,
    /// The head of the column of what lines are for.
    pub(super) items: &'static str,
    pub(super) lines: Vec<Line>,
    pub(super) subtotal: String,
    pub(super) tax: Option<(String, String)>,
    /// Below the sums.
    pub(super) foot: Vec<Paragraph>,
}

/// For programs and for people.
pub(super) struct Date {
    pub(super) iso: String,
    pub(super) words: String,
}

pub(super) enum Due {
    On(Date),
    DaysAfterIssue(u16),
}

pub(super) struct Credit {
    pub(super) of: InvoiceNumber,
    /// What stands above the reason.
    pub(super) heading: String,
    pub(super) reason: Vec<String>,
}

pub(super) struct Line {
    pub(super) what: String,
    pub(super) item: Item,
    pub(super) exact: LinedUp,
    pub(super) amount: String,
}

pub(super) enum Item {
    Tokens { tokens: String, price: String },
    Part,
}

impl Date {
    pub(super) fn of(day: Day) -> Self {
        Self { iso: day.to_string(), words: long_day(day) }
    }
}

impl Sheet {
    pub(super) fn of(invoice: &Invoice) -> Self {
        let Invoice { number, kind, month, issued_at, due, seller, buyer, bill } = invoice;
        let is_invoice = *kind == InvoiceKind::Invoice;
        let lines_of = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let mut buyer_lines = lines_of(buyer.address.as_str());
        buyer_lines.extend(Some(buyer.email.as_str().to_owned()).filter(|email| !email.is_empty()));
        let credit = match kind {
            InvoiceKind::Invoice => None,
            InvoiceKind::CreditNote { of, reason } => {
                Some(Credit { of: *of, heading: words::why_credited(*of), reason: lines_of(reason) })
            }
        };
        let tax = bill.tax.as_ref();
        Self {
            name: words::title(invoice),
            is_draft: false,
            seller: seller.name.clone(),
            letterhead: lines_of(&seller.letterhead),
            issued: Some(Date::of(Day::of(*issued_at))),
            buyer: buyer.name.to_string(),
            buyer_lines,
            month: long_month(*month),
            credit,
            due: is_invoice.then(|| Due::On(Date::of(*due))),
            amount_label: words::amount(kind),
            amount: bill.currency.to_read(bill.total),
            currency: bill.currency,
            items: words::items(bill),
            lines: lines(invoice),
            subtotal: bill.currency.figures(bill.subtotal),
            tax: tax.map(|tax| (words::tax(tax), bill.currency.figures(tax.amount))),
            foot: words::foot(invoice, Some(*number)),
        }
    }

    /// What would be issued at this moment.
    pub(super) fn draft(draft: &Invoice, terms: &InvoiceTerms) -> Self {
        Self {
            name: "Draft invoice".to_owned(),
            is_draft: true,
            issued: None,
            due: Some(Due::DaysAfterIssue(terms.payment_days)),
            amount_label: if draft.month.can_be_issued_from() > draft.issued_at {
                "So far"
            } else {
                "Amount due"
            },
            foot: words::foot(draft, None),
            ..Self::of(draft)
        }
    }

    /// A credit note that is not issued yet.
    pub(super) fn credit_draft(note: &Invoice) -> Self {
        let name = "Draft credit note".to_owned();
        Self { name, is_draft: true, issued: None, foot: words::foot(note, None), ..Self::of(note) }
    }
}

/// The invoice that a month would get at this moment; it has no number yet.
pub(super) fn not_issued_yet(
    month: &MonthToBill,
    terms: &InvoiceTerms,
    now: UnixMillis,
) -> Result<Invoice, MoneyError> {
    let today = Day::of(now);
    Ok(Invoice {
        number: NO_NUMBER,
        kind: InvoiceKind::Invoice,
        month: month.month,
        issued_at: now,
        due: Day(today.0.saturating_add(i32::from(terms.payment_days))),
        seller: terms.seller.clone(),
        buyer: month.buyer.clone(),
        bill: Bill::of(&month.usage, terms)?,
    })
}

/// Of what is not issued. Numbers begin with 1, and nobody is shown this one.
pub(super) const NO_NUMBER: InvoiceNumber = InvoiceNumber { year: 0, serial: 0 };

fn lines(invoice: &Invoice) -> Vec<Line> {
    let bill = &invoice.bill;
    let exact = lined_up(bill.lines.iter().map(|line| line.exact));
    let line = |(line, exact): (&InvoiceLine, LinedUp)| Line {
        what: words::item(&line.item, &invoice.kind),
        item: match &line.item {
            LineItem::Tokens { tokens, price, .. } => {
                Item::Tokens { tokens: grouped(*tokens), price: price.to_string() }
            }
            LineItem::Part => Item::Part,
        },
        exact,
        amount: bill.currency.figures(line.amount),
    };
    bill.lines.iter().zip(exact).map(line).collect()
}
