//! Requests that generate nothing but still take work: token counts, replays, usage and models. An account may send as many of
//! them per minute as requests that generate. They count in a bucket of their own, so that neither kind takes from the other.

use crate::rate_limits::{Bucket, Decision, Reservation};
use crate::{Caller, Meter, MeterError};
use chancery_domain::{RateLimits, RequestId};

impl Meter {
    /// Counts one read; fails if the account has sent too many. A rejection counts in the account's activity.
    pub async fn admit_read(&self, caller: Caller) -> Result<(), MeterError> {
        let admitted = self.count_read(caller, self.new_request_id()).await;
        admitted.inspect_err(|error| self.activity.record_rejection(Some(caller.account), caller.key, error))
    }

    /// A read is not settled or released: it counts for one minute, whatever comes of it. Without an answer of the limit store it
    /// is rejected, like a request that generates, because otherwise an outage would remove the limit.
    pub(crate) async fn count_read(&self, caller: Caller, request_id: RequestId) -> Result<(), MeterError> {
        let reservation = Reservation {
            bucket: Bucket::Reads(caller.account),
            request_id,
            limits: RateLimits { requests_per_min: caller.limits.requests_per_min, tokens_per_min: 0 },
            tokens: 0,
        };
        match self.limiter.reserve(&reservation).await? {
            Decision::Admitted(_) => Ok(()),
            Decision::Rejected(rejection) => Err(MeterError::ReadsRateLimited(rejection)),
        }
    }
}
