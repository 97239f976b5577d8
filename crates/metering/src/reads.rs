//! Requests that generate nothing but still take work: token counts, replays, usage, models and keys. An account, or a key with a
//! limit of its own, may send as many of them per minute as requests that generate. They count in buckets of their own, so that
//! neither kind takes from the other.

use crate::rate_limits::Decision;
use crate::{Caller, Meter, MeterError};
use chancery_domain::RequestId;

impl Meter {
    /// Counts one read; fails if the account or the key has sent too many. A rejection counts in the account's activity.
    pub async fn admit_read(&self, caller: &Caller) -> Result<(), MeterError> {
        let admitted = self.count_read(caller, self.new_request_id()).await;
        admitted.inspect_err(|error| self.activity.record_rejection(Some(caller.account), caller.key, error))
    }

    /// A read is not settled or released: it counts for one minute, whatever comes of it. Without an answer of the limit store it
    /// is rejected, like a request that generates, because otherwise an outage would remove the limit.
    pub(crate) async fn count_read(&self, caller: &Caller, request_id: RequestId) -> Result<(), MeterError> {
        match self.limiter.reserve(&caller.read(request_id)).await? {
            Decision::Admitted(_) => Ok(()),
            Decision::Rejected(rejection) => Err(MeterError::ReadsRateLimited(Box::new(rejection))),
        }
    }
}
