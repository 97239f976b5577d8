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
    #[error(
        "cached input is {cached_input} and input is {input} per million tokens; lower it to at most the input price, or \
         remove it to bill cached tokens as input"
    )]
    CachedAboveInput { input: TokenPrice, cached_input: TokenPrice },
}

/// More cached tokens than input tokens, of which they are a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cached_input} of {input} input tokens are cached")]
pub struct CachedTokensError {
    input: u32,
    cached_input: u32,
}

/// The billed tokens of one request. Cached tokens are a part of the input, so they are never more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BilledTokens {
    input: u32,
    cached_input: u32,
    output: u32,
}

impl BilledTokens {
    pub fn new(input: u32, cached_input: u32, output: u32) -> Result<Self, CachedTokensError> {
        if cached_input <= input {
            Ok(Self { input, cached_input, output })
        } else {
            Err(CachedTokensError { input, cached_input })
        }
    }

    pub fn without_cached(input: u32, output: u32) -> Self {
        Self { input, cached_input: 0, output }
    }

    /// The same input with no output.
    pub fn without_output(self) -> Self {
        Self { output: 0, ..self }
    }

    pub fn input(self) -> u32 {
        self.input
    }

    pub fn uncached_input(self) -> u32 {
        // The constructors rule out an underflow.
        self.input - self.cached_input
    }

    pub fn cached_input(self) -> u32 {
        self.cached_input
    }

    pub fn output(self) -> u32 {
        self.output
    }
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
    /// Of input tokens that did not have to be computed again. Without a discount, the input price.
    pub cached_input: TokenPrice,
    pub output: TokenPrice,
}

impl Prices {
    /// Prices without a discount for cached tokens. Rejects prices where output does not cost more than input.
    pub fn new(input: TokenPrice, output: TokenPrice) -> Result<Self, PriceError> {
        if output > input {
            Ok(Self { input, cached_input: input, output })
        } else {
            Err(PriceError::OutputNotAboveInput { input, output })
        }
    }

    /// The same prices with this one for cached tokens. Rejects one above the input price.
    pub fn with_cached_input(self, cached_input: TokenPrice) -> Result<Self, PriceError> {
        if cached_input <= self.input {
            Ok(Self { cached_input, ..self })
        } else {
            Err(PriceError::CachedAboveInput { input: self.input, cached_input })
        }
    }

    /// The price of cached tokens, if it is a discount.
    pub fn cached_discount(&self) -> Option<TokenPrice> {
        (self.cached_input != self.input).then_some(self.cached_input)
    }

    /// The single formula that every bill, limit and recomputation uses.
    pub fn cost(&self, tokens: BilledTokens) -> Result<Nanos, MoneyError> {
        self.input
            .cost(tokens.uncached_input())?
            .checked_add(self.cached_input.cost(tokens.cached_input())?)?
            .checked_add(self.output.cost(tokens.output())?)
    }

    /// The most that so many tokens cost: nothing of the input is cached.
    pub fn max_cost(&self, input_tokens: u32, output_tokens: u32) -> Result<Nanos, MoneyError> {
        self.cost(BilledTokens::without_cached(input_tokens, output_tokens))
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

    #[test]
    fn cached_input_costs_at_most_as_much_as_input() {
        let price = |text: &str| text.parse::<TokenPrice>().unwrap();
        let prices = Prices::new(price("0.10"), price("0.40")).unwrap();
        assert_eq!((prices.cached_input, prices.cached_discount()), (price("0.10"), None));
        assert_eq!(prices.with_cached_input(price("0.10")).unwrap().cached_discount(), None);
        for text in ["0.099", "0.01", "0"] {
            let discounted = prices.with_cached_input(price(text)).unwrap();
            assert_eq!(discounted.cached_discount(), Some(price(text)));
        }
        let error = prices.with_cached_input(price("0.101")).unwrap_err();
        assert!(error.to_string().contains("lower it to at most the input price"), "{error}");
    }

    #[test]
    fn cached_tokens_are_part_of_the_input() {
        let tokens = BilledTokens::new(10, 4, 3).unwrap();
        assert_eq!((tokens.uncached_input(), tokens.cached_input(), tokens.output()), (6, 4, 3));
        assert!(BilledTokens::new(10, 10, 0).is_ok());
        let error = BilledTokens::new(10, 11, 0).unwrap_err();
        assert_eq!(error.to_string(), "11 of 10 input tokens are cached");
        let prices = Prices::new("0.10".parse().unwrap(), "0.40".parse().unwrap()).unwrap();
        let prices = prices.with_cached_input("0.025".parse().unwrap()).unwrap();
        assert_eq!(prices.cost(tokens), Ok(Nanos(6 * 100 + 4 * 25 + 3 * 400)));
        assert_eq!(prices.max_cost(10, 3), Ok(Nanos(10 * 100 + 3 * 400)));
    }

    prop_compose! {
        fn any_prices()(input in 0_i64..1_000_000, cached in 0_i64..1_000_000, more in 1_i64..1_000_000) -> Prices {
            let price = TokenPrice::from_nanos_per_token;
            Prices::new(price(input), price(input + more)).unwrap().with_cached_input(price(cached.min(input))).unwrap()
        }
    }

    proptest! {
        #[test]
        fn a_cost_is_exact_and_additive(prices in any_prices(), a: u16, b: u16, cached: u16, c: u16) {
            let (a, b, c) = (u32::from(a), u32::from(b), u32::from(c));
            let cached = u32::from(cached).min(a);
            let cost = |input, cached, output| prices.cost(BilledTokens::new(input, cached, output).unwrap()).unwrap();
            prop_assert_eq!(cost(a + b, cached, c), cost(a, cached, c).checked_add(cost(b, 0, 0)).unwrap());
        }

        /// Each token is billed once, at one of the three prices.
        #[test]
        fn cached_tokens_save_exactly_the_difference_of_the_prices(prices in any_prices(), input: u16, cached: u16, output: u16) {
            let (input, output) = (u32::from(input), u32::from(output));
            let cached = u32::from(cached).min(input);
            let cost = prices.cost(BilledTokens::new(input, cached, output).unwrap()).unwrap();
            let most = prices.max_cost(input, output).unwrap();
            let saved = prices.input.nanos_per_token() - prices.cached_input.nanos_per_token();
            prop_assert_eq!(cost.0, most.0 - i64::from(cached) * saved);
            prop_assert!(cost <= most);
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
            let cost = prices.max_cost(input, output).map(|cost| i128::from(cost.0));
            prop_assert_eq!(cost, Ok(times_a_million / 1_000_000));
        }

        #[test]
        fn price_round_trips(nanos in 0_i64..=MAX_NANOS_PER_TOKEN) {
            let price = TokenPrice::from_nanos_per_token(nanos);
            prop_assert_eq!(price.to_string().parse(), Ok(price));
        }
    }
}
