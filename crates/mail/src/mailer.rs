//! Sends one email per call, with time-outs.

use crate::mail_page::MailPage;
use crate::outbox;
use crate::{MailRoute, MailRouteError, SentEmail};
use chancery_domain::{Clock, EmailAddress, is_plain_mailbox};
use lettre::message::header::ContentType;
use lettre::message::{Attachment, Mailbox, MultiPart, SinglePart};
use lettre::transport::smtp;
use lettre::transport::smtp::response::Category;
use lettre::{Address, AsyncSmtpTransport, AsyncTransport, Message, Tokio1Executor};
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Time-out of each SMTP command.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);
/// Time-out of the whole delivery. A user is waiting for it.
const SEND_TIMEOUT: Duration = Duration::from_secs(20);

/// A plain-text email.
#[derive(Clone, Debug)]
pub struct Email {
    pub to: Recipient,
    pub subject: String,
    pub text: String,
}

/// What an email can have besides its text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EmailExtras {
    /// Where replies go, if not to the sender.
    pub reply_to: Option<Recipient>,
    pub attachment: Option<PdfAttachment>,
}

#[derive(Clone, PartialEq, Eq)]
pub struct PdfAttachment {
    pub file_name: String,
    pub pdf: Vec<u8>,
}

/// Letters are private, so logs do not show them.
impl std::fmt::Debug for PdfAttachment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PdfAttachment").field("bytes", &self.pdf.len()).finish_non_exhaustive()
    }
}

/// An address that email can be sent to: one plain mailbox. It accepts more than `EmailAddress`: whoever only receives email signs in
/// nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipient(String);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no email can be sent to this address; use an address such as bills@example.com")]
pub struct RecipientError;

impl Recipient {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Recipient {
    type Err = RecipientError;

    fn from_str(text: &str) -> Result<Self, RecipientError> {
        if is_plain_mailbox(text) && text.parse::<Address>().is_ok() {
            Ok(Self(text.to_owned()))
        } else {
            Err(RecipientError)
        }
    }
}

impl From<EmailAddress> for Recipient {
    fn from(address: EmailAddress) -> Self {
        Self(address.as_str().to_owned())
    }
}

/// For the log only: it may name the server and contain its reply.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct MailError {
    text: String,
    is_permanent: bool,
}

impl MailError {
    /// Whether another attempt would fail too.
    pub fn is_permanent(&self) -> bool {
        self.is_permanent
    }

    fn temporary(error: &dyn Display) -> Self {
        Self { text: format!("email not sent: {error}"), is_permanent: false }
    }

    fn permanent(error: &dyn Display) -> Self {
        Self { is_permanent: true, ..Self::temporary(error) }
    }

    /// 53x replies are about our password: the email can be sent once that is corrected.
    fn from_smtp(error: &smtp::Error) -> Self {
        let is_about_password = error.status().is_some_and(|code| code.category == Category::Unspecified3);
        match error.is_permanent() && !is_about_password {
            true => Self::permanent(error),
            false => Self::temporary(error),
        }
    }
}

pub struct Mailer {
    from: Mailbox,
    /// The sender's domain, used in `Message-ID` as mail servers expect.
    id_domain: String,
    transport: Transport,
    /// Set only in a demo.
    mail_page: OnceLock<MailPage>,
    clock: Arc<dyn Clock>,
}

enum Transport {
    Smtp(AsyncSmtpTransport<Tokio1Executor>),
    Outbox(PathBuf),
}

impl Mailer {
    /// `from_name` is the firm's name, shown to recipients.
    pub fn new(
        route: &MailRoute,
        from: &EmailAddress,
        from_name: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, MailRouteError> {
        let invalid = |error: &dyn Display| MailRouteError::Invalid(error.to_string());
        let address: Address = from.as_str().parse().map_err(|error| invalid(&error))?;
        let transport = match route {
            MailRoute::Outbox(folder) => Transport::Outbox(folder.clone()),
            MailRoute::Smtp(url) => {
                let builder =
                    AsyncSmtpTransport::<Tokio1Executor>::from_url(url).map_err(|error| invalid(&error))?;
                Transport::Smtp(builder.timeout(Some(STEP_TIMEOUT)).build())
            }
        };
        let id_domain = address.domain().to_owned();
        let from = Mailbox::new(Some(one_line(from_name)), address);
        Ok(Self { from, id_domain, transport, mail_page: OnceLock::new(), clock })
    }

    /// From now on, the emails of the outbox can be read at the URL, by anyone who can reach it: for a demo, which serves
    /// one machine only. With SMTP there is no outbox, and nothing changes.
    pub fn open_mail_page(&self, url: String) {
        if let Transport::Outbox(_) = self.transport {
            self.mail_page.get_or_init(|| MailPage::new(url));
        }
    }

    /// Where the emails of a demo can be read.
    pub fn mail_page_url(&self) -> Option<&str> {
        self.mail_page.get().map(|page| page.url.as_str())
    }

    /// The emails since `open_mail_page`, newest first. `None` without that page.
    pub fn sent_emails(&self) -> Option<Vec<SentEmail>> {
        self.mail_page.get().map(MailPage::read)
    }

    /// Returns once the mail server, or the outbox, has accepted the email. `id` is the same at every attempt, so that
    /// the receiver recognizes an email that arrives twice.
    pub async fn send(&self, email: &Email, id: &str) -> Result<(), MailError> {
        self.send_with(email, &EmailExtras::default(), id).await
    }

    /// Like `send`, with an address for replies or a PDF.
    pub async fn send_with(&self, email: &Email, extras: &EmailExtras, id: &str) -> Result<(), MailError> {
        let message = self.message(email, extras, id)?;
        let failed = MailError::temporary;
        match &self.transport {
            Transport::Smtp(smtp) => match tokio::time::timeout(SEND_TIMEOUT, smtp.send(message)).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(error)) => Err(MailError::from_smtp(&error)),
                Err(_) => Err(failed(&format!("the mail server timed out after {SEND_TIMEOUT:?}"))),
            },
            Transport::Outbox(folder) => {
                let (folder, at) = (folder.clone(), self.clock.now());
                let storing = tokio::task::spawn_blocking(move || {
                    outbox::store_email(&folder, &message.formatted(), at)
                });
                storing.await.map_err(|error| failed(&error))?.map_err(|error| failed(&error))?;
                if let Some(mail_page) = self.mail_page.get() {
                    mail_page.add(SentEmail {
                        to: email.to.as_str().to_owned(),
                        reply_to: extras.reply_to.as_ref().map(|address| address.as_str().to_owned()),
                        subject: one_line(&email.subject),
                        text: email.text.clone(),
                        attachment: extras.attachment.as_ref().map(|attachment| attachment.file_name.clone()),
                        at,
                    });
                }
                Ok(())
            }
        }
    }

    fn message(&self, email: &Email, extras: &EmailExtras, id: &str) -> Result<Message, MailError> {
        let mut builder = Message::builder()
            .from(self.from.clone())
            .to(mailbox(&email.to)?)
            .subject(one_line(&email.subject))
            .message_id(Some(format!("<{id}@{}>", self.id_domain)));
        if let Some(reply_to) = &extras.reply_to {
            builder = builder.reply_to(mailbox(reply_to)?);
        }
        let message = match &extras.attachment {
            None => builder.header(ContentType::TEXT_PLAIN).body(email.text.clone()),
            Some(PdfAttachment { file_name, pdf }) => {
                let pdf_type = ContentType::parse("application/pdf");
                let pdf_type = pdf_type.map_err(|error| MailError::permanent(&error))?;
                let attachment = Attachment::new(one_line(file_name)).body(pdf.clone(), pdf_type);
                let text = SinglePart::plain(email.text.clone());
                builder.multipart(MultiPart::mixed().singlepart(text).singlepart(attachment))
            }
        };
        message.map_err(|error| MailError::permanent(&error))
    }

    /// Deletes emails older than a day from the outbox and returns their number. With SMTP there is nothing to delete.
    pub async fn delete_expired_emails(&self) -> Result<u64, MailError> {
        let Transport::Outbox(folder) = &self.transport else { return Ok(0) };
        let (folder, now) = (folder.clone(), self.clock.now());
        let failed = |error: &dyn Display| MailError {
            text: format!("expired emails not deleted from the outbox: {error}"),
            is_permanent: false,
        };
        let deletion = tokio::task::spawn_blocking(move || outbox::delete_expired(&folder, now));
        deletion.await.map_err(|error| failed(&error))?.map_err(|error| failed(&error))
    }
}

fn mailbox(recipient: &Recipient) -> Result<Mailbox, MailError> {
    let address: Address = recipient.as_str().parse().map_err(|error| MailError::permanent(&error))?;
    Ok(Mailbox::new(None, address))
}

/// Prevents header injection, and removes what lettre rejects.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{ManualClock, UnixMillis};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt};

    fn mailer(folder: &Path, from_name: &str) -> Mailer {
        let clock = Arc::new(ManualClock::at(UnixMillis(1_800_000_000_000)));
        let from = "portal@example.com".parse().unwrap();
        Mailer::new(&MailRoute::Outbox(folder.to_owned()), &from, from_name, clock).unwrap()
    }

    fn email(subject: &str, text: &str) -> Email {
        let to = "ann@example.com".parse().unwrap();
        Email { to, subject: subject.to_owned(), text: text.to_owned() }
    }

    fn stored_files(folder: &Path) -> Vec<PathBuf> {
        let mut files: Vec<_> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    #[tokio::test]
    async fn sent_emails_are_listed_only_after_the_mail_page_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let mailer = mailer(folder.path(), "Hale & Ward");
        mailer.send(&email("Before", "Not listed."), "1").await.unwrap();
        assert_eq!((mailer.sent_emails(), mailer.mail_page_url()), (None, None));
        mailer.open_mail_page("http://localhost:8081/mail".to_owned());
        for subject in ["First", "Second"] {
            mailer.send(&email(subject, "Your code is 123456."), subject).await.unwrap();
        }
        let listed = mailer.sent_emails().unwrap();
        let subjects: Vec<&str> = listed.iter().map(|email| email.subject.as_str()).collect();
        assert_eq!(subjects, ["Second", "First"]);
        assert_eq!(
            (listed[0].to.as_str(), listed[0].text.as_str()),
            ("ann@example.com", "Your code is 123456.")
        );
        assert_eq!(mailer.mail_page_url(), Some("http://localhost:8081/mail"));
    }

    #[tokio::test]
    async fn outbox_files_are_readable_by_the_owner_only() {
        let data = tempfile::tempdir().unwrap();
        let outbox = data.path().join("outbox");
        let mailer = mailer(&outbox, "Marlow & Finch");
        mailer.send(&email("Your code", "123456\n"), "eml_1").await.unwrap();
        mailer.send(&email("Your code", "654321\n"), "eml_2").await.unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&outbox), 0o700);
        let files = stored_files(&outbox);
        assert_eq!(files.len(), 2, "no letter takes another's place, and nothing else is left there");
        for file in files {
            assert_eq!(mode(&file), 0o600);
            let name = file.file_name().unwrap().to_str().unwrap().to_owned();
            assert!(name.starts_with("1800000000000-") && name.ends_with(".eml"), "{name}");
        }
    }

    #[tokio::test]
    async fn email_is_plain_text_with_standard_headers() {
        let outbox = tempfile::tempdir().unwrap();
        mailer(outbox.path(), "Marlow & Finch")
            .send(&email("Your code", "It is\n\n123456\n"), "evt_1.0a")
            .await
            .unwrap();
        let text = std::fs::read_to_string(&stored_files(outbox.path())[0]).unwrap();
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
            headers.lines().any(|line| line == "Message-ID: <evt_1.0a@example.com>")
                && headers.contains("Date: "),
            "{headers}"
        );
        assert_eq!(body.trim_end(), "It is\r\n\r\n123456");
    }

    #[tokio::test]
    async fn subject_and_sender_name_cannot_inject_headers() {
        let outbox = tempfile::tempdir().unwrap();
        for evil in [
            "x\r\nBcc: eve@evil.example",
            "x\nBcc: eve@evil.example",
            "x\rBcc: eve@evil.example",
            "x\r\n\r\nBcc: y",
        ] {
            mailer(outbox.path(), evil).send(&email(evil, "hello\n"), "eml_1").await.unwrap();
        }
        assert_eq!(stored_files(outbox.path()).len(), 4);
        for file in stored_files(outbox.path()) {
            let bytes = std::fs::read(&file).unwrap();
            let text = String::from_utf8_lossy(&bytes);
            let (headers, _) = text.split_once("\r\n\r\n").unwrap();
            let starts: Vec<_> = headers.split(['\r', '\n']).filter(|line| line.starts_with("Bcc")).collect();
            assert!(starts.is_empty(), "{headers}");
            assert_eq!(headers.matches("\r\nTo: ").count(), 1, "{headers}");
        }
    }

    #[tokio::test]
    async fn letter_has_a_reply_address_and_a_pdf_and_its_file_name_cannot_inject_headers() {
        let outbox = tempfile::tempdir().unwrap();
        let extras = EmailExtras {
            reply_to: Some("maya@example.com".parse().unwrap()),
            attachment: Some(PdfAttachment {
                file_name: "letter\r\nBcc: eve@evil.example.pdf".to_owned(),
                pdf: b"%PDF-1.7 letter".to_vec(),
            }),
        };
        let mailer = mailer(outbox.path(), "Marlow & Finch");
        mailer.send_with(&email("Your lease", "Dear Priya\n"), &extras, "eml_1").await.unwrap();
        let text = std::fs::read_to_string(&stored_files(outbox.path())[0]).unwrap();
        for part in [
            "Reply-To: maya@example.com\r\n",
            "Content-Type: multipart/mixed;",
            "Content-Type: application/pdf\r\n",
            "Dear Priya",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("\r\nBcc:"), "{text}");
        assert!(!format!("{extras:?}").contains("letter"), "logs show nothing of a letter");
    }

    #[tokio::test]
    async fn non_ascii_sender_names_are_encoded() {
        let outbox = tempfile::tempdir().unwrap();
        mailer(outbox.path(), "Müller & Søn 法律").send(&email("Grüße", "plain\n"), "eml_1").await.unwrap();
        let bytes = std::fs::read(&stored_files(outbox.path())[0]).unwrap();
        assert!(bytes.is_ascii());
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.contains("From: \"=?utf-8?b?") || text.contains("From: =?utf-8?b?"), "{text}");
        assert!(text.contains("<portal@example.com>"), "{text}");
    }

    #[tokio::test]
    async fn outbox_deletes_emails_after_a_day_and_no_other_files() {
        let outbox = tempfile::tempdir().unwrap();
        let folder = MailRoute::Outbox(outbox.path().join("outbox"));
        let clock = Arc::new(ManualClock::at(UnixMillis(1_800_000_000_000)));
        let from = "portal@example.com".parse().unwrap();
        let mailer = Mailer::new(&folder, &from, "Firm", Arc::<ManualClock>::clone(&clock)).unwrap();
        assert_eq!(mailer.delete_expired_emails().await.unwrap(), 0, "there is no outbox yet");
        mailer.send(&email("Your code", "123456\n"), "eml_1").await.unwrap();
        let other = outbox.path().join("outbox/1-notes.txt");
        std::fs::write(&other, "mine").unwrap();
        clock.advance(Duration::from_secs(24 * 60 * 60 - 1));
        mailer.send(&email("Your code", "654321\n"), "eml_2").await.unwrap();
        assert_eq!(mailer.delete_expired_emails().await.unwrap(), 0);
        clock.advance(Duration::from_secs(1));
        assert_eq!(mailer.delete_expired_emails().await.unwrap(), 1);
        let left = stored_files(&outbox.path().join("outbox"));
        assert!(left.len() == 2 && left.contains(&other), "{left:?}");
    }

    /// Accepts connections and replies to each line with the next reply.
    async fn rejecting_server(replies: &'static [&'static str]) -> MailRoute {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let (read, mut write) = stream.into_split();
            let mut lines = tokio::io::BufReader::new(read).lines();
            for reply in replies {
                write.write_all(format!("{reply}\r\n").as_bytes()).await.unwrap();
                let Ok(Some(_)) = lines.next_line().await else { return };
            }
        });
        MailRoute::Smtp(format!("smtp://{address}"))
    }

    #[tokio::test]
    async fn only_rejections_for_good_are_permanent() {
        for (replies, is_permanent) in [
            (&["220 hello", "250 hello", "250 ok", "550 no such user", "221 bye"], true),
            (&["220 hello", "250 hello", "250 ok", "450 try later", "221 bye"], false),
            (&["220 hello", "250 hello", "530 authentication required", "221 bye", "221 bye"], false),
        ] {
            let clock = Arc::new(ManualClock::at(UnixMillis(1_800_000_000_000)));
            let from = "portal@example.com".parse().unwrap();
            let mailer = Mailer::new(&rejecting_server(replies).await, &from, "Firm", clock).unwrap();
            let error = mailer.send(&email("Your code", "123456\n"), "eml_1").await.unwrap_err();
            assert_eq!(error.is_permanent(), is_permanent, "{error}");
        }
    }

    #[test]
    fn recipients_may_have_addresses_that_nobody_can_sign_in_with() {
        for address in ["bills@hale.example", "Bills@Hale.example", "a/b=c@hale.example", "a@büro.example"] {
            assert_eq!(address.parse::<Recipient>().map(|to| to.as_str() == address), Ok(true), "{address}");
        }
        for address in
            ["", "bills", "bills@", "a b@hale.example", "a..b@hale.example", "<bills@hale.example>"]
        {
            assert_eq!(address.parse::<Recipient>(), Err(RecipientError), "{address}");
        }
    }

    #[tokio::test]
    async fn unwritable_outbox_is_an_error() {
        let data = tempfile::tempdir().unwrap();
        let outbox = data.path().join("outbox");
        std::fs::write(&outbox, "in the way").unwrap();
        let error = mailer(&outbox, "Firm").send(&email("Your code", "123456\n"), "eml_1").await.unwrap_err();
        assert!(error.to_string().contains("email not sent"), "{error}");
    }
}
