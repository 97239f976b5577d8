//! Settled rows of one commit, linked into their writer's chain and summed by day.

use crate::{Settlement, StoredReply};
use chancery_domain::{
    AccountId, ChainHash, ChainHead, Day, KeyId, MoneyError, Nanos, Prices, UsageRow, WriterId,
};
use std::collections::BTreeMap;

pub(crate) struct Batch<'a> {
    pub(crate) writer: WriterId,
    /// The chain head before and after these rows.
    pub(crate) before: ChainHead,
    pub(crate) after: ChainHead,
    pub(crate) rows: Vec<ChainedRowRef<'a>>,
    /// Requests with a spending reservation, sorted for the same reason as the sums below.
    pub(crate) reserved: Vec<&'a str>,
    /// Replies to store under an idempotency key.
    pub(crate) stored_replies: Vec<(&'a UsageRow, &'a StoredReply)>,
    /// Sorted by key, so that two nodes that update the same sums do not deadlock.
    pub(crate) sums: Vec<DailyUsageDelta<'a>>,
}

#[derive(Clone, Copy)]
pub(crate) struct ChainedRowRef<'a> {
    pub(crate) row: &'a UsageRow,
    pub(crate) position: u64,
    pub(crate) hash: ChainHash,
}

/// What the batch adds to one row of `daily_usage`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DailyUsageDelta<'a> {
    pub(crate) account: AccountId,
    pub(crate) day: Day,
    pub(crate) key: KeyId,
    pub(crate) model: &'a str,
    pub(crate) prices: Prices,
    pub(crate) requests: i64,
    pub(crate) input_tokens: i64,
    pub(crate) cached_input_tokens: i64,
    pub(crate) output_tokens: i64,
    pub(crate) cost: Nanos,
}

impl<'a> DailyUsageDelta<'a> {
    fn zero(account: AccountId, day: Day, key: KeyId, model: &'a str, prices: Prices) -> Self {
        Self {
            account,
            day,
            key,
            model,
            prices,
            requests: 0,
            input_tokens: 0,
            cached_input_tokens: 0,
            output_tokens: 0,
            cost: Nanos(0),
        }
    }
}

impl<'a> Batch<'a> {
    /// Fails if the total cost overflows; fewer rows may fit.
    pub(crate) fn link(
        writer: WriterId,
        before: ChainHead,
        settlements: impl Iterator<Item = &'a Settlement>,
    ) -> Result<Self, MoneyError> {
        let mut after = before;
        let (mut reserved, mut stored_replies) = (Vec::new(), Vec::new());
        let mut rows = Vec::new();
        let mut sums = BTreeMap::new();
        for Settlement { row, is_reserved, stored_reply } in settlements {
            if *is_reserved {
                reserved.push(row.request_id.as_str());
            }
            stored_replies.extend(stored_reply.as_ref().map(|stored_reply| (row, stored_reply)));
            let position = after.rows;
            after = after.with_row(writer, row);
            rows.push(ChainedRowRef { row, position, hash: after.hash });
            let (account, day, key, model) =
                (row.account, Day::containing(row.at), row.key, row.model.as_str());
            let Prices { input, cached_input, output } = row.prices;
            let sum = sums
                .entry((account, day, key, model, input, cached_input, output))
                .or_insert(DailyUsageDelta::zero(account, day, key, model, row.prices));
            sum.requests += 1;
            sum.input_tokens += i64::from(row.input_tokens);
            sum.cached_input_tokens += i64::from(row.cached_input_tokens);
            sum.output_tokens += i64::from(row.output_tokens);
            sum.cost = sum.cost.checked_add(row.cost)?;
        }
        reserved.sort_unstable();
        let sums = sums.into_values().collect();
        Ok(Self { writer, before, after, rows, reserved, stored_replies, sums })
    }
}

/// Row counts are stored as signed integers. No chain is long enough to overflow them.
pub(crate) fn to_db_count(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
