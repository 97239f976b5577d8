//! Money as whole nano-units of the currency. Arithmetic is checked: it returns the exact result or an error, never a
//! rounded, wrapped or default value.

use std::fmt;
use std::str::FromStr;

const NANOS_PER_UNIT: i64 = 1_000_000_000;

/// Billionths of the currency's unit.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(transparent)]
pub struct Nanos(pub i64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoneyError {
    #[error("the amount is too large to be exact")]
    Overflow,
}

impl Nanos {
    pub fn checked_add(self, other: Self) -> Result<Self, MoneyError> {
        self.0.checked_add(other.0).map(Self).ok_or(MoneyError::Overflow)
    }

    pub fn checked_mul(self, count: u64) -> Result<Self, MoneyError> {
        let count = i64::try_from(count).map_err(|_| MoneyError::Overflow)?;
        self.0.checked_mul(count).map(Self).ok_or(MoneyError::Overflow)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not an amount of money; write it as a decimal with at most nine decimals, for example 250 or 12.50"
)]
pub struct AmountError(String);

/// Parses a plain decimal: not negative, without sign, exponent or grouping.
impl FromStr for Nanos {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Self, AmountError> {
        let bad = || AmountError(text.to_owned());
        let (units, decimals) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if !digits(units) || !digits(decimals) || decimals.len() > 9 {
            return Err(bad());
        }
        format!("{units}{decimals:0<9}").parse().map(Self).map_err(|_| bad())
    }
}

/// The exact amount, without trailing zeros but with at least two decimals: `0.0000412`, `12.50`.
impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (units, nanos) = (self.0 / NANOS_PER_UNIT, (self.0 % NANOS_PER_UNIT).unsigned_abs());
        let sign = if self.0 < 0 && units == 0 { "-" } else { "" };
        let decimals = format!("{nanos:09}");
        let significant = decimals.trim_end_matches('0');
        write!(f, "{sign}{units}.{significant:0<2}")
    }
}

/// An ISO 4217 code such as `USD`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Currency([u8; 3]);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a currency; write its three-letter code, for example \"USD\"")]
pub struct CurrencyError(String);

impl Currency {
    pub const USD: Self = Self(*b"USD");

    pub fn as_str(&self) -> &str {
        // Only ASCII capitals are accepted, so this never falls back.
        std::str::from_utf8(&self.0).unwrap_or("???")
    }
}

impl FromStr for Currency {
    type Err = CurrencyError;

    fn from_str(text: &str) -> Result<Self, CurrencyError> {
        match <[u8; 3]>::try_from(text.as_bytes()) {
            Ok(code) if code.iter().all(u8::is_ascii_uppercase) => Ok(Self(code)),
            _ => Err(CurrencyError(text.to_owned())),
        }
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn amounts_are_written_exactly() {
        for (nanos, text) in [
            (0, "0.00"),
            (1, "0.000000001"),
            (-1, "-0.000000001"),
            (12_500_000_000, "12.50"),
            (-12_500_000_000, "-12.50"),
            (41_200, "0.0000412"),
            (i64::MIN, "-9223372036.854775808"),
        ] {
            assert_eq!(Nanos(nanos).to_string(), text);
        }
    }

    #[test]
    fn an_amount_is_a_plain_decimal() {
        for (text, nanos) in
            [("0", 0), ("250", 250_000_000_000), ("12.5", 12_500_000_000), ("0.000000001", 1)]
        {
            assert_eq!(text.parse(), Ok(Nanos(nanos)));
        }
        for text in
            ["", ".", "1.", ".5", "-1", "+1", "1e3", "1,000", " 1", "0.0000000001", "9223372036.854775808"]
        {
            assert!(text.parse::<Nanos>().is_err(), "{text:?} was taken");
        }
    }

    proptest! {
        #[test]
        fn amount_round_trips(nanos in 0..=i64::MAX) {
            prop_assert_eq!(Nanos(nanos).to_string().parse(), Ok(Nanos(nanos)));
        }

        #[test]
        fn money_is_the_exact_sum_or_an_error(a: i64, b: i64, count: u64) {
            let exact = i128::from(a) + i128::from(b);
            prop_assert_eq!(Nanos(a).checked_add(Nanos(b)).ok().map(|n| i128::from(n.0)), i64::try_from(exact).ok().map(i128::from));
            let exact = i128::from(a).checked_mul(i128::from(count)).and_then(|n| i64::try_from(n).ok());
            if let Ok(product) = Nanos(a).checked_mul(count) {
                prop_assert_eq!(Some(product.0), exact);
            }
        }
    }
}
