//! Runs each request in a task of its own, which goes on when the caller hangs up: what was generated must still be
//! settled. The steps are those of the protocol (`admitted_request`).

use crate::admitted_request::{AdmittedRequest, Unbilled};
use crate::lease::{RENEWAL_PAUSE, with_lease_renewal};
use crate::running::{Beginning, Reporter, Running, Wants, reporting};
use crate::{Call, Caller, Meter, MeterError, Reply};
use std::sync::Arc;

impl Meter {
    /// Runs one request to its end.
    pub async fn generate(self: &Arc<Self>, call: Call) -> Result<Reply, MeterError> {
        self.start(call, Wants::Reply).await?.reply().await
    }

    /// Starts one request, and returns once its work has begun.
    pub async fn stream(self: &Arc<Self>, call: Call) -> Result<Running, MeterError> {
        self.start(call, Wants::Text).await
    }

    async fn start(self: &Arc<Self>, call: Call, wants: Wants) -> Result<Running, MeterError> {
        // Held from before the check until the task is there, so that a drain that begins in between waits for it.
        let counted = self.running.token();
        if self.is_draining() {
            return Err(MeterError::ShuttingDown);
        }
        self.can_record()?;
        let (reporter, awaited) = reporting(wants);
        // The task goes on when this future is dropped, because what was generated must still be settled.
        let work = self.running.spawn(Arc::clone(self).run(call, reporter));
        drop(counted);
        awaited.beginning_of(work).await
    }

    /// The whole protocol (`admitted_request`). A refusal is counted where it leaves, so once.
    pub(crate) async fn run(
        self: Arc<Self>,
        call: Call,
        mut reporter: Reporter,
    ) -> Result<Reply, MeterError> {
        let Caller { account, key, .. } = call.caller;
        let outcome = self.run_uncounted(call, &mut reporter).await;
        outcome.inspect_err(|error| self.activity.refused(Some(account), key, error))
    }

    async fn run_uncounted(
        self: &Arc<Self>,
        call: Call,
        reporter: &mut Reporter,
    ) -> Result<Reply, MeterError> {
        if let Some(reply) = self.replays.reply_to(&call).await? {
            return Ok(replayed(reply, reporter));
        }
        let prepared = tokio::select! {
            prepared = self.prepare(&call.request, call.caller.limits) => prepared?,
            () = reporter.hung_up.cancelled() => return Err(MeterError::HungUp),
        };
        let may_reserve_in_store = call.caller.is_capped || call.idempotency.is_some();
        let mut request = AdmittedRequest::new(Arc::clone(self), call, prepared);
        let work = async {
            let unbilled = match request.reserve_and_generate(reporter).await {
                Ok(()) => return request.settle(reporter).await,
                Err(unbilled) => unbilled,
            };
            request.release().await;
            match unbilled {
                Unbilled::Replay(reply) => Ok(replayed(*reply, reporter)),
                Unbilled::NothingGenerated(reply) => Ok(*reply),
                Unbilled::Failed(error) => Err(error),
            }
        };
        with_lease_renewal(self, may_reserve_in_store.then_some(RENEWAL_PAUSE), work).await
    }
}

/// The stored reply, told as if it ran.
fn replayed(reply: Reply, reporter: &mut Reporter) -> Reply {
    let Reply { ref id, at, input_tokens, is_replay, rate_limit_status, .. } = reply;
    reporter.begin(Beginning {
        id: id.clone(),
        at,
        input_tokens,
        is_counted: true,
        is_replay,
        rate_limit_status,
    });
    if !reply.output_text.is_empty() {
        reporter.text(&reply.output_text);
    }
    reply
}
