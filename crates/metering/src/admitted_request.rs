//! One request from its first reservation to its last: the owner of what it has reserved. This is the metering protocol:
//!
//! 1. **Look up.** A request that was sent before under the same idempotency key gets its stored reply (`replays`), and
//!    goes no further.
//! 2. **Prepare.** The model is known, the prompt is counted exactly, and both fit (`prepared_request`).
//! 3. **Reserve**, each in one atomic step, in this order: one request and all the tokens it may use in its account's
//!    limits per minute (`rate_limits`); the most it may cost of its account's spending cap, if there is one
//!    (`spending`); its idempotency key, if it has one. Whoever does not get all three starts nothing and owes nothing.
//! 4. **Generate.** A caller who hangs up cancels the work at the engine's next step. While anything is reserved in the
//!    store, the process renews its lease there: what a dead process has reserved is free for others.
//! 5. **Settle.** The usage row is made from what was generated and the prices of the moment of admission. The row, the
//!    end of the spending reservation and the reply to be stored under the idempotency key are one transaction, durable
//!    before the reply is given; only then may its end leave. Meanwhile the rate limits learn what was used. The
//!    transaction is retried for as long as the caller waits, and without an end where the caller has hung up. A request
//!    is billed once, so that retrying is safe.
//! 6. **Release** all three instead, where nothing is billed: the work failed, was refused or given up at shutdown, the
//!    key had its reply already, or the caller hung up before the first token. The last counts as a request of its
//!    minute, for it was admitted; the others do not.
//!
//! Steps 3 to 6 are methods of `AdmittedRequest`. They run in a task that outlives the caller. Where that task is dropped
//! or panics in the middle, the drop of `AdmittedRequest` sees to the rest in a task of its own, the settler: before any
//! text has left, it releases (6); after, it ends the work, learns what was generated, and settles that (5), retrying
//! every error that is not proved permanent. The same becomes of a stream whose caller could wait no longer. Shutdown
//! waits for settlers as for running requests; those that it has to abandon make one last attempt and log what is lost.

mod generate;
#[cfg(test)]
mod interruptions;
mod open_request;
mod release;
mod reserve;
mod settle;
mod settle_errors;

use crate::lease::with_lease_renewal;
use crate::prepared_request::PreparedRequest;
use crate::running::Reporter;
use crate::{Call, Meter, MeterError, Reply};
use open_request::{Delivery, OpenRequest, StoreReservations, Work};
use settle_errors::is_permanent;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use open_request::Unbilled;

/// What has been reserved for a request. Settling or releasing it closes everything; so does, in the background, its
/// drop.
pub(crate) struct AdmittedRequest(Option<Box<OpenRequest>>);

impl AdmittedRequest {
    /// Has nothing reserved yet.
    pub(crate) fn new(meter: Arc<Meter>, call: Call, prepared: PreparedRequest) -> Self {
        let in_store = StoreReservations::of(call.request_id.clone());
        Self(Some(Box::new(OpenRequest {
            meter,
            call,
            prepared,
            rate_limit: None,
            rate_limit_status: None,
            counted_tokens: None,
            in_store,
            is_answer_lost: false,
            delivery: Delivery::NothingLeft,
            work: Work::None,
        })))
    }

    /// Steps 3 and 4.
    pub(crate) async fn reserve_and_generate(&mut self, caller: &mut Reporter) -> Result<(), Unbilled> {
        let open = self.open()?;
        open.reserve(&caller.hung_up).await?;
        open.generate(caller).await
    }

    /// Step 5. An error may be that of a row that was written all the same.
    pub(crate) async fn settle(mut self, caller: &Reporter) -> Result<Reply, MeterError> {
        let open = self.open()?;
        let has_key = open.in_store.claim.is_some();
        let settled = open.settle(Some(caller)).await;
        let goes_on = matches!(&settled, Err(error) if open.delivery == Delivery::TextLeft
            && !is_permanent(error) && !open.meter.abandoned.is_cancelled());
        match settled {
            Ok(_) => self.0 = None,
            Err(_) if goes_on => drop(self),
            Err(_) => self.release().await,
        }
        settled.map_err(|error| match error {
            error if error.is_of_store() => MeterError::Unrecorded { error: Box::new(error), has_key },
            error => error,
        })
    }

    /// Step 6. What may be reserved though its answer was lost is released in the background: whoever lost one answer
    /// does not wait for another.
    pub(crate) async fn release(mut self) {
        if let Some(open) = &mut self.0
            && !open.is_answer_lost
        {
            open.release().await;
            self.0 = None;
        }
    }

    fn open(&mut self) -> Result<&mut OpenRequest, MeterError> {
        self.0.as_deref_mut().ok_or_else(|| MeterError::Internal("the request is closed".to_owned()))
    }
}

impl Drop for AdmittedRequest {
    fn drop(&mut self) {
        if let Some(open) = self.0.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let running = open.meter.running.clone();
            running.spawn_on(open.finish(), &runtime);
        }
    }
}

impl OpenRequest {
    /// The settler: what is left to do for a request that was dropped.
    async fn finish(mut self: Box<Self>) {
        let meter = Arc::clone(&self.meter);
        let request_id = self.call.request_id.clone();
        if self.delivery == Delivery::TextLeft {
            tracing::warn!(%request_id, "request interrupted after text had left; settling what it used");
            let caller = Reporter::absent();
            // It is not known when the lease was renewed last.
            let first_pause = (!self.in_store.is_empty()).then_some(Duration::ZERO);
            let settled = with_lease_renewal(&meter, first_pause, async {
                match self.collect(&caller).await {
                    Ok(()) => self.settle(None).await.is_ok(),
                    Err(_) => false,
                }
            });
            if settled.await {
                return;
            }
        }
        self.release().await;
    }
}
