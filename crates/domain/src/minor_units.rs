//! Money as printed on a document: whole minor units of a currency, mostly hundredths. Nano-units become minor units only here,
//! always rounded half to even.

use crate::{Currency, MoneyError, Nanos, group_thousands};
use std::cmp::Ordering;

/// The smallest payable units: cents, if the currency has cents.
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

/// ISO 4217 currencies whose minor unit is not a hundredth: none, thousandths, four decimals. `iso_currency` 0.7 has the same
/// data, but would add a build script and a country list for these 26 codes, and reject codes newer than itself.
const ZERO_DECIMAL_CURRENCIES: [&str; 17] = [
    "BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "UYI", "VND", "VUV", "XAF",
    "XOF", "XPF",
];
const THREE_DECIMAL_CURRENCIES: [&str; 7] = ["BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"];
const FOUR_DECIMAL_CURRENCIES: [&str; 2] = ["CLF", "UYW"];

const NANO_DIGITS: u32 = 9;

impl Currency {
    /// Number of decimals of an amount on a document.
    pub fn minor_digits(&self) -> u32 {
        match self.as_str() {
            code if ZERO_DECIMAL_CURRENCIES.contains(&code) => 0,
            code if THREE_DECIMAL_CURRENCIES.contains(&code) => 3,
            code if FOUR_DECIMAL_CURRENCIES.contains(&code) => 4,
            _ => 2,
        }
    }

    fn nanos_per_minor_unit(&self) -> i64 {
        10_i64.pow(NANO_DIGITS - self.minor_digits())
    }

    /// Rounds to the nearest minor unit, half to even. The result always fits, because a minor unit is many nano-units.
    pub fn round(&self, exact: Nanos) -> MinorUnits {
        let per_unit = self.nanos_per_minor_unit();
        let (whole, rest) = (exact.0.div_euclid(per_unit), exact.0.rem_euclid(per_unit));
        MinorUnits(whole + i64::from(rounds_up(whole % 2 != 0, rest.into(), per_unit.into())))
    }

    /// The same amount in nano-units.
    pub fn to_nanos(&self, amount: MinorUnits) -> Result<Nanos, MoneyError> {
        amount.0.checked_mul(self.nanos_per_minor_unit()).map(Nanos).ok_or(MoneyError::Overflow)
    }

    /// For tables and files, without the currency: `-1207.70`.
    pub fn to_decimal_string(&self, amount: MinorUnits) -> String {
        self.format_with(amount, |units| units.to_string())
    }

    /// For display where the currency is shown elsewhere: `-1,207.70`.
    pub fn figures(&self, amount: MinorUnits) -> String {
        self.format_with(amount, group_thousands)
    }

    /// For display: `$1,207.70`, `CHF 1,207.70`. A minus sign comes first: `-$12.00`.
    pub fn format_amount(&self, amount: MinorUnits) -> String {
        self.with_symbol(&self.figures(amount))
    }

    /// Parses a plain decimal that is not negative and has no more decimals than the currency. `None` for anything
    /// else.
    pub fn parse_amount(&self, text: &str) -> Option<MinorUnits> {
        let exact: Nanos = text.parse().ok()?;
        let amount = self.round(exact);
        (self.to_nanos(amount) == Ok(exact)).then_some(amount)
    }

    /// An amount for hints and errors: `50.00`.
    pub fn example_amount(&self) -> String {
        self.to_decimal_string(MinorUnits(10_i64.pow(self.minor_digits()) * 50))
    }

    fn format_with(&self, amount: MinorUnits, write_units: impl Fn(u64) -> String) -> String {
        let digits = self.minor_digits();
        let per_unit = 10_u64.pow(digits);
        let magnitude = amount.0.unsigned_abs();
        let sign = if amount.0 < 0 { "-" } else { "" };
        let units = write_units(magnitude / per_unit);
        match digits {
            0 => format!("{sign}{units}"),
            _ => format!("{sign}{units}.{:0width$}", magnitude % per_unit, width = digits as usize),
        }
    }
}

/// Divides, rounding half to even. The divisor must be positive.
pub(crate) fn div_half_even(dividend: i128, divisor: i128) -> Result<i64, MoneyError> {
    let (whole, rest) = (dividend.div_euclid(divisor), dividend.rem_euclid(divisor));
    let rounded = whole.checked_add(rounds_up(whole % 2 != 0, rest, divisor).into());
    rounded.and_then(|rounded| i64::try_from(rounded).ok()).ok_or(MoneyError::Overflow)
}

/// Whether a quotient with this remainder is rounded up.
fn rounds_up(is_odd: bool, rest: i128, divisor: i128) -> bool {
    match rest.cmp(&(divisor - rest)) {
        Ordering::Less => false,
        Ordering::Equal => is_odd,
        Ordering::Greater => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn currency(code: &str) -> Currency {
        code.parse().unwrap()
    }

    #[test]
    fn rounding_is_half_to_even() {
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
    fn division_overflow_is_an_error() {
        assert_eq!(div_half_even(i128::from(i64::MAX) + 1, 1), Err(MoneyError::Overflow));
        assert_eq!(div_half_even(i128::MAX, 1), Err(MoneyError::Overflow));
        assert_eq!(div_half_even(i128::from(i64::MIN), 1), Ok(i64::MIN));
        assert_eq!(currency("CLF").round(Nanos(i64::MAX)), MinorUnits(92_233_720_368_548));
        assert_eq!(currency("CLF").round(Nanos(i64::MIN)), MinorUnits(-92_233_720_368_548));
    }

    #[test]
    fn amounts_format_by_currency_decimals() {
        let cases = [
            ("USD", 120_770, "1207.70", "$1,207.70"),
            ("USD", -5, "-0.05", "-$0.05"),
            ("USD", 100, "1.00", "$1.00"),
            ("EUR", 123_456_789, "1234567.89", "€1,234,567.89"),
            ("CHF", 100_000, "1000.00", "CHF\u{a0}1,000.00"),
            ("JPY", 1234, "1234", "JPY\u{a0}1,234"),
            ("KWD", 1, "0.001", "KWD\u{a0}0.001"),
            ("CLF", 12_345, "1.2345", "CLF\u{a0}1.2345"),
            ("UYW", 1, "0.0001", "UYW\u{a0}0.0001"),
            ("UYI", 1234, "1234", "UYI\u{a0}1,234"),
        ];
        for (code, minor, to_decimal_string, read) in cases {
            let currency = currency(code);
            assert_eq!(currency.to_decimal_string(MinorUnits(minor)), to_decimal_string);
            assert_eq!(currency.figures(MinorUnits(minor)).replace(',', ""), to_decimal_string);
            assert_eq!(currency.format_amount(MinorUnits(minor)), read);
        }
    }

    #[test]
    fn typed_amounts_have_at_most_the_decimals_of_the_currency() {
        for (code, text, amount) in [
            ("USD", "1207.7", Some(120_770)),
            ("USD", "0", Some(0)),
            ("USD", "0.001", None),
            ("USD", "-1", None),
            ("USD", "1,000", None),
            ("JPY", "1234", Some(1234)),
            ("JPY", "1.5", None),
            ("KWD", "0.001", Some(1)),
        ] {
            assert_eq!(currency(code).parse_amount(text), amount.map(MinorUnits), "{code} {text}");
        }
        assert_eq!(Currency::USD.example_amount(), "50.00");
    }

    proptest! {
        #[test]
        fn rounding_never_moves_an_amount_by_more_than_half_a_minor_unit(nanos: i64, code in prop::sample::select(vec!["USD", "JPY", "KWD", "CLF"])) {
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
