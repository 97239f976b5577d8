//! Starts what finds alerts and what sends the messages of the outbox. Every process runs both, whatever it serves: the
//! database decides which of them checks, and which sends a message.

use super::people::SharedDeps;
use crate::config::Config;
use chancery_alerts::{AlertChecker, OutboxWorker, WebhookClient};
use chancery_listener::ShutdownTokens;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// The tasks end when the server closes.
pub fn start(config: &Config, deps: &SharedDeps, shutdown_tokens: &ShutdownTokens) -> [JoinHandle<()>; 2] {
    let (clock, randomness) = (Arc::clone(&deps.clock), Arc::clone(&deps.randomness));
    let checker = AlertChecker::new(
        deps.store.alerting(),
        config.billing.currency,
        Arc::clone(&clock),
        Arc::clone(&randomness),
    );
    let webhooks = WebhookClient::new(config.webhooks.allow_private.clone());
    let worker =
        OutboxWorker::new(deps.store.alerting(), Arc::clone(&deps.mailer), webhooks, clock, randomness);
    let (checker_stop, worker_stop) = (shutdown_tokens.closing.clone(), shutdown_tokens.closing.clone());
    [
        tokio::spawn(async move { checker.run(checker_stop).await }),
        tokio::spawn(Arc::new(worker).run(worker_stop)),
    ]
}
