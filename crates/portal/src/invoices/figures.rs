//! Amounts as tables have them: grouped, and exact ones lined up on their points.

use chancery_domain::Currency;

/// How a line is rounded, in words: `to the cent, halves to the even cent`.
pub(super) fn rounding(currency: &Currency) -> String {
    let unit = match (currency.as_str(), currency.minor_digits()) {
        ("USD" | "EUR" | "AUD" | "CAD" | "NZD", _) => "cent",
        ("GBP", _) => "penny",
        (code, 0) => return format!("to whole {code}, halves to the even one"),
        (code, digits) => {
            let zeros = "0".repeat(digits.saturating_sub(1) as usize);
            return format!("to 0.{zeros}1 {code}, halves to the even one");
        }
    };
    format!("to the {unit}, halves to the even {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_said_in_the_currencys_own_unit() {
        let words = |code: &str| rounding(&code.parse().unwrap());
        assert_eq!(words("USD"), "to the cent, halves to the even cent");
        assert_eq!(words("CHF"), "to 0.01 CHF, halves to the even one");
        assert_eq!(words("KWD"), "to 0.001 KWD, halves to the even one");
        assert_eq!(words("JPY"), "to whole JPY, halves to the even one");
    }
}
