//! Alerts about spending caps and keys that expire, and the worker that sends what waits in the outbox: emails, and
//! events to webhooks.
//!
//! 1. `AlertChecker` compares sums with caps, on one node at a time, and enqueues each alert once (`check`).
//! 2. `OutboxWorker` claims due messages and sends them, with retries (`worker`).
//! 3. `OutboxMailer` leaves an email to the worker, or sends it now without storing it (`outbox_mailer`).
//! 4. `WebhookClient` signs an event and sends it to an address that it has checked (`webhook_client`).

mod check;
mod email_payload;
mod limits;
mod networks;
mod outbox_mailer;
mod retry;
mod signature;
mod texts;
mod webhook_client;
mod worker;

pub use check::{AlertChecker, CheckError};
pub use networks::{AllowedNetwork, AllowedNetworkError, AllowedNetworks};
pub use outbox_mailer::OutboxMailer;
pub use signature::{generate_webhook_id, generate_webhook_secret};
pub use texts::test_event;
pub use webhook_client::{WebhookClient, WebhookSendError, WebhookUrlError};
pub use worker::OutboxWorker;
