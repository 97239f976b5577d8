//! Sends emails: through the outbox, so that they survive a crash and a mail server that is down, or once and at once.

use crate::email_payload::{email_message, message_id, random_email_id};
use chancery_domain::{Clock, Randomness, UnixMillis};
use chancery_mail::{Email, MailError, Mailer, SentEmail};
use chancery_store::{DbError, NewMessage, Outbox};
use std::sync::Arc;

pub struct OutboxMailer {
    outbox: Outbox,
    mailer: Arc<Mailer>,
    clock: Arc<dyn Clock>,
    randomness: Arc<dyn Randomness>,
}

impl OutboxMailer {
    pub fn new(
        outbox: Outbox,
        mailer: Arc<Mailer>,
        clock: Arc<dyn Clock>,
        randomness: Arc<dyn Randomness>,
    ) -> Self {
        Self { outbox, mailer, clock, randomness }
    }

    /// Stores the email. The worker of this process sends it at once, and again until `expires_at` while the mail
    /// server does not accept it.
    pub async fn enqueue(&self, email: &Email, expires_at: UnixMillis) -> Result<(), DbError> {
        self.enqueue_as(random_email_id(self.randomness.as_ref()), email, expires_at).await
    }

    /// Like `enqueue`, with an id by which the email can be deleted before it is sent.
    pub async fn enqueue_as(&self, id: String, email: &Email, expires_at: UnixMillis) -> Result<(), DbError> {
        self.outbox.enqueue_messages(&[self.message(id, email, expires_at)]).await
    }

    /// Sends the email now, without storing it; a failure is not retried. For an email that a person waits for and can
    /// request again.
    pub async fn send_now(&self, email: &Email) -> Result<(), MailError> {
        let message = self.message(random_email_id(self.randomness.as_ref()), email, self.clock.now());
        self.mailer.send(email, &message_id(&message)).await
    }

    /// Deletes old emails from the folder that gets them where there is no mail server.
    pub async fn delete_expired_emails(&self) -> Result<u64, MailError> {
        self.mailer.delete_expired_emails().await
    }

    /// Where the emails of a demo can be read.
    pub fn mail_page_url(&self) -> Option<&str> {
        self.mailer.mail_page_url()
    }

    /// The emails of a demo, newest first. `None` outside of a demo.
    pub fn sent_emails(&self) -> Option<Vec<SentEmail>> {
        self.mailer.sent_emails()
    }

    fn message(&self, id: String, email: &Email, expires_at: UnixMillis) -> NewMessage {
        email_message(email.clone(), id, self.clock.now(), expires_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_domain::{ManualClock, OsRandomness};
    use chancery_mail::MailRoute;
    use chancery_store::Store;
    use std::path::Path;
    use std::time::Duration;

    const TTL: Duration = Duration::from_secs(600);

    async fn mailer(data: &Path, clock: &Arc<ManualClock>) -> (OutboxMailer, Store) {
        let store = Store::open_file(&data.join("chancery.db")).await.unwrap();
        let (route, from) = (MailRoute::Outbox(data.join("outbox")), "portal@example.com".parse().unwrap());
        let shared: Arc<dyn Clock> = clock.clone();
        let mailer = Arc::new(Mailer::new(&route, &from, "Firm", Arc::clone(&shared)).unwrap());
        (OutboxMailer::new(store.outbox.clone(), mailer, shared, Arc::new(OsRandomness)), store)
    }

    fn email() -> Email {
        let to = "ann@example.com".parse().unwrap();
        Email { to, subject: "Your code".to_owned(), text: "123456\n".to_owned() }
    }

    #[tokio::test]
    async fn email_sent_now_is_never_stored() {
        let data = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::at(UnixMillis(1_800_000_000_000)));
        let (mailer, store) = mailer(data.path(), &clock).await;
        mailer.send_now(&email()).await.unwrap();
        assert_eq!(std::fs::read_dir(data.path().join("outbox")).unwrap().count(), 1);
        assert_eq!(store.outbox.next_attempt_at().await.unwrap(), None);
        std::fs::remove_dir_all(data.path().join("outbox")).unwrap();
        std::fs::write(data.path().join("outbox"), "in the way").unwrap();
        assert!(mailer.send_now(&email()).await.is_err());
        assert_eq!(store.outbox.next_attempt_at().await.unwrap(), None);
        store.close().await;
    }

    #[tokio::test]
    async fn enqueued_email_is_due_at_once_and_wakes_the_worker() {
        let data = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::at(UnixMillis(1_800_000_000_000)));
        let (mailer, store) = mailer(data.path(), &clock).await;
        mailer.enqueue(&email(), clock.now().after(TTL)).await.unwrap();
        assert_eq!(store.outbox.next_attempt_at().await.unwrap(), Some(clock.now()));
        store.outbox.wait_for_wake().await;
        store.close().await;
    }
}
