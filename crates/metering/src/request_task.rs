//! Runs each request so that it continues when the caller disconnects: what was generated must still be settled. A stream has a task
//! of its own, because its work never waits for its reader. A whole reply runs in its caller's task as long as the caller waits: that
//! saves waking one task for the other. `admitted_request` explains the protocol.

use crate::admitted_request::{AdmittedRequest, Unbilled};
use crate::catch_panic::catch_panic;
use crate::detach_on_drop::DetachOnDrop;
use crate::lease::{LEASE_RENEWAL_INTERVAL, with_lease_renewal};
use crate::replays::replay;
use crate::running::{GenerationStream, ResponseSender, StreamStart, response_channel};
use crate::{Call, Caller, Meter, MeterError, Reply};
use std::pin::{Pin, pin};
use std::sync::Arc;

impl Meter {
    /// Runs one request to completion.
    pub async fn generate(self: &Arc<Self>, call: Call) -> Result<Reply, MeterError> {
        let (sender, _disconnect_guard) = ResponseSender::whole();
        catch_panic(DetachOnDrop::new(self.work(call, sender)?)).await
    }

    /// Starts one request, and returns once its work has begun.
    pub async fn stream(self: &Arc<Self>, call: Call) -> Result<GenerationStream, MeterError> {
        let (sender, pending) = response_channel();
        pending.started(tokio::spawn(self.work(call, sender)?)).await
    }

    /// Counts as running until it is dropped.
    fn work(
        self: &Arc<Self>,
        call: Call,
        sender: ResponseSender,
    ) -> Result<Pin<Box<impl Future<Output = Result<Reply, MeterError>> + Send + use<>>>, MeterError> {
        // Held from before the check until the work is tracked, so that a drain that begins in between waits for it.
        let _token = self.running.token();
        if self.is_draining() {
            return Err(MeterError::ShuttingDown);
        }
        self.can_record()?;
        // Boxed, because a future is copied several times before it runs, and this one has kilobytes.
        Ok(Box::pin(self.running.track_future(Arc::clone(self).run(call, sender))))
    }

    /// Runs the whole protocol (`admitted_request`). Rejections are counted only here, so exactly once.
    pub(crate) async fn run(
        self: Arc<Self>,
        call: Call,
        mut sender: ResponseSender,
    ) -> Result<Reply, MeterError> {
        let Caller { account, key, .. } = call.caller;
        let outcome = self.run_protocol(call, &mut sender).await;
        outcome.inspect_err(|error| self.activity.record_rejection(Some(account), key, error))
    }

    async fn run_protocol(
        self: &Arc<Self>,
        mut call: Call,
        sender: &mut ResponseSender,
    ) -> Result<Reply, MeterError> {
        // Before a stored reply is looked for: it may be another key's.
        if !call.caller.key_limits.allows_model(&call.request.model) {
            self.model_for(&call.caller, &call.request.model)?;
        }
        if let Some((record, fingerprint)) = self.replays.find_record(&call).await? {
            // Counted only now, because a key that is new must not take from the reads; and before the outcome is known, because a
            // conflict is a read too.
            Box::pin(self.count_read(&call.caller, call.request_id.clone())).await?;
            return Ok(send_replay(replay(record, fingerprint)?, sender));
        }
        let prepared = tokio::select! {
            prepared = self.prepare_generation(&call) => prepared?,
            () = sender.disconnected.cancelled() => return Err(MeterError::ClientDisconnected),
        };
        // Nothing reads them any more, and the request may run for minutes.
        call.request.turns = Vec::new();
        let may_reserve_in_store = call.caller.is_capped || call.idempotency.is_some();
        let (caller, request_id) = (call.caller.clone(), call.request_id.clone());
        let mut request = AdmittedRequest::new(Arc::clone(self), call, prepared);
        // Pinned here, because as an argument it would be stored twice.
        let work = pin!(async {
            let unbilled = match request.reserve_and_generate(sender).await {
                Ok(()) => return request.settle(sender).await,
                Err(unbilled) => unbilled,
            };
            Box::pin(request.release()).await;
            match unbilled {
                Unbilled::Replay(reply) => {
                    Box::pin(self.count_read(&caller, request_id)).await?;
                    Ok(send_replay(*reply, sender))
                }
                Unbilled::NothingGenerated(reply) => Ok(*reply),
                Unbilled::Failed(error) => Err(error),
            }
        });
        with_lease_renewal(self, may_reserve_in_store.then_some(LEASE_RENEWAL_INTERVAL), work).await
    }
}

/// Sends the stored reply as if it had just been generated.
fn send_replay(reply: Reply, sender: &mut ResponseSender) -> Reply {
    let Reply { ref id, at, ref logprobs, input_tokens, is_replay, rate_limit_status, .. } = reply;
    sender.begin(StreamStart {
        id: id.clone(),
        at,
        input_tokens,
        is_counted: true,
        has_logprobs: logprobs.is_some(),
        is_replay,
        rate_limit_status,
    });
    if !reply.reasoning_text.is_empty() {
        sender.reasoning(&reply.reasoning_text);
    }
    if !reply.output_text.is_empty() {
        sender.text(&reply.output_text);
    }
    sender.logprobs(logprobs.as_deref().unwrap_or_default());
    reply
}
