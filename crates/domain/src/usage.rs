//! One row of the ledger: what one request used, at which prices, and what it therefore costs.

use crate::{AccountId, KeyId, MoneyError, Nanos, Prices, RequestId, UnixMillis};

/// How a billed request ended, which is also the reply's `stop_reason`. Nobody waits for the reply of a cancelled one, but
/// it may be asked for later, by the same idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HowEnded {
    /// The model ended its reply.
    Complete,
    /// The caller's cap cut it short.
    MaxOutputTokens,
    /// One of the caller's stop strings appeared.
    StopSequence,
    /// The model's context was full.
    ContextLength,
    /// The caller hung up; the tokens generated until then are billed.
    Cancelled,
}

impl HowEnded {
    pub const ALL: [Self; 5] =
        [Self::Complete, Self::MaxOutputTokens, Self::StopSequence, Self::ContextLength, Self::Cancelled];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::MaxOutputTokens => "max_output_tokens",
            Self::StopSequence => "stop_sequence",
            Self::ContextLength => "context_length",
            Self::Cancelled => "cancelled",
        }
    }

    pub fn from_stored(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ended| ended.as_str() == text)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageRow {
    pub request_id: RequestId,
    pub account: AccountId,
    pub key: KeyId,
    pub model: String,
    pub input_tokens: u32,
    pub output_tokens: u32,
    /// The prices in force when the request was admitted.
    pub prices: Prices,
    pub cost: Nanos,
    /// When the request was admitted; decides the day and month it is billed in.
    pub at: UnixMillis,
    pub ended: HowEnded,
}

impl UsageRow {
    /// What the row should cost by its own tokens and prices.
    pub fn recomputed_cost(&self) -> Result<Nanos, MoneyError> {
        self.prices.cost(self.input_tokens, self.output_tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ending_survives_being_stored() {
        for ended in HowEnded::ALL {
            assert_eq!(HowEnded::from_stored(ended.as_str()), Some(ended));
        }
        assert_eq!(HowEnded::from_stored("lost"), None);
    }
}
