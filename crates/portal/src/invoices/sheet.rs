//! A document as a page shows it, in the manner of the sheet of paper that is sent: letterhead, facts, lines, sums, how to pay and how
//! it adds up. The same for an invoice, for a credit note and for what a month's invoice would say now.

use super::figures::{Exact, exact, lined_up, rounding};
use crate::when::{grouped, long_day, long_month};
use chancery_domain::{
    Bill, Currency, Day, Invoice, InvoiceKind, InvoiceLine, InvoiceNumber, InvoiceTerms, LineItem,
    MoneyError, UnixMillis,
};
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
    pub(super) lines: Vec<Line>,
    pub(super) subtotal: String,
    pub(super) tax: Option<(String, String)>,
    /// Empty: nothing is said.
    pub(super) payment: Vec<String>,
    /// To be quoted with a payment.
    pub(super) quote: Option<InvoiceNumber>,
    pub(super) rule: String,
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
    pub(super) reason: Vec<String>,
}

pub(super) struct Line {
    pub(super) item: Item,
    pub(super) exact: Exact,
    pub(super) amount: String,
}

pub(super) enum Item {
    Tokens { what: String, tokens: String, price: String },
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
            InvoiceKind::CreditNote { of, reason } => Some(Credit { of: *of, reason: lines_of(reason) }),
        };
        let tax = bill.tax.as_ref();
        Self {
            name: name_of(invoice),
            is_draft: false,
            seller: seller.name.clone(),
            letterhead: lines_of(&seller.letterhead),
            issued: Some(Date::of(Day::of(*issued_at))),
            buyer: buyer.name.to_string(),
            buyer_lines,
            month: long_month(*month),
            credit,
            due: is_invoice.then(|| Due::On(Date::of(*due))),
            amount_label: if is_invoice { "Amount due" } else { "Amount credited" },
            amount: bill.currency.to_read(bill.total),
            currency: bill.currency,
            lines: lines(bill),
            subtotal: bill.currency.figures(bill.subtotal),
            tax: tax
                .map(|tax| (format!("{}, {}\u{a0}%", tax.name, tax.rate), bill.currency.figures(tax.amount))),
            payment: if is_invoice { lines_of(&seller.payment) } else { Vec::new() },
            quote: Some(*number),
            rule: rule(bill),
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
            quote: None,
            ..Self::of(draft)
        }
    }

    /// A credit note that is not issued yet.
    pub(super) fn credit_draft(note: &Invoice) -> Self {
        let name = "Draft credit note".to_owned();
        Self { name, is_draft: true, issued: None, ..Self::of(note) }
    }
}

/// `Invoice 2026-0031`, `Credit note 2026-0032`.
pub(super) fn name_of(invoice: &Invoice) -> String {
    match invoice.kind {
        InvoiceKind::Invoice => format!("Invoice {}", invoice.number),
        InvoiceKind::CreditNote { .. } => format!("Credit note {}", invoice.number),
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

fn lines(bill: &Bill) -> Vec<Line> {
    let exact = lined_up(bill.lines.iter().map(|line| line.exact));
    let line = |(line, exact): (&InvoiceLine, Exact)| Line {
        item: match &line.item {
            LineItem::Tokens { model, direction, tokens, price } => Item::Tokens {
                what: format!("{model}, {}", direction.as_str()),
                tokens: grouped(*tokens),
                price: price.to_string(),
            },
            LineItem::Part => Item::Part,
        },
        exact,
        amount: bill.currency.figures(line.amount),
    };
    bill.lines.iter().zip(exact).map(line).collect()
}

/// How the figures come about, so that whoever has the document can reckon it again.
fn rule(bill: &Bill) -> String {
    let rounding = rounding(&bill.currency);
    let is_part = bill.lines.iter().any(|line| line.item == LineItem::Part);
    let lines = match is_part {
        true => "The amount is the part of the subtotal that is taken back.".to_owned(),
        false => format!(
            "Each line is tokens × price ÷ 1,000,000, rounded {rounding}. Before rounding, the lines come to {} {}.",
            exact(bill.exact),
            bill.currency.as_str()
        ),
    };
    match (&bill.tax, is_part) {
        (None, _) => format!("{lines} The total is the sum of the lines."),
        (Some(_), false) => {
            format!(
                "{lines} The tax is that rate of the subtotal, rounded in the same way, and the total is both together."
            )
        }
        (Some(_), true) => format!(
            "{lines} The tax is rounded {rounding}, over all that is credited so far, so that the parts of an invoice never \
             come to more or less than the whole."
        ),
    }
}
