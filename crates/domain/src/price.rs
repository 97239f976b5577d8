//! Token prices. They are written per million tokens with at most three decimals. The price of one token is therefore a
//! whole number of nano-units, and every cost is exact.

use crate::{MoneyError, Nanos};
use std::fmt;
use std::str::FromStr;

/// Price of one token in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenPrice {
    nanos_per_token: i64,
}

/// Highest accepted price: a million currency units per million tokens. Anything above is a typo.
const MAX_NANOS_PER_TOKEN: i64 = 1_000_000_000;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PriceError {
    #[error(
        "{0:?} is not a price; write it as a decimal string with at most three decimals, for example \"0.10\""
    )]
    NotAPrice(String),
    #[error("the price {0:?} is above 1000000 per million tokens")]
    TooHigh(String),
    #[error(
        "output must cost more than input, but output is {output} and input is {input} per million tokens"
    )]
    OutputNotAboveInput { input: TokenPrice, output: TokenPrice },
}

impl TokenPrice {
    pub fn from_nanos_per_token(nanos_per_token: i64) -> Self {
        Self { nanos_per_token }
    }

    pub fn nanos_per_token(self) -> i64 {
        self.nanos_per_token
    }

    pub fn cost(self, tokens: u32) -> Result<Nanos, MoneyError> {
        Nanos(self.nanos_per_token).checked_mul(u64::from(tokens))
    }
}

impl FromStr for TokenPrice {
    type Err = PriceError;

    fn from_str(text: &str) -> Result<Self, PriceError> {
        let bad = || PriceError::NotAPrice(text.to_owned());
        let (units, decimals) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if !digits(units) || !digits(decimals) || decimals.len() > 3 {
            return Err(bad());
        }
        // One unit per million tokens is 1,000 nano-units per token, so the three decimals become whole nano-units.
        let thousandths: i64 =
            format!("{units}{decimals:0<3}").parse().map_err(|_| PriceError::TooHigh(text.to_owned()))?;
        if thousandths > MAX_NANOS_PER_TOKEN {
            return Err(PriceError::TooHigh(text.to_owned()));
        }
        Ok(Self { nanos_per_token: thousandths })
    }
}

/// Formats the price per million tokens, as in the configuration.
impl fmt::Display for TokenPrice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = format!("{:03}", self.nanos_per_token % 1000);
        let third = decimals.strip_suffix('0').unwrap_or(&decimals);
        write!(f, "{}.{third}", self.nanos_per_token / 1000)
    }
}

/// A model's prices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prices {
    pub input: TokenPrice,
    pub output: TokenPrice,
}

impl Prices {
    /// Rejects prices where output does not cost more than input.
    pub fn new(input: TokenPrice, output: TokenPrice) -> Result<Self, PriceError> {
        if output > input {
            Ok(Self { input, output })
        } else {
            Err(PriceError::OutputNotAboveInput { input, output })
        }
    }

    /// The single formula that every bill, limit and recomputation uses.
    pub fn cost(&self, input_tokens: u32, output_tokens: u32) -> Result<Nanos, MoneyError> {
        self.input.cost(input_tokens)?.checked_add(self.output.cost(output_tokens)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_price_is_a_decimal_with_at_most_three_decimals() {
        assert_eq!("0.10".parse::<TokenPrice>().unwrap().nanos_per_token(), 100);
        assert_eq!("0.001".parse::<TokenPrice>().unwrap().nanos_per_token(), 1);
        assert_eq!("3".parse::<TokenPrice>().unwrap().nanos_per_token(), 3000);
        for text in
            ["", ".", "1.", ".5", "0.0001", "-1", "+1", "1e3", "1,5", "0x1", " 1", "99999999999999999999"]
        {
            assert!(text.parse::<TokenPrice>().is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn output_must_cost_more_than_input() {
        let price = |text: &str| text.parse::<TokenPrice>().unwrap();
        assert!(Prices::new(price("0.10"), price("0.101")).is_ok());
        assert!(Prices::new(price("0.10"), price("0.10")).is_err());
        assert!(Prices::new(price("0.10"), price("0.09")).is_err());
    }

    proptest! {
        #[test]
        fn a_cost_is_exact_and_additive(input in 0_i64..1_000_000, more in 1_i64..1_000_000, a: u16, b: u16, c: u16) {
            let prices = Prices::new(TokenPrice::from_nanos_per_token(input), TokenPrice::from_nanos_per_token(input + more)).unwrap();
            let (a, b, c) = (u32::from(a), u32::from(b), u32::from(c));
            let whole = prices.cost(a + b, c).unwrap();
            let parts = prices.cost(a, c).unwrap().checked_add(prices.cost(b, 0).unwrap()).unwrap();
            prop_assert_eq!(whole, parts);
        }

        /// There is no rounding: tokens times the price per million always divides evenly by a million.
        #[test]
        fn cost_needs_no_rounding(thousandths in 1_i128..=1_000_000_000, input: u32, output: u32) {
            let written = format!("{}.{:03}", thousandths / 1000, thousandths % 1000);
            let (free, price) = (TokenPrice::from_nanos_per_token(0), written.parse().unwrap());
            let prices = Prices::new(free, price).unwrap();
            let nanos_per_million = thousandths * 1_000_000;
            let times_a_million = i128::from(output) * nanos_per_million;
            prop_assert_eq!(times_a_million % 1_000_000, 0);
            let cost = prices.cost(input, output).map(|cost| i128::from(cost.0));
            prop_assert_eq!(cost, Ok(times_a_million / 1_000_000));
        }

        #[test]
        fn price_round_trips(nanos in 0_i64..=MAX_NANOS_PER_TOKEN) {
            let price = TokenPrice::from_nanos_per_token(nanos);
            prop_assert_eq!(price.to_string().parse(), Ok(price));
        }
    }
}
