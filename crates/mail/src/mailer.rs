//! Sends letters, one at a time and within bounds.

use crate::outbox;
use crate::{MailRoute, MailRouteError};
use chancery_domain::{Clock, EmailAddress, OsRandomness, SecretToken};
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
#[error("{0}")]
pub struct MailError(String);

pub struct Mailer {
    from: Mailbox,
    /// Letters are named after the sender's domain, as mail servers expect it.
    id_domain: String,
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
        let id_domain = address.domain().to_owned();
        Ok(Self { from: Mailbox::new(Some(one_line(from_name)), address), id_domain, transport, clock })
    }

    /// Returns when the mail server, or the outbox, has taken the letter.
    pub async fn send(&self, letter: &Letter) -> Result<(), MailError> {
        let failed =
            |error: &dyn std::fmt::Display| MailError(format!("a letter could not be sent: {error}"));
        let to: Address = letter.to.as_str().parse().map_err(|error| failed(&error))?;
        let message = Message::builder()
            .from(self.from.clone())
            .to(Mailbox::new(None, to))
            .subject(one_line(&letter.subject))
            .message_id(Some(format!(
                "<{}@{}>",
                SecretToken::generate(&OsRandomness).reveal(),
                self.id_domain
            )))
            .header(ContentType::TEXT_PLAIN)
            .body(letter.text.clone())
            .map_err(|error| failed(&error))?;
        match &self.transport {
            Transport::Smtp(smtp) => match tokio::time::timeout(LETTER_TIMEOUT, smtp.send(message)).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(error)) => Err(failed(&error)),
                Err(_) => Err(failed(&format!("the mail server took longer than {LETTER_TIMEOUT:?}"))),
            },
            Transport::Outbox(folder) => {
                let (folder, at) = (folder.clone(), self.clock.now());
                let kept =
                    tokio::task::spawn_blocking(move || outbox::keep(&folder, &message.formatted(), at));
                kept.await.map_err(|error| failed(&error))?.map_err(|error| failed(&error))
            }
        }
    }

    /// Removes from the outbox what is older than a day; says how many letters. A mail server keeps its own.
    pub async fn forget_old_letters(&self) -> Result<u64, MailError> {
        let Transport::Outbox(folder) = &self.transport else { return Ok(0) };
        let (folder, now) = (folder.clone(), self.clock.now());
        let failed =
            |error: &dyn std::fmt::Display| MailError(format!("old letters stay in the outbox: {error}"));
        let forgotten = tokio::task::spawn_blocking(move || outbox::forget_old(&folder, now));
        forgotten.await.map_err(|error| failed(&error))?.map_err(|error| failed(&error))
    }
}

/// Nothing that could begin another header, and nothing that lettre stumbles over.
fn one_line(text: &str) -> String {
    text.chars().map(|sign| if sign.is_control() { ' ' } else { sign }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{ManualClock, UnixMillis};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    fn mailer(folder: &Path, from_name: &str) -> Mailer {
        let clock = Arc::new(ManualClock::at(UnixMillis(1_800_000_000_000)));
        let from = "portal@example.com".parse().unwrap();
        Mailer::new(&MailRoute::Outbox(folder.to_owned()), &from, from_name, clock).unwrap()
    }

    fn letter(subject: &str, text: &str) -> Letter {
        let to = "ann@example.com".parse().unwrap();
        Letter { to, subject: subject.to_owned(), text: text.to_owned() }
    }

    fn kept(folder: &Path) -> Vec<PathBuf> {
        let mut files: Vec<_> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    #[tokio::test]
    async fn letters_in_the_outbox_are_for_its_owner_alone() {
        let data = tempfile::tempdir().unwrap();
        let outbox = data.path().join("outbox");
        let mailer = mailer(&outbox, "Marlow & Finch");
        mailer.send(&letter("Your code", "123456\n")).await.unwrap();
        mailer.send(&letter("Your code", "654321\n")).await.unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&outbox), 0o700);
        let files = kept(&outbox);
        assert_eq!(files.len(), 2, "no letter takes another's place, and nothing else is left there");
        for file in files {
            assert_eq!(mode(&file), 0o600);
            let name = file.file_name().unwrap().to_str().unwrap().to_owned();
            assert!(name.starts_with("1800000000000-") && name.ends_with(".eml"), "{name}");
        }
    }

    #[tokio::test]
    async fn a_letter_is_plain_text_with_sender_receiver_subject_and_date() {
        let outbox = tempfile::tempdir().unwrap();
        mailer(outbox.path(), "Marlow & Finch")
            .send(&letter("Your code", "It is\n\n123456\n"))
            .await
            .unwrap();
        let text = std::fs::read_to_string(&kept(outbox.path())[0]).unwrap();
        let (headers, body) = text.split_once("\r\n\r\n").unwrap();
        for header in [
            "From: =?utf-8?b?TWFybG93ICYgRmluY2g=?= <portal@example.com>",
            "To: ann@example.com",
            "Subject: Your code",
            "Content-Type: text/plain; charset=utf-8",
            "Content-Transfer-Encoding: 7bit",
        ] {
            assert!(headers.lines().any(|line| line == header), "{header}: {headers}");
        }
        assert!(
            headers.lines().any(|line| line.starts_with("Message-ID: <") && line.ends_with("@example.com>"))
                && headers.contains("Date: "),
            "{headers}"
        );
        assert_eq!(body.trim_end(), "It is\r\n\r\n123456");
    }

    #[tokio::test]
    async fn no_subject_or_name_can_add_a_header_or_a_receiver() {
        let outbox = tempfile::tempdir().unwrap();
        for evil in [
            "x\r\nBcc: eve@evil.example",
            "x\nBcc: eve@evil.example",
            "x\rBcc: eve@evil.example",
            "x\r\n\r\nBcc: y",
        ] {
            mailer(outbox.path(), evil).send(&letter(evil, "hello\n")).await.unwrap();
        }
        assert_eq!(kept(outbox.path()).len(), 4);
        for file in kept(outbox.path()) {
            let bytes = std::fs::read(&file).unwrap();
            let text = String::from_utf8_lossy(&bytes);
            let (headers, _) = text.split_once("\r\n\r\n").unwrap();
            let starts: Vec<_> = headers.split(['\r', '\n']).filter(|line| line.starts_with("Bcc")).collect();
            assert!(starts.is_empty(), "{headers}");
            assert_eq!(headers.matches("\r\nTo: ").count(), 1, "{headers}");
        }
    }

    #[tokio::test]
    async fn a_name_of_any_script_is_written_so_that_every_mail_server_takes_it() {
        let outbox = tempfile::tempdir().unwrap();
        mailer(outbox.path(), "Müller & Søn 法律").send(&letter("Grüße", "plain\n")).await.unwrap();
        let bytes = std::fs::read(&kept(outbox.path())[0]).unwrap();
        assert!(bytes.is_ascii());
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.contains("From: \"=?utf-8?b?") || text.contains("From: =?utf-8?b?"), "{text}");
        assert!(text.contains("<portal@example.com>"), "{text}");
    }

    #[tokio::test]
    async fn letters_stay_a_day_in_the_outbox_and_other_files_for_good() {
        let outbox = tempfile::tempdir().unwrap();
        let folder = MailRoute::Outbox(outbox.path().join("outbox"));
        let clock = Arc::new(ManualClock::at(UnixMillis(1_800_000_000_000)));
        let from = "portal@example.com".parse().unwrap();
        let mailer = Mailer::new(&folder, &from, "Firm", Arc::<ManualClock>::clone(&clock)).unwrap();
        assert_eq!(mailer.forget_old_letters().await.unwrap(), 0, "there is no outbox yet");
        mailer.send(&letter("Your code", "123456\n")).await.unwrap();
        let other = outbox.path().join("outbox/1-notes.txt");
        std::fs::write(&other, "mine").unwrap();
        clock.advance(Duration::from_secs(24 * 60 * 60 - 1));
        mailer.send(&letter("Your code", "654321\n")).await.unwrap();
        assert_eq!(mailer.forget_old_letters().await.unwrap(), 0);
        clock.advance(Duration::from_secs(1));
        assert_eq!(mailer.forget_old_letters().await.unwrap(), 1);
        let left = kept(&outbox.path().join("outbox"));
        assert!(left.len() == 2 && left.contains(&other), "{left:?}");
    }

    #[tokio::test]
    async fn an_outbox_that_cannot_be_written_is_an_error_and_not_a_lost_letter() {
        let data = tempfile::tempdir().unwrap();
        let outbox = data.path().join("outbox");
        std::fs::write(&outbox, "in the way").unwrap();
        let error = mailer(&outbox, "Firm").send(&letter("Your code", "123456\n")).await.unwrap_err();
        assert!(error.to_string().contains("a letter could not be sent"), "{error}");
    }
}
