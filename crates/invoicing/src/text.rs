//! Wording that the PDF and the portal share: dates, months, line items, payment instructions and the calculation.

use chancery_domain::{
    Currency, Day, Invoice, InvoiceAmounts, InvoiceKind, InvoiceNumber, LineItem, MinorUnits, Month, Tax,
};

/// `2 November 2026`.
pub fn day(day: Day) -> String {
    format_day(day, "%-d %B %Y")
}

/// `October 2026`.
pub fn month(month: Month) -> String {
    format_day(month.first_day(), "%B %Y")
}

fn format_day(day: Day, format: &str) -> String {
    match jiff::Timestamp::from_millisecond(day.start().0) {
        Ok(timestamp) => timestamp.strftime(format).to_string(),
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

/// File name without extension: `invoice-2026-0031`, `credit-note-2026-0032`.
pub fn file_name(invoice: &Invoice) -> String {
    match invoice.kind {
        InvoiceKind::Invoice => format!("invoice-{}", invoice.number),
        InvoiceKind::CreditNote { .. } => format!("credit-note-{}", invoice.number),
    }
}

/// Description of a line item: `qwen2.5-7b, input`, `qwen2.5-7b, cached input`, `Part of invoice 2026-0031`.
pub fn item(item: &LineItem, kind: &InvoiceKind) -> String {
    match (item, kind) {
        (LineItem::Tokens { model, direction, .. }, _) => format!("{model}, {}", direction.label()),
        (LineItem::Part, InvoiceKind::CreditNote { of, .. }) => format!("Part of invoice {of}"),
        (LineItem::Part, InvoiceKind::Invoice) => "Part".to_owned(),
    }
}

/// Heading of the column with the descriptions. A credit note over part of an invoice has no other lines.
pub fn items_label(bill: &InvoiceAmounts) -> &'static str {
    if is_part(bill) { "Credited item" } else { "Model and direction" }
}

/// `Sales tax, 6.25%`.
pub fn tax(tax: &Tax) -> String {
    format!("{}, {}%", tax.name, tax.rate)
}

/// Label of the total at the top of the document.
pub fn amount(kind: &InvoiceKind) -> &'static str {
    match kind {
        InvoiceKind::Invoice => "Amount due",
        InvoiceKind::CreditNote { .. } => "Amount credited",
    }
}

/// `Reason for the credit on invoice 2026-0031`.
pub fn credit_reason_heading(of: InvoiceNumber) -> String {
    format!("Reason for the credit on invoice {of}")
}

/// A paragraph below the sums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paragraph {
    pub heading: &'static str,
    /// One or more lines.
    pub text: String,
}

/// Payment instructions, if the firm has any, or what happens with a credit note; then how the figures are calculated. `quote` is
/// the number for the customer to quote, which a draft does not have.
pub fn foot(invoice: &Invoice, quote: Option<InvoiceNumber>) -> Vec<Paragraph> {
    let quoted = |text: &str, space: &str| match quote {
        Some(number) => format!("{text}{space}Please quote {number}."),
        None => text.to_owned(),
    };
    let first = match (&invoice.kind, invoice.seller.payment.trim()) {
        (InvoiceKind::Invoice, "") => None,
        (InvoiceKind::Invoice, payment) => {
            Some(Paragraph { heading: "Payment", text: quoted(payment, "\n") })
        }
        (InvoiceKind::CreditNote { of, .. }, _) => {
            let text =
                format!("Deducted from the amount due on invoice {of}, or refunded if that invoice is paid.");
            Some(Paragraph { heading: "Use of the credit", text: quoted(&text, " ") })
        }
    };
    let rule = Paragraph { heading: "Calculation", text: rule(invoice) };
    first.into_iter().chain([rule]).collect()
}

/// Explains the calculation, so that the recipient can check it.
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
                "Each line is tokens × price ÷ 1,000,000, rounded to {}. Before rounding, the lines add up to {} {}. {total}",
                rounding(&bill.currency),
                bill.exact.figures(),
                bill.currency
            )
        }
        InvoiceKind::CreditNote { of, .. } => {
            let what = match is_part(bill) {
                false => format!("Each line credits the same line of invoice {of}."),
                true => format!("The amount is part of the subtotal of invoice {of}."),
            };
            let tax =
                "Tax is calculated on everything credited so far, less the tax on earlier credit notes.";
            if is_taxed { format!("{what} {tax}") } else { what }
        }
    }
}

fn is_part(bill: &InvoiceAmounts) -> bool {
    bill.lines.iter().any(|line| line.item == LineItem::Part)
}

/// Rounding rule for lines: `the nearest cent, with halves rounded to even`.
fn rounding(currency: &Currency) -> String {
    match (currency.as_str(), currency.minor_digits()) {
        ("USD" | "EUR" | "AUD" | "CAD" | "NZD" | "SGD", _) => {
            "the nearest cent, with halves rounded to even".to_owned()
        }
        ("GBP", _) => "the nearest penny, with halves rounded to even".to_owned(),
        (code, 0) => format!("the nearest whole {code}, with halves rounded to even"),
        _ => {
            let unit = currency.to_decimal_string(MinorUnits(1));
            format!("the nearest {unit} {currency}, with halves rounded to even")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    #[test]
    fn rounding_note_uses_the_currency_unit() {
        let rounding_text = |code: &str| rounding(&code.parse().unwrap());
        assert_eq!(rounding_text("USD"), "the nearest cent, with halves rounded to even");
        assert_eq!(rounding_text("SGD"), "the nearest cent, with halves rounded to even");
        assert_eq!(rounding_text("CHF"), "the nearest 0.01 CHF, with halves rounded to even");
        assert_eq!(rounding_text("KWD"), "the nearest 0.001 KWD, with halves rounded to even");
        assert_eq!(rounding_text("CLF"), "the nearest 0.0001 CLF, with halves rounded to even");
        assert_eq!(rounding_text("JPY"), "the nearest whole JPY, with halves rounded to even");
    }

    #[test]
    fn footer_omits_payment_if_none_is_configured() {
        let mut invoice = samples::ordinary();
        let headings = |invoice: &Invoice| -> Vec<&str> {
            foot(invoice, Some(invoice.number)).iter().map(|paragraph| paragraph.heading).collect()
        };
        assert_eq!(headings(&invoice), ["Payment", "Calculation"]);
        assert!(foot(&invoice, Some(invoice.number))[0].text.ends_with("\nPlease quote 2026-0031."));
        assert!(!foot(&invoice, None)[0].text.contains("quote"));
        invoice.seller.payment = " \n".to_owned();
        assert_eq!(headings(&invoice), ["Calculation"]);
        assert!(!foot(&invoice, Some(invoice.number))[0].text.contains("quote"));
    }
}
