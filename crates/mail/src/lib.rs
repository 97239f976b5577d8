//! Sends email: by SMTP if configured, else as files in an outbox folder. What emails say is up to the caller.

mod mail_page;
mod mailer;
mod outbox;
mod route;

pub use mail_page::SentEmail;
pub use mailer::{Email, EmailExtras, MailError, Mailer, PdfAttachment, Recipient, RecipientError};
pub use route::{MailRoute, MailRouteError};
