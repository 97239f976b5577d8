//! How documents put things, on the PDF and on the page alike: days, months, what lines are for, how to pay and how it adds up.

use chancery_domain::{
    Bill, Currency, Day, Invoice, InvoiceKind, InvoiceNumber, LineItem, MinorUnits, Month, Tax,
};

/// `2 November 2026`.
pub fn day(day: Day) -> String {
    written(day, "%-d %B %Y")
}

/// `October 2026`.
pub fn month(month: Month) -> String {
    written(month.first_day(), "%B %Y")
}

fn written(day: Day, format: &str) -> String {
    match jiff::Timestamp::from_millisecond(day.start().0) {
        Ok(moment) => moment.strftime(format).to_string(),
        Err(_) => day.to_string(),
    }
}

/// `Invoice 2026-0031`, `Credit note 2026-0032`.
pub fn title(invoice: &Invoice) -> String {
    match invoice.kind {
        InvoiceKind::Invoice => format!("Invoice {}", invoice.number),
        InvoiceKind::CreditNote { .. } => format!("Credit note {}", invoice.number),
    }
}

/// What a file of it is called, without its ending: `invoice-2026-0031`, `credit-note-2026-0032`.
pub fn file_name(invoice: &Invoice) -> String {
    match invoice.kind {
        InvoiceKind::Invoice => format!("invoice-{}", invoice.number),
        InvoiceKind::CreditNote { .. } => format!("credit-note-{}", invoice.number),
    }
}

/// What a line is for: `qwen2.5-7b, input`, `Part of invoice 2026-0031`.
pub fn item(item: &LineItem, kind: &InvoiceKind) -> String {
    match (item, kind) {
        (LineItem::Tokens { model, direction, .. }, _) => format!("{model}, {}", direction.as_str()),
        (LineItem::Part, InvoiceKind::CreditNote { of, .. }) => format!("Part of invoice {of}"),
        (LineItem::Part, InvoiceKind::Invoice) => "Part".to_owned(),
    }
}

/// The head of the column of what lines are for. A note over a part has no other lines.
pub fn items(bill: &Bill) -> &'static str {
    if is_part(bill) { "What is credited" } else { "Model and direction" }
}

/// `Sales tax, 6.25 %`.
pub fn tax(tax: &Tax) -> String {
    format!("{}, {}\u{a0}%", tax.name, tax.rate)
}

/// What the total is called at the head of the document.
pub fn amount(kind: &InvoiceKind) -> &'static str {
    match kind {
        InvoiceKind::Invoice => "Amount due",
        InvoiceKind::CreditNote { .. } => "Amount credited",
    }
}

/// `Why invoice 2026-0031 is credited`.
pub fn why_credited(of: InvoiceNumber) -> String {
    format!("Why invoice {of} is credited")
}

/// What stands below the sums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paragraph {
    pub heading: &'static str,
    /// A line each.
    pub text: String,
}

/// How to pay, if the firm says so, or what becomes of a credit note; and how the figures come about. `quote` is the number to be
/// quoted, which a draft has not.
pub fn foot(invoice: &Invoice, quote: Option<InvoiceNumber>) -> Vec<Paragraph> {
    let quoted = |text: &str, space: &str| match quote {
        Some(number) => format!("{text}{space}Please quote {number}."),
        None => text.to_owned(),
    };
    let first = match (&invoice.kind, invoice.seller.payment.trim()) {
        (InvoiceKind::Invoice, "") => None,
        (InvoiceKind::Invoice, payment) => {
            Some(Paragraph { heading: "How to pay", text: quoted(payment, "\n") })
        }
        (InvoiceKind::CreditNote { of, .. }, _) => {
            let text = format!(
                "It is taken off what is owed for invoice {of}, or paid back where that invoice has been paid."
            );
            Some(Paragraph { heading: "What becomes of it", text: quoted(&text, " ") })
        }
    };
    let rule = Paragraph { heading: "How it adds up", text: rule(invoice) };
    first.into_iter().chain([rule]).collect()
}

/// So that whoever has the document can reckon it again.
fn rule(invoice: &Invoice) -> String {
    let bill = &invoice.bill;
    let is_taxed = bill.tax.is_some();
    match &invoice.kind {
        InvoiceKind::Invoice => {
            let total = match is_taxed {
                true => "The tax is rounded the same way; the total is the sum of the lines and the tax.",
                false => "The total is the sum of the lines.",
            };
            format!(
                "Each line is tokens × price ÷ 1,000,000, rounded to {}. Before rounding, the lines come to {} {}. {total}",
                rounding(&bill.currency),
                bill.exact.figures(),
                bill.currency
            )
        }
        InvoiceKind::CreditNote { of, .. } => {
            let what = match is_part(bill) {
                false => format!("Each line takes back the same line of invoice {of}."),
                true => format!("The amount is a part of the subtotal of invoice {of}."),
            };
            let tax =
                "The tax is that on everything credited so far, less what earlier credit notes took back.";
            if is_taxed { format!("{what} {tax}") } else { what }
        }
    }
}

fn is_part(bill: &Bill) -> bool {
    bill.lines.iter().any(|line| line.item == LineItem::Part)
}

/// What lines are rounded to: `the cent, halves to the even cent`.
fn rounding(currency: &Currency) -> String {
    match (currency.as_str(), currency.minor_digits()) {
        ("USD" | "EUR" | "AUD" | "CAD" | "NZD" | "SGD", _) => "the cent, halves to the even cent".to_owned(),
        ("GBP", _) => "the penny, halves to the even penny".to_owned(),
        (code, 0) => format!("whole {code}, halves to the even one"),
        _ => format!("{} {currency}, halves to the even one", currency.decimal(MinorUnits(1))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn rounding_is_said_in_the_currencys_own_unit() {
        let words = |code: &str| rounding(&code.parse().unwrap());
        assert_eq!(words("USD"), "the cent, halves to the even cent");
        assert_eq!(words("SGD"), "the cent, halves to the even cent");
        assert_eq!(words("CHF"), "0.01 CHF, halves to the even one");
        assert_eq!(words("KWD"), "0.001 KWD, halves to the even one");
        assert_eq!(words("CLF"), "0.0001 CLF, halves to the even one");
        assert_eq!(words("JPY"), "whole JPY, halves to the even one");
    }

    #[test]
    fn nothing_is_said_of_payment_where_the_firm_says_nothing() {
        let mut invoice = samples::ordinary();
        let headings = |invoice: &Invoice| -> Vec<&str> {
            foot(invoice, Some(invoice.number)).iter().map(|paragraph| paragraph.heading).collect()
        };
        assert_eq!(headings(&invoice), ["How to pay", "How it adds up"]);
        assert!(foot(&invoice, Some(invoice.number))[0].text.ends_with("\nPlease quote 2026-0031."));
        assert!(!foot(&invoice, None)[0].text.contains("quote"));
        invoice.seller.payment = " \n".to_owned();
        assert_eq!(headings(&invoice), ["How it adds up"]);
        assert!(!foot(&invoice, Some(invoice.number))[0].text.contains("quote"));
    }
}
