//! Money as it is written on a document: whole minor units of a currency, which for most are hundredths. Nano-units become minor
//! units in one place, and always by the same rule: to the nearest, and halves to the even one.

use crate::{Currency, MoneyError, Nanos};

/// The smallest amounts that can be paid: cents, where the currency has cents.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(transparent)]
pub struct MinorUnits(pub i64);

impl MinorUnits {
    pub fn checked_add(self, other: Self) -> Result<Self, MoneyError> {
        self.0.checked_add(other.0).map(Self).ok_or(MoneyError::Overflow)
    }

    pub fn checked_sub(self, other: Self) -> Result<Self, MoneyError> {
        self.0.checked_sub(other.0).map(Self).ok_or(MoneyError::Overflow)
    }

    pub fn checked_neg(self) -> Result<Self, MoneyError> {
        self.0.checked_neg().map(Self).ok_or(MoneyError::Overflow)
    }

    /// Exact, or an error.
    pub fn sum(amounts: impl IntoIterator<Item = Self>) -> Result<Self, MoneyError> {
        amounts.into_iter().try_fold(Self::default(), Self::checked_add)
    }
}

/// ISO 4217's currencies whose minor unit is not a hundredth: those without any, and those with thousandths.
const WITHOUT_MINOR_UNIT: [&str; 16] = [
    "BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "VND", "VUV", "XAF", "XOF",
    "XPF",
];
const WITH_THOUSANDTHS: [&str; 7] = ["BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"];

const NANO_DIGITS: u32 = 9;

impl Currency {
    /// How many decimals an amount on a document has.
    pub fn minor_digits(&self) -> u32 {
        match self.as_str() {
            code if WITHOUT_MINOR_UNIT.contains(&code) => 0,
            code if WITH_THOUSANDTHS.contains(&code) => 3,
            _ => 2,
        }
    }

    fn nanos_per_minor_unit(&self) -> i64 {
        10_i64.pow(NANO_DIGITS - self.minor_digits())
    }

    /// To the nearest minor unit, halves to the even one.
    pub fn round(&self, exact: Nanos) -> MinorUnits {
        MinorUnits(divided_half_even(i128::from(exact.0), self.nanos_per_minor_unit().into()))
    }

    /// The same amount in nano-units.
    pub fn exactly(&self, amount: MinorUnits) -> Result<Nanos, MoneyError> {
        amount.0.checked_mul(self.nanos_per_minor_unit()).map(Nanos).ok_or(MoneyError::Overflow)
    }

    /// As tables and files have it, without the currency: `-1207.70`.
    pub fn decimal(&self, amount: MinorUnits) -> String {
        self.with_groups(amount, "")
    }

    /// As people read it where the currency is said elsewhere: `-1,207.70`.
    pub fn figures(&self, amount: MinorUnits) -> String {
        self.with_groups(amount, ",")
    }

    /// As people read it: `$1,207.70`, `CHF 1,207.70`. A negative amount has its sign in front: `-$12.00`.
    pub fn to_read(&self, amount: MinorUnits) -> String {
        let sign = if amount.0 < 0 { "-" } else { "" };
        let figures = self.with_groups(amount, ",");
        let figures = figures.trim_start_matches('-');
        match self.as_str() {
            "USD" => format!("{sign}${figures}"),
            "EUR" => format!("{sign}€{figures}"),
            "GBP" => format!("{sign}£{figures}"),
            code => format!("{sign}{code}\u{a0}{figures}"),
        }
    }

    fn with_groups(&self, amount: MinorUnits, separator: &str) -> String {
        let digits = self.minor_digits();
        let per_unit = 10_u64.pow(digits);
        let magnitude = amount.0.unsigned_abs();
        let sign = if amount.0 < 0 { "-" } else { "" };
        let units = grouped(magnitude / per_unit, separator);
        match digits {
            0 => format!("{sign}{units}"),
            _ => format!("{sign}{units}.{:0width$}", magnitude % per_unit, width = digits as usize),
        }
    }
}

/// With a separator between thousands.
fn grouped(number: u64, separator: &str) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push_str(separator);
        }
        text.push(digit);
    }
    text
}

/// The nearest whole number, and of two that are equally near the even one. The divisor is positive.
pub(crate) fn divided_half_even(dividend: i128, divisor: i128) -> i64 {
    let (whole, rest) = (dividend.div_euclid(divisor), dividend.rem_euclid(divisor));
    let is_up = match (rest * 2).cmp(&divisor) {
        std::cmp::Ordering::Less => false,
        std::cmp::Ordering::Equal => whole % 2 != 0,
        std::cmp::Ordering::Greater => true,
    };
    let rounded = whole + i128::from(is_up);
    // A quotient by at least one of what fits in 64 bits, or a share of it, fits too.
    i64::try_from(rounded).unwrap_or(if rounded < 0 { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn currency(code: &str) -> Currency {
        code.parse().unwrap()
    }

    #[test]
    fn halves_go_to_the_even_cent() {
        for (nanos, cents) in [
            (128_431_000, 13),
            (5_000_000, 0),
            (15_000_000, 2),
            (25_000_000, 2),
            (25_000_001, 3),
            (-5_000_000, 0),
            (-15_000_000, -2),
            (-25_000_000, -2),
            (54_792_082_500, 5479),
        ] {
            assert_eq!(Currency::USD.round(Nanos(nanos)), MinorUnits(cents), "{nanos}");
        }
        assert_eq!(currency("JPY").round(Nanos(2_500_000_000)), MinorUnits(2));
        assert_eq!(currency("KWD").round(Nanos(1_500_000)), MinorUnits(2));
    }

    #[test]
    fn amounts_are_written_as_their_currency_is() {
        let cases = [
            ("USD", 120_770, "1207.70", "$1,207.70"),
            ("USD", -5, "-0.05", "-$0.05"),
            ("USD", 100, "1.00", "$1.00"),
            ("EUR", 123_456_789, "1234567.89", "€1,234,567.89"),
            ("CHF", 100_000, "1000.00", "CHF\u{a0}1,000.00"),
            ("JPY", 1234, "1234", "JPY\u{a0}1,234"),
            ("KWD", 1, "0.001", "KWD\u{a0}0.001"),
        ];
        for (code, minor, decimal, read) in cases {
            let currency = currency(code);
            assert_eq!(currency.decimal(MinorUnits(minor)), decimal);
            assert_eq!(currency.figures(MinorUnits(minor)).replace(',', ""), decimal);
            assert_eq!(currency.to_read(MinorUnits(minor)), read);
        }
    }

    proptest! {
        #[test]
        fn rounding_never_moves_an_amount_by_more_than_half_a_minor_unit(nanos: i64, code in prop::sample::select(vec!["USD", "JPY", "KWD"])) {
            let currency = currency(code);
            let per_unit = i128::from(currency.nanos_per_minor_unit());
            let off = i128::from(nanos) - i128::from(currency.round(Nanos(nanos)).0) * per_unit;
            prop_assert!(off.abs() * 2 <= per_unit);
            if off.abs() * 2 == per_unit {
                prop_assert_eq!(currency.round(Nanos(nanos)).0 % 2, 0);
            }
        }
    }
}
