//! Receipts of billed requests.

use crate::{Caller, Meter, MeterError, Reply};
use chancery_domain::{BilledTokens, RequestId, UsageRow};
use chancery_transparency::{LogError, ReceiptOutcome, find_receipt};

impl Meter {
    /// The receipt of a request of the caller's account.
    pub async fn receipt(&self, caller: &Caller, request: &RequestId) -> Result<ReceiptOutcome, MeterError> {
        let found = find_receipt(&self.store.log_reader, caller.account, request).await;
        found.map_err(|error| match error {
            LogError::Database(error) => MeterError::Database(error),
            error => MeterError::Internal(error.to_string()),
        })
    }
}

impl Reply {
    /// The row that was settled for this reply. `model` is the request's.
    pub fn usage_row(&self, model: &str) -> Result<UsageRow, MeterError> {
        let billed = BilledTokens::new(self.input_tokens, self.cached_tokens, self.output_tokens)
            .map_err(|error| MeterError::Internal(error.to_string()))?;
        Ok(UsageRow {
            request_id: self.id.clone(),
            account: self.account,
            key: self.key,
            model: model.to_owned(),
            input_tokens: self.input_tokens,
            cached_input_tokens: self.cached_tokens,
            output_tokens: self.output_tokens,
            prices: self.prices,
            cost: self.prices.cost(billed)?,
            at: self.at,
            stop_reason: self.stop_reason,
        })
    }
}
