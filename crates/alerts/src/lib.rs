//! Alerts about spending caps and keys that expire, and the worker that sends what waits in the outbox: emails, and
//! events to webhooks.
//!
//! 1. `AlertChecker` compares sums with caps, on one node at a time, and enqueues each alert once (`check`).
//! 2. `OutboxWorker` claims due messages and sends them, with retries (`worker`).
//! 3. `OutboxMailer` leaves an email to the worker, or sends it now without storing it (`outbox_mailer`).
//! 4. `people_emails` has the texts that both the portal and the command line send to people.
//! 5. `WebhookClient` signs an event and sends it to an address that it has checked (`webhook_client`).

mod check;
mod email_payload;
mod limits;
mod networks;
mod outbox_mailer;
mod people_emails;
mod retry;
mod signature;
mod texts;
mod webhook_client;
mod worker;

pub use check::{AlertChecker, CheckError};
pub use email_payload::{new_email_message, new_letter_message};
pub use networks::{AllowedNetwork, AllowedNetworkError, AllowedNetworks};
pub use outbox_mailer::OutboxMailer;
pub use people_emails::{PEOPLE_EMAIL_LIFETIME, factors_reset_email, invitation_email};
pub use signature::{generate_webhook_id, generate_webhook_secret};
pub use texts::test_event;
pub use webhook_client::{WebhookClient, WebhookSendError, WebhookUrlError};
pub use worker::OutboxWorker;
