//! Owns the reservations of one request, from the first to the last. This is the metering protocol:
//!
//! 1. **Look up.** If the idempotency key already has a stored reply, count it as a read (`reads`), return it (`replays`) and stop.
//! 2. **Prepare.** The model exists, the prompt is counted exactly, and the request fits the context (`prepared_request`). A long
//!    prompt has its request reserved before it is tokenized.
//! 3. **Reserve**, each in one atomic step, in this order: one request and its maximum tokens in the rate limits of
//!    its account and its key (`rate_limits`); its maximum cost in their spending caps, if there are any (`spending`); its
//!    idempotency key, if it has one. A request that does not get all three starts nothing and is not billed.
//! 4. **Generate.** If the caller disconnects, the deadline passes or the process shuts down, the work is cancelled at the
//!    engine's next step. While anything is reserved in the store, the process renews its lease: other processes may reclaim
//!    the reservations of a dead one.
//! 5. **Settle.** The usage row is built from what was generated and the prices at admission. The row, the end of the spending
//!    reservation and the reply stored under the idempotency key are one transaction. It is durable before the reply, or the
//!    end of a stream, is sent. Meanwhile the rate limits are corrected to the actual usage. The transaction is retried for as
//!    long as the caller waits, and without limit if the caller has disconnected. Retrying is safe, because a request is billed
//!    at most once. If the database does not take the row of a stream or of a caller who has disconnected within a few seconds,
//!    the settlement is written to the journal instead (`journal`): it is durable there, and is replayed until the row is
//!    written.
//! 6. **Release** all three instead if nothing is billed: the work failed or was rejected, it was abandoned before any text was
//!    read, the key already had its reply, or the caller disconnected before the first token. What was used still counts
//!    against the minute: the prompt tokens computed until the caller disconnected, and the text that was read before a
//!    failure. A long prompt counts as one request, because it was tokenized. The other cases do not count.
//!
//! Steps 3 to 6 are methods of `AdmittedRequest`. They run in work that outlives the caller (`request_task`). If it is dropped or panics
//! midway, the drop of `AdmittedRequest` spawns another task, the settler. Before any text was sent, the settler releases (6).
//! After that, it cancels the work, collects what was generated and settles it (5), retrying every error that is not provably
//! permanent. The settler also takes over a stream whose caller stopped waiting. Shutdown waits for settlers as for running
//! requests; those that it has to abandon go to the journal, and log what is lost if that fails too.

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
use crate::running::ResponseSender;
use crate::{Call, Meter, MeterError, Reply};
use open_request::{Delivery, GenerationState, OpenRequest, StoreReservations};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use open_request::Unbilled;
pub(crate) use settle::IfOverCap;
pub(crate) use settle_errors::{is_permanent, unbilled_reason};

/// The reservations of a request. Settling or releasing closes them all; dropping does so in the background.
pub(crate) struct AdmittedRequest(Option<Box<OpenRequest>>);

impl AdmittedRequest {
    /// Reserves nothing yet.
    pub(crate) fn new(meter: Arc<Meter>, call: Call, prepared: PreparedRequest) -> Self {
        let store_reservations = StoreReservations::new(call.request_id.clone());
        let counted_tokens = prepared.has_request_reserved.then_some(0);
        Self(Some(Box::new(OpenRequest {
            meter,
            call,
            prepared,
            rate_limit: None,
            rate_limit_status: None,
            counted_tokens,
            store_reservations,
            is_outcome_unknown: false,
            delivery: Delivery::NothingDelivered,
            work: GenerationState::None,
        })))
    }

    /// Steps 3 and 4.
    pub(crate) async fn reserve_and_generate(&mut self, caller: &mut ResponseSender) -> Result<(), Unbilled> {
        let open = self.open()?;
        open.reserve(&caller.disconnected).await?;
        open.generate(caller).await
    }

    /// Step 5. After an error, the row may have been written anyway.
    pub(crate) async fn settle(mut self, caller: &ResponseSender) -> Result<Reply, MeterError> {
        let open = self.open()?;
        let has_key = open.store_reservations.claim.is_some();
        let settled = open.settle(Some(caller)).await;
        let settles_in_background = matches!(&settled, Err(error) if open.delivery == Delivery::TextDelivered
            && !is_permanent(error) && !open.meter.abandoned.is_cancelled());
        match settled {
            Ok(_) => self.0 = None,
            Err(_) if settles_in_background => drop(self),
            Err(_) => Box::pin(self.release()).await,
        }
        settled.map_err(|error| match error {
            error if error.is_store_error() => {
                MeterError::UsageNotRecorded { error: Box::new(error), has_key }
            }
            error => error,
        })
    }

    /// Step 6. A reservation whose response was lost is released in the background, so that the caller does not wait again for a
    /// store that just failed to answer.
    pub(crate) async fn release(mut self) {
        if let Some(open) = &mut self.0
            && !open.is_outcome_unknown
        {
            open.release().await;
            self.0 = None;
        }
    }

    fn open(&mut self) -> Result<&mut OpenRequest, MeterError> {
        self.0.as_deref_mut().ok_or_else(|| MeterError::Internal("request already closed".to_owned()))
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
    /// The settler: finishes a request that was dropped.
    async fn finish(mut self: Box<Self>) {
        let meter = Arc::clone(&self.meter);
        let request_id = self.call.request_id.clone();
        if self.delivery == Delivery::TextDelivered {
            tracing::warn!(%request_id, "request interrupted after text was delivered, settling its usage");
            let caller = ResponseSender::disconnected();
            // It is unknown when the lease was last renewed.
            let first_renewal = (!self.store_reservations.is_empty()).then_some(Duration::ZERO);
            let work = pin!(async {
                match self.collect(&caller).await {
                    Ok(()) => self.settle(None).await.is_ok(),
                    Err(_) => false,
                }
            });
            if with_lease_renewal(&meter, first_renewal, work).await {
                return;
            }
        }
        self.release().await;
    }
}
