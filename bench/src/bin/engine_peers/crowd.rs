//! One round: a number of clients, each of which sends its next request when its last reply is complete.

use crate::Outcome;
use crate::dialect::Reply;
use crate::server::Server;
use crate::workload::{OUTPUT_TOKENS, Prompt};
use chancery_domain::{Clock, SystemClock};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

/// The result of one round.
#[derive(Debug)]
pub struct Round {
    pub replies: Vec<Reply>,
    pub seconds: f64,
    /// Durations of one-token replies, requested by the same clients at once, for servers that do not stream.
    pub one_token: Vec<Duration>,
}

pub async fn run(
    server: &Arc<Server>,
    clients: usize,
    prompts: Vec<Prompt>,
    probes: Vec<Prompt>,
) -> Outcome<Round> {
    let started = SystemClock.monotonic();
    let replies = ask_all(server, clients, prompts, OUTPUT_TOKENS).await?;
    let seconds = (SystemClock.monotonic() - started).as_secs_f64();
    let one_token = if server.streams() {
        Vec::new()
    } else {
        ask_all(server, clients, probes, 1).await?.iter().map(|reply| reply.total).collect()
    };
    Ok(Round { replies, seconds, one_token })
}

/// Warms a server up until every slot has seen the instructions; returns the seconds it took.
pub async fn warm(server: &Arc<Server>, clients: usize, prompts: Vec<Prompt>) -> Outcome<f64> {
    let started = SystemClock.monotonic();
    ask_all(server, clients, prompts, WARM_TOKENS).await?;
    Ok((SystemClock.monotonic() - started).as_secs_f64())
}

/// Long enough that the clients' requests overlap.
const WARM_TOKENS: u32 = 8;

async fn ask_all(
    server: &Arc<Server>,
    clients: usize,
    prompts: Vec<Prompt>,
    max_tokens: u32,
) -> Outcome<Vec<Reply>> {
    let prompts = Arc::new(prompts);
    let next = Arc::new(AtomicUsize::new(0));
    let mut crowd = JoinSet::new();
    for _ in 0..clients {
        let (server, prompts, next) = (Arc::clone(server), Arc::clone(&prompts), Arc::clone(&next));
        crowd.spawn(async move {
            let mut replies = Vec::new();
            while let Some(prompt) = prompts.get(next.fetch_add(1, Ordering::Relaxed)) {
                replies.push(server.ask(prompt, max_tokens).await?);
            }
            Outcome::Ok(replies)
        });
    }
    let mut replies = Vec::new();
    while let Some(client) = crowd.join_next().await {
        replies.extend(client??);
    }
    Ok(replies)
}
