//! Usage queries and their results: sums of tokens and cost by day, model, key or account.

use crate::DbError;
use crate::LedgerError;
use chancery_domain::{AccountId, AccountName, Day, KeyId, KeyPrefix, Nanos, Prices};

/// Which usage to sum; `None` sets no bound. Days are whole UTC days, both ends included.
#[derive(Clone, Debug)]
pub struct UsageQuery {
    pub account: Option<AccountId>,
    pub from: Option<Day>,
    pub to: Option<Day>,
    pub by: UsageBy,
}

chancery_domain::closed_enum! {
    pub enum UsageBy {
        Day = "day",
        Model = "model",
        Key = "key",
        Account = "account",
    }
    error UsageByError = "must be day, model, key or account";
}

impl UsageBy {
    /// The groupings that make sense for one account.
    pub const FOR_ONE_ACCOUNT: [Self; 3] = [Self::Day, Self::Model, Self::Key];
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UsageGroup {
    Day(Day),
    Model(String),
    Key(KeyPrefix),
    Account(AccountName),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageSum {
    pub group: UsageGroup,
    pub requests: u64,
    pub input_tokens: u64,
    /// The part of the input that is billed at the price of cached input.
    pub cached_input_tokens: u64,
    pub output_tokens: u64,
    pub cost: Nanos,
}

impl UsageSum {
    pub(crate) fn of(group: UsageGroup, totals: UsageTotals) -> Self {
        let UsageTotals { requests, input_tokens, cached_input_tokens, output_tokens, cost } = totals;
        Self { group, requests, input_tokens, cached_input_tokens, output_tokens, cost }
    }
}

/// A row of `daily_usage`: usage of one account, day, key, model and set of prices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DailyUsage {
    pub account: AccountId,
    pub day: Day,
    pub key: KeyId,
    pub model: String,
    pub prices: Prices,
    pub totals: UsageTotals,
}

/// The total of several sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageTotals {
    pub requests: u64,
    pub input_tokens: u64,
    /// The part of the input that is billed at the price of cached input.
    pub cached_input_tokens: u64,
    pub output_tokens: u64,
    pub cost: Nanos,
}

impl UsageTotals {
    /// Fails with `SumTooLarge` on overflow.
    pub fn of(sums: &[UsageSum]) -> Result<Self, LedgerError> {
        let add = |a: u64, b: u64| a.checked_add(b).ok_or(DbError::SumTooLarge);
        sums.iter().try_fold(Self::default(), |totals, sum| {
            Ok(Self {
                requests: add(totals.requests, sum.requests)?,
                input_tokens: add(totals.input_tokens, sum.input_tokens)?,
                cached_input_tokens: add(totals.cached_input_tokens, sum.cached_input_tokens)?,
                output_tokens: add(totals.output_tokens, sum.output_tokens)?,
                cost: totals.cost.checked_add(sum.cost).map_err(|_| DbError::SumTooLarge)?,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_by_round_trips() {
        for by in UsageBy::ALL {
            assert_eq!(by.as_str().parse(), Ok(by));
        }
        for text in ["", "Day", "days", "month", " key"] {
            let error = text.parse::<UsageBy>().unwrap_err();
            assert_eq!(error.to_string(), "must be day, model, key or account", "{text:?}");
        }
    }

    fn sum(day: i32, counts: [u64; 4], cost_nanos: i64) -> UsageSum {
        let [requests, input_tokens, cached_input_tokens, output_tokens] = counts;
        let (group, cost) = (UsageGroup::Day(Day(day)), Nanos(cost_nanos));
        UsageSum { group, requests, input_tokens, cached_input_tokens, output_tokens, cost }
    }

    #[test]
    fn totals_add_each_field() {
        let sums = [sum(1, [1, 20, 7, 300], 4000), sum(2, [5, 60, 8, 700], 8000)];
        let totals = UsageTotals::of(&sums).unwrap();
        let expected = UsageTotals {
            requests: 6,
            input_tokens: 80,
            cached_input_tokens: 15,
            output_tokens: 1000,
            cost: Nanos(12_000),
        };
        assert_eq!(totals, expected);
        assert_eq!(UsageTotals::of(&[]).unwrap(), UsageTotals::default());
    }

    #[test]
    fn overflowing_totals_are_an_error() {
        let largest = sum(1, [u64::MAX; 4], i64::MAX);
        assert!(UsageTotals::of(std::slice::from_ref(&largest)).is_ok());
        let one_more = |field: usize| sum(2, std::array::from_fn(|index| u64::from(index == field)), 0);
        for more in (0..4).map(one_more).chain([sum(2, [0; 4], 1)]) {
            let outcome = UsageTotals::of(&[largest.clone(), more]);
            assert!(matches!(outcome, Err(LedgerError::Database(DbError::SumTooLarge))), "{outcome:?}");
        }
    }
}
