//! Amounts as tables have them: grouped, and exact ones lined up on their points.

use chancery_domain::{Currency, Nanos};

/// An exact amount, and the zeros that line it up with its neighbours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Exact {
    pub(super) text: String,
    pub(super) pad: String,
}

/// `1,284.0384816`
pub(super) fn exact(amount: Nanos) -> String {
    let text = amount.to_string();
    let (units, decimals) = text.split_once('.').unwrap_or((&text, "00"));
    let (sign, digits) = units.strip_prefix('-').map_or(("", units), |digits| ("-", digits));
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("{sign}{grouped}.{decimals}")
}

pub(super) fn lined_up(amounts: impl Iterator<Item = Nanos>) -> Vec<Exact> {
    let texts: Vec<String> = amounts.map(exact).collect();
    let decimals = |text: &str| text.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let most = texts.iter().map(|text| decimals(text)).max().unwrap_or(0);
    let padded = |text: String| Exact { pad: "0".repeat(most - decimals(&text)), text };
    texts.into_iter().map(padded).collect()
}

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
    fn exact_amounts_are_grouped_and_keep_every_decimal() {
        for (nanos, text) in [
            (0, "0.00"),
            (128_431_000, "0.128431"),
            (-38_481_600, "-0.0384816"),
            (1_234_567_000_000_001, "1,234,567.000000001"),
            (-1_000_000_000_000, "-1,000.00"),
        ] {
            assert_eq!(exact(Nanos(nanos)), text);
        }
    }

    #[test]
    fn exact_amounts_line_up_on_their_points() {
        let lined_up = lined_up([128_431_000, 38_481_600, 5_000_000_000].into_iter().map(Nanos));
        let lengths: Vec<_> = lined_up.iter().map(|exact| exact.text.len() + exact.pad.len()).collect();
        assert_eq!(lined_up[0], Exact { text: "0.128431".to_owned(), pad: "0".to_owned() });
        assert_eq!(lengths, [9, 9, 9]);
    }

    #[test]
    fn rounding_is_said_in_the_currencys_own_unit() {
        let words = |code: &str| rounding(&code.parse().unwrap());
        assert_eq!(words("USD"), "to the cent, halves to the even cent");
        assert_eq!(words("CHF"), "to 0.01 CHF, halves to the even one");
        assert_eq!(words("KWD"), "to 0.001 KWD, halves to the even one");
        assert_eq!(words("JPY"), "to whole JPY, halves to the even one");
    }
}
