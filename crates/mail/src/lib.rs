//! Sends email: by SMTP if configured, else as files in an outbox folder. What emails say is up to the caller.

mod mailer;
mod outbox;
mod route;

pub use mailer::{Email, MailError, Mailer, Recipient, RecipientError};
pub use route::{MailRoute, MailRouteError};
