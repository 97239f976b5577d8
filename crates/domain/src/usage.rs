//! One ledger row: what a request used, at which prices, and what it costs.

use crate::{
    AccountId, BilledTokens, CachedTokensError, KeyId, MoneyError, Nanos, Prices, RequestId, UnixMillis,
};

closed_enum! {
    /// Why a billed reply ended. The reply of a cancelled request may still be requested later with the same idempotency key.
    pub enum StopReason {
        /// The model ended its reply.
        Complete = "complete",
        /// The reply reached the caller's token limit.
        MaxOutputTokens = "max_output_tokens",
        /// One of the caller's stop strings appeared.
        StopSequence = "stop_sequence",
        /// The model's context was full.
        ContextLength = "context_length",
        /// The caller disconnected; the tokens generated until then are billed.
        Cancelled = "cancelled",
        /// The server's time limit ended it; the tokens generated until then are billed.
        Deadline = "deadline",
        /// An upstream server's filter ended it; the tokens passed on until then are billed.
        ContentFilter = "content_filter",
        /// The reply repeated itself, and the request asked to end it then.
        Repetition = "repetition",
    }
}

impl StopReason {
    pub fn from_stored(text: &str) -> Option<Self> {
        Self::parse(text)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageRow {
    pub request_id: RequestId,
    pub account: AccountId,
    pub key: KeyId,
    pub model: String,
    pub input_tokens: u32,
    /// The part of the input that is billed at the price of cached input.
    pub cached_input_tokens: u32,
    pub output_tokens: u32,
    /// The prices in force when the request was admitted.
    pub prices: Prices,
    pub cost: Nanos,
    /// When the request was admitted; determines the day and month it is billed in.
    pub at: UnixMillis,
    pub stop_reason: StopReason,
}

/// Why a row has no cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowCostError {
    #[error(transparent)]
    CachedTokens(#[from] CachedTokensError),
    #[error(transparent)]
    Money(#[from] MoneyError),
}

impl UsageRow {
    /// The cost that follows from the row's own tokens and prices.
    pub fn recomputed_cost(&self) -> Result<Nanos, RowCostError> {
        let tokens = BilledTokens::new(self.input_tokens, self.cached_input_tokens, self.output_tokens)?;
        Ok(self.prices.cost(tokens)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_reason_round_trips() {
        for stop_reason in StopReason::ALL {
            assert_eq!(StopReason::from_stored(stop_reason.as_str()), Some(stop_reason));
        }
        assert_eq!(StopReason::from_stored("lost"), None);
    }
}
