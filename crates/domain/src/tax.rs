//! The tax rate on invoices, a percentage with at most four decimals.

use crate::minor_units::div_half_even;
use crate::{MinorUnits, MoneyError};
use std::fmt;
use std::str::FromStr;

/// In parts per million: one percent is 10,000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaxRate(u32);

const MAX_PPM: u32 = 1_000_000;
const PPM_PER_PERCENT: u32 = 10_000;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a tax rate; write the percentage as a decimal from 0 to 100 with at most four decimals, for example \"6.25\""
)]
pub struct TaxRateError(String);

impl TaxRate {
    pub fn from_ppm(ppm: u32) -> Self {
        Self(ppm)
    }

    pub fn ppm(self) -> u32 {
        self.0
    }

    /// The tax on a net amount, rounded half to even to the minor unit.
    pub fn of(self, net: MinorUnits) -> Result<MinorUnits, MoneyError> {
        div_half_even(i128::from(net.0) * i128::from(self.0), i128::from(MAX_PPM)).map(MinorUnits)
    }
}

impl FromStr for TaxRate {
    type Err = TaxRateError;

    fn from_str(text: &str) -> Result<Self, TaxRateError> {
        let bad = || TaxRateError(text.to_owned());
        let (units, decimals) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if !digits(units) || !digits(decimals) || decimals.len() > 4 {
            return Err(bad());
        }
        let ppm: u32 = format!("{units}{decimals:0<4}").parse().map_err(|_| bad())?;
        if ppm > MAX_PPM { Err(bad()) } else { Ok(Self(ppm)) }
    }
}

/// The percentage, without trailing zeros: `6.25`, `19`.
impl fmt::Display for TaxRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = format!("{:04}", self.0 % PPM_PER_PERCENT);
        let percent = self.0 / PPM_PER_PERCENT;
        match decimals.trim_end_matches('0') {
            "" => write!(f, "{percent}"),
            decimals => write!(f, "{percent}.{decimals}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_percentage_from_0_to_100() {
        for (text, ppm) in [("0", 0), ("6.25", 62_500), ("19", 190_000), ("100", MAX_PPM), ("0.0001", 1)] {
            let rate: TaxRate = text.parse().unwrap();
            assert_eq!((rate.ppm(), rate.to_string().as_str()), (ppm, text));
        }
        for text in ["", "-1", "6,25", "100.0001", "6.", ".5", "1e1", "0.00001", "6 %", "99999999999"] {
            assert!(text.parse::<TaxRate>().is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn a_tax_is_rounded_like_every_amount() {
        let rate: TaxRate = "6.25".parse().unwrap();
        assert_eq!(rate.of(MinorUnits(19_548)), Ok(MinorUnits(1222)));
        let half: TaxRate = "50".parse().unwrap();
        assert_eq!([1, 3, -1, -3].map(|net| half.of(MinorUnits(net)).unwrap().0), [0, 2, 0, -2]);
    }
}
