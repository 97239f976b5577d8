//! How documents put things: days, months, amounts of tokens, and the rule of rounding.

use chancery_domain::{Currency, Day, Invoice, InvoiceKind, Month};

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

/// What lines are rounded to: `the cent, halves to the even cent`.
pub fn rounding(currency: &Currency) -> String {
    match (currency.as_str(), currency.minor_digits()) {
        ("USD" | "EUR" | "AUD" | "CAD" | "NZD" | "SGD", _) => "the cent, halves to the even cent".to_owned(),
        ("GBP", _) => "the penny, halves to the even penny".to_owned(),
        (code, 0) => format!("whole {code}, halves to the even one"),
        (code, 3) => format!("0.001 {code}, halves to the even one"),
        (code, _) => format!("0.01 {code}, halves to the even one"),
    }
}
