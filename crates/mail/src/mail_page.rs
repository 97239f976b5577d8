//! The newest emails of the outbox, for the page on which the email of a demo can be read. They are in memory, because only
//! this process sends them; the files of the outbox remain the record.

use chancery_domain::UnixMillis;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most emails that the page shows.
const MAX_EMAILS: usize = 100;

/// An email as its receiver would see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentEmail {
    pub to: String,
    /// Where replies go, if not to the sender.
    pub reply_to: Option<String>,
    pub subject: String,
    pub text: String,
    /// The file name of the attachment.
    pub attachment: Option<String>,
    pub at: UnixMillis,
}

pub(crate) struct MailPage {
    pub(crate) url: String,
    /// Newest first.
    emails: Mutex<VecDeque<SentEmail>>,
}

impl MailPage {
    pub(crate) fn new(url: String) -> Self {
        Self { url, emails: Mutex::default() }
    }

    pub(crate) fn add(&self, email: SentEmail) {
        let mut emails = self.emails();
        emails.push_front(email);
        emails.truncate(MAX_EMAILS);
    }

    pub(crate) fn read(&self) -> Vec<SentEmail> {
        self.emails().iter().cloned().collect()
    }

    fn emails(&self) -> MutexGuard<'_, VecDeque<SentEmail>> {
        self.emails.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
