//! Messages that wait to be sent, webhooks, and the alerts that were sent.

pub(crate) mod alerts;
pub(crate) mod error;
pub(crate) mod messages;
pub(crate) mod types;
pub(crate) mod webhooks;
