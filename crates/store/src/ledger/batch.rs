//! One commit's worth of settled rows: linked into their writer's chain, and summed by day.

use crate::{KeptReply, Settlement};
use chancery_domain::{
    AccountId, ChainHash, ChainHead, Day, KeyId, MoneyError, Nanos, Prices, UsageRow, WriterId,
};
use std::collections::BTreeMap;

pub(crate) struct Batch<'a> {
    pub(crate) writer: WriterId,
    /// The chain's end before and after these rows.
    pub(crate) before: ChainHead,
    pub(crate) after: ChainHead,
    pub(crate) rows: Vec<LinkedRow<'a>>,
    /// The requests among them that had set something aside, in order, for the same reason as the sums below.
    pub(crate) reserved: Vec<&'a str>,
    /// The replies among them that are kept under a key.
    pub(crate) kept: Vec<(&'a UsageRow, &'a KeptReply)>,
    /// In the order of their keys, so that two nodes that change the same sums never wait for each other in a circle.
    pub(crate) sums: Vec<DaySum<'a>>,
}

#[derive(Clone, Copy)]
pub(crate) struct LinkedRow<'a> {
    pub(crate) row: &'a UsageRow,
    pub(crate) place: u64,
    pub(crate) hash: ChainHash,
}

/// What the rows of the batch add to one line of `usage_days`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DaySum<'a> {
    pub(crate) account: AccountId,
    pub(crate) day: Day,
    pub(crate) key: KeyId,
    pub(crate) model: &'a str,
    pub(crate) prices: Prices,
    pub(crate) requests: i64,
    pub(crate) input_tokens: i64,
    pub(crate) output_tokens: i64,
    pub(crate) cost: Nanos,
}

impl<'a> DaySum<'a> {
    fn of_nothing(account: AccountId, day: Day, key: KeyId, model: &'a str, prices: Prices) -> Self {
        let (requests, input_tokens, output_tokens, cost) = (0, 0, 0, Nanos(0));
        Self { account, day, key, model, prices, requests, input_tokens, output_tokens, cost }
    }

    /// To the same line as this one.
    pub(crate) fn adding_nothing(&self) -> Self {
        Self::of_nothing(self.account, self.day, self.key, self.model, self.prices)
    }
}

impl<'a> Batch<'a> {
    /// Fails where the costs together cannot be counted exactly; fewer rows may fit.
    pub(crate) fn linked(
        writer: WriterId,
        before: ChainHead,
        settlements: impl Iterator<Item = &'a Settlement>,
    ) -> Result<Self, MoneyError> {
        let mut after = before;
        let (mut reserved, mut kept_replies) = (Vec::new(), Vec::new());
        let mut linked = Vec::new();
        let mut sums = BTreeMap::new();
        for Settlement { row, is_reserved, kept } in settlements {
            if *is_reserved {
                reserved.push(row.request_id.as_str());
            }
            kept_replies.extend(kept.as_ref().map(|kept| (row, kept)));
            let place = after.rows;
            after = after.followed_by(writer, row);
            linked.push(LinkedRow { row, place, hash: after.hash });
            let (account, day, key, model) = (row.account, Day::of(row.at), row.key, row.model.as_str());
            let Prices { input, output } = row.prices;
            let sum = sums
                .entry((account, day, key, model, input, output))
                .or_insert(DaySum::of_nothing(account, day, key, model, row.prices));
            sum.requests += 1;
            sum.input_tokens += i64::from(row.input_tokens);
            sum.output_tokens += i64::from(row.output_tokens);
            sum.cost = sum.cost.checked_add(row.cost)?;
        }
        reserved.sort_unstable();
        let (kept, sums) = (kept_replies, sums.into_values().collect());
        Ok(Self { writer, before, after, rows: linked, reserved, kept, sums })
    }
}

/// Counts of rows are kept as the databases' signed numbers; no chain is that long.
pub(crate) fn stored_count(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
