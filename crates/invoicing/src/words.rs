//! How documents put things: days, months, amounts of tokens, and the rule of rounding.

use chancery_domain::{Currency, Day, Invoice, InvoiceKind, Month, Nanos};

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

/// `182,640,275`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `8,999.991`.
pub fn exact(amount: Nanos) -> String {
    let plain = amount.to_string();
    let (units, fraction) = plain.split_once('.').unwrap_or((&plain, ""));
    let sign = if amount.0 < 0 { "-" } else { "" };
    let units = units.trim_start_matches('-').parse().map_or_else(|_| units.to_owned(), grouped);
    format!("{sign}{units}.{fraction}")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_amounts_have_their_thousands_apart() {
        for (nanos, text) in [
            (0, "0.00"),
            (-128_431_000, "-0.128431"),
            (8_999_991_000_000, "8,999.991"),
            (-1_234_567_000_000_001, "-1,234,567.000000001"),
            (i64::MIN, "-9,223,372,036.854775808"),
        ] {
            assert_eq!(exact(Nanos(nanos)), text);
        }
    }
}
