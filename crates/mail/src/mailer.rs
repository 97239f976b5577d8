//! Sends letters, one at a time and within bounds.

use crate::outbox;
use crate::{MailRoute, MailRouteError};
use chancery_domain::{Clock, EmailAddress};
use lettre::message::Mailbox;
use lettre::message::header::ContentType;
use lettre::{Address, AsyncSmtpTransport, AsyncTransport, Message, Tokio1Executor};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How long the mail server may take at each step.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a letter may take altogether; a person waits for it.
const LETTER_TIMEOUT: Duration = Duration::from_secs(20);

/// What is to be sent, as plain text.
#[derive(Clone, Debug)]
pub struct Letter {
    pub to: EmailAddress,
    pub subject: String,
    pub text: String,
}

/// For the log: it may name the server and what it said.
#[derive(Debug, thiserror::Error)]
#[error("a letter could not be sent: {0}")]
pub struct MailError(String);

pub struct Mailer {
    from: Mailbox,
    transport: Transport,
    clock: Arc<dyn Clock>,
}

enum Transport {
    Smtp(AsyncSmtpTransport<Tokio1Executor>),
    Outbox(PathBuf),
}

impl Mailer {
    /// `from_name` is the firm's name, as readers see it.
    pub fn new(
        route: &MailRoute,
        from: &EmailAddress,
        from_name: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, MailRouteError> {
        let unreadable = |error: &dyn std::fmt::Display| MailRouteError::Unreadable(error.to_string());
        let address: Address = from.as_str().parse().map_err(|error| unreadable(&error))?;
        let transport = match route {
            MailRoute::Outbox(folder) => Transport::Outbox(folder.clone()),
            MailRoute::Smtp(url) => {
                let builder = AsyncSmtpTransport::<Tokio1Executor>::from_url(url)
                    .map_err(|error| unreadable(&error))?;
                Transport::Smtp(builder.timeout(Some(STEP_TIMEOUT)).build())
            }
        };
        Ok(Self { from: Mailbox::new(Some(from_name.to_owned()), address), transport, clock })
    }

    /// Returns when the mail server, or the outbox, has taken the letter.
    pub async fn send(&self, letter: &Letter) -> Result<(), MailError> {
        let failed = |error: &dyn std::fmt::Display| MailError(error.to_string());
        let to: Address = letter.to.as_str().parse().map_err(|error| failed(&error))?;
        let message = Message::builder()
            .from(self.from.clone())
            .to(Mailbox::new(None, to))
            .subject(letter.subject.as_str())
            .message_id(None)
            .header(ContentType::TEXT_PLAIN)
            .body(letter.text.clone())
            .map_err(|error| failed(&error))?;
        match &self.transport {
            Transport::Smtp(smtp) => match tokio::time::timeout(LETTER_TIMEOUT, smtp.send(message)).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(error)) => Err(failed(&error)),
                Err(_) => Err(MailError(format!("the mail server took longer than {LETTER_TIMEOUT:?}"))),
            },
            Transport::Outbox(folder) => {
                let (folder, at) = (folder.clone(), self.clock.now());
                let kept =
                    tokio::task::spawn_blocking(move || outbox::keep(&folder, &message.formatted(), at));
                kept.await.map_err(|error| failed(&error))?.map_err(|error| failed(&error))
            }
        }
    }
}
