//! Letters to people: by SMTP where the firm has it, else as files in an outbox folder. It knows nothing of what letters say.

mod mailer;
mod outbox;
mod route;

pub use mailer::{Letter, MailError, Mailer};
pub use route::{MailRoute, MailRouteError};
