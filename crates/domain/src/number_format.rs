//! Formats numbers and exact amounts for people.

use crate::{Currency, Nanos};

/// Groups thousands with commas: `182,640,275`.
pub fn group_thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

impl Nanos {
    /// All decimals, thousands grouped with commas: `8,999.991`.
    pub fn figures(self) -> String {
        let plain = self.to_string();
        let (sign, plain) = plain.strip_prefix('-').map_or(("", plain.as_str()), |rest| ("-", rest));
        match plain.split_once('.') {
            Some((units, decimals)) => {
                let units = units.parse().map_or_else(|_| units.to_owned(), group_thousands);
                format!("{sign}{units}.{decimals}")
            }
            None => format!("{sign}{plain}"),
        }
    }
}

impl Currency {
    /// The symbol written before amounts, for the currencies listed here.
    pub fn symbol(&self) -> Option<&'static str> {
        match self.as_str() {
            "USD" => Some("$"),
            "EUR" => Some("€"),
            "GBP" => Some("£"),
            _ => None,
        }
    }

    /// All decimals, with the currency: `$1,284.50`, `CHF 0.00024`.
    pub fn format_exact(&self, amount: Nanos) -> String {
        self.with_symbol(&amount.figures())
    }

    /// Puts the currency before the figures. A minus sign comes first: `-$12.00`.
    pub(crate) fn with_symbol(&self, figures: &str) -> String {
        let (sign, figures) = figures.strip_prefix('-').map_or(("", figures), |rest| ("-", rest));
        match self.symbol() {
            Some(symbol) => format!("{sign}{symbol}{figures}"),
            None => format!("{sign}{}\u{a0}{figures}", self.as_str()),
        }
    }
}

/// An exact amount in a column, and the invisible zeros that align it with the other amounts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AlignedAmount {
    pub text: String,
    pub pad: String,
}

/// Pads the amounts of one column to the same number of decimals.
pub fn align_amounts(amounts: impl IntoIterator<Item = Nanos>) -> Vec<AlignedAmount> {
    let texts: Vec<String> = amounts.into_iter().map(Nanos::figures).collect();
    let decimals = |text: &str| text.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let max = texts.iter().map(|text| decimals(text)).max().unwrap_or(0);
    let padded = |text: String| AlignedAmount { pad: "0".repeat(max - decimals(&text)), text };
    texts.into_iter().map(padded).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_have_commas() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (12_345_678, "12,345,678"),
            (u64::MAX, "18,446,744,073,709,551,615"),
        ] {
            assert_eq!(group_thousands(number), text);
        }
    }

    #[test]
    fn exact_amounts_keep_decimals_and_group_thousands() {
        for (nanos, text) in [
            (0, "0.00"),
            (-128_431_000, "-0.128431"),
            (8_999_991_000_000, "8,999.991"),
            (-1_234_567_000_000_001, "-1,234,567.000000001"),
            (i64::MIN, "-9,223,372,036.854775808"),
            (i64::MAX, "9,223,372,036.854775807"),
        ] {
            assert_eq!(Nanos(nanos).figures(), text);
        }
        let francs: Currency = "CHF".parse().unwrap();
        assert_eq!(Currency::USD.format_exact(Nanos(-1_284_500_000_000)), "-$1,284.50");
        assert_eq!(francs.format_exact(Nanos(240_000)), "CHF\u{a0}0.00024");
    }

    #[test]
    fn amounts_align_on_decimal_point() {
        let column =
            align_amounts([118_812_134_700, 166_912_600, 0, 1_284_500_000_000].into_iter().map(Nanos));
        let written: Vec<_> = column.iter().map(|cell| (cell.text.as_str(), cell.pad.as_str())).collect();
        assert_eq!(
            written,
            [("118.8121347", ""), ("0.1669126", ""), ("0.00", "00000"), ("1,284.50", "00000")]
        );
        assert_eq!(align_amounts([]), []);
    }
}
