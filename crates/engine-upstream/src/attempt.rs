//! One job at one server, until the first text of its reply has come. What a server refuses for a reason that this side can
//! remove is sent there once more, each reason once:
//!
//! 1. The connection ended before the reply's head: it may have been one that the server was just closing.
//! 2. Prompt and cap together are too long: the cap falls to what the context has room for.
//! 3. An option or an empty turn that this server does not take: without it.
//!
//! Everything else is for another server, or for the caller.

use super::chat::{self, Form};
use super::endpoint::{Endpoint, Lease};
use super::fault::{Fault, Trouble};
use super::limits::FEW_BYTES_PER_TOKEN;
use super::run::RunningJob;
use super::stream::{Bounds, Reply};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::time::timeout;

/// A reply of which nothing has left yet.
pub(super) struct Begun {
    pub(super) lease: Lease,
    pub(super) reply: Reply,
}

/// How a job is sent, and what was changed about it already.
#[derive(Clone, Copy)]
struct Sending {
    form: Form,
    is_repeated: bool,
    is_shortened: bool,
}

impl RunningJob<'_> {
    /// A failure is told of the server here, and logged.
    pub(super) async fn begin(&self, mut lease: Lease) -> Result<Begun, Fault> {
        let out_of_time = |_| Err(Fault::new(Trouble::OutOfTime, "the whole job took too long"));
        match timeout(self.time_left(), self.until_taken(lease.endpoint())).await.unwrap_or_else(out_of_time)
        {
            Ok(reply) => {
                lease.note_text();
                Ok(Begun { lease, reply })
            }
            Err(fault) => {
                self.note_failure(lease, &fault);
                Err(fault)
            }
        }
    }

    /// A job that fails at one server after the other is more likely the reason than each of them: only the first is
    /// blamed. Where it is they who fail, other jobs will begin at the others.
    pub(super) fn note_failure(&self, lease: Lease, fault: &Fault) {
        let (model, endpoint) = (&self.upstream.model, lease.url());
        tracing::warn!(model, endpoint, trouble = fault.story, "a job failed at an upstream server");
        let recurs = fault.trouble == Trouble::Broken && self.has_failed.swap(true, Ordering::Relaxed);
        lease.failed(fault, !recurs);
    }

    async fn until_taken(&self, endpoint: &Arc<Endpoint>) -> Result<Reply, Fault> {
        let wants_running_usage = self.upstream.counter.is_none() && endpoint.takes_running_usage();
        let form = Form {
            max_tokens: self.max_tokens,
            has_running_usage: wants_running_usage,
            has_empty_turns: true,
        };
        let mut sending = Sending { form, is_repeated: false, is_shortened: false };
        loop {
            match self.send(endpoint, sending.form).await {
                Ok(reply) => {
                    let was_left_out_alone = !sending.form.has_running_usage && sending.form.has_empty_turns;
                    if wants_running_usage && was_left_out_alone {
                        endpoint.set_no_running_usage();
                    }
                    return Ok(reply);
                }
                Err(fault) => match self.changed(sending, &fault) {
                    Some(changed) => sending = changed,
                    None => return Err(fault),
                },
            }
        }
    }

    async fn send(&self, endpoint: &Arc<Endpoint>, form: Form) -> Result<Reply, Fault> {
        let upstream = self.upstream.as_ref();
        let timeouts = upstream.timeouts;
        let body = chat::body(&upstream.upstream_model, self.turns, self.job, form)?;
        let bounds = Bounds {
            max_tokens: form.max_tokens,
            idle: timeouts.idle,
            keeps_text: upstream.counter.is_some(),
        };
        let authorization = endpoint.authorization();
        let beginning = async {
            let response = upstream.transport.chat(endpoint.addressee(authorization.as_ref()), body).await?;
            let mut reply = Reply::new(response, bounds);
            reply.until_life().await?;
            endpoint.shows_life(upstream.clock.monotonic());
            Ok::<_, Fault>(reply)
        };
        let late = |_| {
            let waited_ms = timeouts.first_token.as_millis();
            Fault::new(Trouble::TimedOut, format!("no text came within {waited_ms} ms"))
        };
        let mut reply = timeout(timeouts.first_token, beginning).await.map_err(late)??;
        reply.until_text().await?;
        Ok(reply)
    }

    /// None where sending it there again would change nothing.
    fn changed(&self, last: Sending, fault: &Fault) -> Option<Sending> {
        let with = |form: Form| Some(Sending { form, ..last });
        match fault.trouble {
            Trouble::Lost if !last.is_repeated => Some(Sending { is_repeated: true, ..last }),
            Trouble::TooLong if !last.is_shortened => {
                let max_tokens = self.room_after(fault)?;
                (max_tokens < last.form.max_tokens).then_some(Sending {
                    form: Form { max_tokens, ..last.form },
                    is_shortened: true,
                    ..last
                })
            }
            Trouble::Refused => {
                let form = last.form;
                let is_named = fault.refusal.as_ref().is_some_and(|refusal| refusal.names_running_usage);
                let has_empty_turns =
                    form.has_empty_turns && self.turns.iter().any(|turn| turn.text.is_empty());
                match (form.has_running_usage, has_empty_turns) {
                    (true, has_empty_turns) if is_named || !has_empty_turns => {
                        with(Form { has_running_usage: false, ..form })
                    }
                    (_, true) => with(Form { has_empty_turns: false, ..form }),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// What the context has room for by the server's own count of the prompt, or else, where nothing was counted here, by a
    /// guess on the safe side.
    fn room_after(&self, fault: &Fault) -> Option<u32> {
        let said = fault.refusal.as_ref().and_then(|refusal| refusal.prompt_tokens);
        let guessed = || {
            let is_guess_wanted = self.upstream.counter.is_none();
            is_guess_wanted.then(|| self.guessed_prompt_tokens(FEW_BYTES_PER_TOKEN))
        };
        let prompt_tokens = said.or_else(guessed)?;
        self.upstream.context_tokens.checked_sub(prompt_tokens).filter(|room| *room > 0)
    }
}
