//! A document laid out like the PDF: letterhead, details, lines, sums, payment instructions and the calculation. Used for invoices,
//! credit notes and previews of a month's invoice.

use crate::time_format::{long_day, long_month};
use chancery_domain::{
    AlignedAmount, Currency, Day, Invoice, InvoiceAmounts, InvoiceKind, InvoiceLine, InvoiceNumber,
    InvoiceTerms, LineItem, MoneyError, UnixMillis, align_amounts, group_thousands,
};
use chancery_invoicing::text::{self, Paragraph};
use chancery_store::BillableMonth;

pub(super) struct Sheet {
    /// `Invoice 2026-0031`
    pub(super) name: String,
    pub(super) is_draft: bool,
    pub(super) seller: String,
    pub(super) letterhead: Vec<String>,
    /// `None` if not issued yet.
    pub(super) issued: Option<DisplayDate>,
    pub(super) buyer: String,
    pub(super) buyer_lines: Vec<String>,
    pub(super) month: String,
    /// The credited invoice and the reason, for a credit note.
    pub(super) credit: Option<Credit>,
    /// `None` for credit notes.
    pub(super) due: Option<Due>,
    pub(super) amount_label: &'static str,
    pub(super) amount: String,
    pub(super) currency: Currency,
    /// Header of the column with the line descriptions.
    pub(super) items: &'static str,
    pub(super) lines: Vec<Line>,
    pub(super) subtotal: String,
    pub(super) tax: Option<(String, String)>,
    /// Paragraphs below the sums.
    pub(super) foot: Vec<Paragraph>,
}

/// A date as ISO 8601 and as text.
pub(super) struct DisplayDate {
    pub(super) iso: String,
    pub(super) text: String,
}

pub(super) enum Due {
    On(DisplayDate),
    DaysAfterIssue(u16),
}

pub(super) struct Credit {
    pub(super) of: InvoiceNumber,
    /// Heading above the reason.
    pub(super) heading: String,
    pub(super) reason: Vec<String>,
}

pub(super) struct Line {
    pub(super) description: String,
    pub(super) item: Item,
    pub(super) exact: AlignedAmount,
    pub(super) amount: String,
}

pub(super) enum Item {
    Tokens { tokens: String, price: String },
    Part,
}

impl DisplayDate {
    pub(super) fn of(day: Day) -> Self {
        Self { iso: day.to_string(), text: long_day(day) }
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
                Some(Credit { of: *of, heading: text::credit_reason_heading(*of), reason: lines_of(reason) })
            }
        };
        let tax = bill.tax.as_ref();
        Self {
            name: text::title(invoice),
            is_draft: false,
            seller: seller.name.clone(),
            letterhead: lines_of(&seller.letterhead),
            issued: Some(DisplayDate::of(Day::containing(*issued_at))),
            buyer: buyer.name.to_string(),
            buyer_lines,
            month: long_month(*month),
            credit,
            due: is_invoice.then(|| Due::On(DisplayDate::of(*due))),
            amount_label: text::amount(kind),
            amount: bill.currency.format_amount(bill.total),
            currency: bill.currency,
            items: text::items_label(bill),
            lines: lines(invoice),
            subtotal: bill.currency.figures(bill.subtotal),
            tax: tax.map(|tax| (text::tax(tax), bill.currency.figures(tax.amount))),
            foot: text::foot(invoice, Some(*number)),
        }
    }

    /// The invoice that would be issued now.
    pub(super) fn draft(draft: &Invoice, terms: &InvoiceTerms) -> Self {
        Self {
            name: "Draft invoice".to_owned(),
            is_draft: true,
            issued: None,
            due: Some(Due::DaysAfterIssue(terms.payment_days)),
            amount_label: if draft.month.invoiceable_from() > draft.issued_at {
                "Amount so far"
            } else {
                "Amount due"
            },
            foot: text::foot(draft, None),
            ..Self::of(draft)
        }
    }

    /// A credit note that is not issued yet.
    pub(super) fn credit_draft(note: &Invoice) -> Self {
        let name = "Draft credit note".to_owned();
        Self { name, is_draft: true, issued: None, foot: text::foot(note, None), ..Self::of(note) }
    }
}

/// The invoice that would be issued for the month now. It has no number yet.
pub(super) fn draft_invoice(
    month: &BillableMonth,
    terms: &InvoiceTerms,
    now: UnixMillis,
) -> Result<Invoice, MoneyError> {
    let today = Day::containing(now);
    Ok(Invoice {
        number: DRAFT_NUMBER,
        kind: InvoiceKind::Invoice,
        month: month.month,
        issued_at: now,
        due: Day(today.0.saturating_add(i32::from(terms.payment_days))),
        seller: terms.seller.clone(),
        buyer: month.buyer.clone(),
        bill: InvoiceAmounts::of(&month.usage, terms)?,
    })
}

/// Placeholder for drafts, never shown. Real numbers start at 1.
pub(super) const DRAFT_NUMBER: InvoiceNumber = InvoiceNumber { year: 0, serial: 0 };

fn lines(invoice: &Invoice) -> Vec<Line> {
    let bill = &invoice.bill;
    let exact = align_amounts(bill.lines.iter().map(|line| line.exact));
    let line = |(line, exact): (&InvoiceLine, AlignedAmount)| Line {
        description: text::item(&line.item, &invoice.kind),
        item: match &line.item {
            LineItem::Tokens { tokens, price, .. } => {
                Item::Tokens { tokens: group_thousands(*tokens), price: price.to_string() }
            }
            LineItem::Part => Item::Part,
        },
        exact,
        amount: bill.currency.figures(line.amount),
    };
    bill.lines.iter().zip(exact).map(line).collect()
}
