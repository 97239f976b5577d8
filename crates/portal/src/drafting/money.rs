//! Money and numbers as people read them.

use chancery_domain::{Currency, Nanos};

/// The exact amount: `$0.00024`, or `0.00024 CHF` for a currency without a sign of its own here.
pub(crate) fn exact(amount: Nanos, currency: Currency) -> String {
    match currency.as_str() {
        "USD" => format!("${amount}"),
        "EUR" => format!("€{amount}"),
        "GBP" => format!("£{amount}"),
        code => format!("{amount} {code}"),
    }
}

/// `1,846 tokens`
pub(crate) fn tokens(count: u32) -> String {
    let unit = if count == 1 { "token" } else { "tokens" };
    format!("{} {unit}", grouped(count))
}

/// With a comma between thousands.
pub(crate) fn grouped(number: u32) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_is_exact_and_has_its_currency() {
        assert_eq!(exact(Nanos(240_000), Currency::USD), "$0.00024");
        assert_eq!(exact(Nanos(240_000), "EUR".parse().unwrap()), "€0.00024");
        assert_eq!(exact(Nanos(0), "CHF".parse().unwrap()), "0.00 CHF");
    }

    #[test]
    fn thousands_have_commas() {
        for (number, text) in
            [(0, "0"), (12, "12"), (999, "999"), (1_000, "1,000"), (u32::MAX, "4,294,967,295")]
        {
            assert_eq!(grouped(number), text);
        }
        assert_eq!(tokens(1), "1 token");
        assert_eq!(tokens(1_846), "1,846 tokens");
    }
}
