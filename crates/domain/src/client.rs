//! Client records: a client with contact details and one owner, and the dated entries of its history.

use crate::text::{LineMode, TextBounds, TextError};
use crate::{Day, EmailAddress, MinorUnits, PersonId, Telephone, UnixMillis, is_plain_mailbox};
use std::fmt;
use std::str::FromStr;

/// Longest name of a client, in characters.
pub const MAX_CLIENT_NAME_CHARS: usize = 200;
/// Longest single-line contact detail.
pub const MAX_CONTACT_FIELD_CHARS: usize = 200;
/// Longest postal address.
pub const MAX_ADDRESS_CHARS: usize = 500;
pub const MAX_ENTRY_TITLE_CHARS: usize = 200;
/// Longest text of a note, a dispute or a letter: about eight pages.
pub const MAX_ENTRY_TEXT_CHARS: usize = 20_000;

/// Sequential across the whole firm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(transparent)]
pub struct ClientId(pub i64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(transparent)]
pub struct EntryId(pub i64);

/// Version number of a client's details or of an entry, starting at 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(transparent)]
pub struct Version(pub i64);

/// A person as shown in records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PersonRef {
    pub id: PersonId,
    pub email: EmailAddress,
}

/// A text type with bounds. Text is trimmed, and line endings are `\n`.
macro_rules! bounded_text {
    ($(#[$doc:meta])* $name:ident, $bounds:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            pub const TEXT_BOUNDS: TextBounds = $bounds;

            /// Skips validation, because stored text may predate the current rules.
            pub fn from_stored(text: String) -> Self {
                Self(text)
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = TextError;

            fn from_str(text: &str) -> Result<Self, TextError> {
                Self::TEXT_BOUNDS.take(text).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

bounded_text!(
    ClientName,
    TextBounds { what: "the name", min_chars: 1, max_chars: MAX_CLIENT_NAME_CHARS, lines: LineMode::Single }
);
bounded_text!(
    /// A single-line contact detail; may be empty.
    ContactField,
    TextBounds { what: "this field", min_chars: 0, max_chars: MAX_CONTACT_FIELD_CHARS, lines: LineMode::Single }
);
bounded_text!(
    /// May be empty.
    PostalAddress,
    TextBounds { what: "the address", min_chars: 0, max_chars: MAX_ADDRESS_CHARS, lines: LineMode::Multiple }
);
bounded_text!(
    EntryTitle,
    TextBounds { what: "the title", min_chars: 1, max_chars: MAX_ENTRY_TITLE_CHARS, lines: LineMode::Single }
);
bounded_text!(
    /// The subject of a letter's email. One line without control characters, so that it cannot add headers.
    EmailSubject,
    TextBounds { what: "the subject", min_chars: 1, max_chars: MAX_ENTRY_TITLE_CHARS, lines: LineMode::Single }
);
bounded_text!(
    EntryText,
    TextBounds { what: "the text", min_chars: 1, max_chars: MAX_ENTRY_TEXT_CHARS, lines: LineMode::Multiple }
);

/// How to reach a client. Unknown details are empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContactDetails {
    /// The person to contact.
    pub contact: ContactField,
    pub email: ContactEmail,
    pub telephone: Telephone,
    pub address: PostalAddress,
    /// The day on which they became a client.
    pub since: Option<Day>,
}

impl Default for ContactDetails {
    fn default() -> Self {
        Self {
            contact: ContactField(String::new()),
            email: ContactEmail(String::new()),
            telephone: Telephone::empty(),
            address: PostalAddress(String::new()),
            since: None,
        }
    }
}

/// An email address outside the firm, or empty: one plain mailbox at any domain. A stored one may predate that rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(transparent)]
pub struct ContactEmail(String);

impl ContactEmail {
    pub fn from_stored(text: String) -> Self {
        Self(text)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ContactEmail {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let text = ContactField::TEXT_BOUNDS.take(text)?;
        if text.is_empty() || is_plain_mailbox(&text) {
            Ok(Self(text))
        } else {
            Err(TextError::NotAnEmailAddress)
        }
    }
}

impl fmt::Display for ContactEmail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    pub id: ClientId,
    pub name: ClientName,
    pub details: ContactDetails,
    pub owner: PersonRef,
    pub version: Version,
    pub created_at: UnixMillis,
    /// Archived clients are retained in full, but hidden from lists.
    pub archived_at: Option<UnixMillis>,
    /// Date of the newest entry that is not archived.
    pub last_entry_at: Option<UnixMillis>,
}

closed_enum! {
    pub enum EntryKind {
        MeetingNote = "meeting_note",
        BillingDispute = "billing_dispute",
        DraftLetter = "draft_letter",
    }
    error EntryKindError = "an entry's kind must be `meeting_note`, `billing_dispute` or `draft_letter`";
}

impl EntryKind {
    /// Whether such an entry can be open: a dispute to resolve, a letter to send.
    pub fn can_be_open(self) -> bool {
        self != Self::MeetingNote
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub id: EntryId,
    pub client: ClientId,
    pub kind: EntryKind,
    /// When it happened, as stated by the author.
    pub at: UnixMillis,
    pub author: PersonRef,
    pub title: EntryTitle,
    pub text: EntryText,
    /// An unresolved dispute or an unsent letter. Always false for a meeting note.
    pub is_open: bool,
    /// Empty unless the entry is a dispute.
    pub dispute: DisputeDetails,
    pub version: Version,
    pub archived_at: Option<UnixMillis>,
    /// How the letter was sent by email; it cannot be changed afterwards. `None` for a letter that went by post, too.
    pub sent: Option<SentLetter>,
}

/// The email that a letter was sent with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentLetter {
    pub at: UnixMillis,
    /// The client's address at that time.
    pub to: ContactEmail,
    pub by: PersonRef,
    pub subject: EmailSubject,
    pub heading: LetterHeading,
}

/// What is printed around the text of a letter. Stored with a sent letter, because client and firm can move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetterHeading {
    pub firm_name: String,
    /// The firm's address, in lines.
    pub letterhead: String,
    /// The client's name, contact and address, in lines.
    pub recipient: String,
    /// As printed: `13 November 2026`.
    pub date: String,
}

/// What a dispute has besides its text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DisputeDetails {
    /// The disputed amount, in the firm's currency.
    pub amount: Option<MinorUnits>,
    /// The day by which the dispute is to be resolved.
    pub due: Option<Day>,
}

closed_enum! {
    /// The state of a dispute, as people and programs read it. It follows from whether the entry is open.
    pub enum DisputeStatus {
        Open = "open",
        Resolved = "resolved",
    }
    error DisputeStatusError = "a dispute's status must be `open` or `resolved`";
}

impl DisputeStatus {
    pub fn of(is_open: bool) -> Self {
        if is_open { Self::Open } else { Self::Resolved }
    }

    pub fn is_open(self) -> bool {
        self == Self::Open
    }
}

macro_rules! impl_numeric_display {
    ($($name:ident)*) => {
        $(impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        })*
    };
}

impl_numeric_display!(ClientId EntryId Version);

impl Version {
    pub const FIRST: Self = Self(1);

    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contact_email_is_empty_or_one_plain_mailbox() {
        for good in ["", "  ", "priya@harbourlane.example", "a+b@büro.example"] {
            assert!(good.parse::<ContactEmail>().is_ok(), "{good:?} was refused");
        }
        for bad in [
            "priya",
            "@host",
            "priya@",
            "a b@host.example",
            "a@b@c",
            "a@b\u{202e}c",
            "A <a@b>",
            "a@[1.2.3.4]",
        ] {
            assert!(bad.parse::<ContactEmail>().is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn texts_are_trimmed_and_otherwise_unchanged() {
        assert_eq!("  Calder & Sons ".parse::<ClientName>().unwrap().as_str(), "Calder & Sons");
        assert_eq!("one\r\ntwo\r\n".parse::<EntryText>().unwrap().as_str(), "one\ntwo");
        assert!("".parse::<ClientName>().is_err() && " \n".parse::<EntryText>().is_err());
        assert!("two\nlines".parse::<EntryTitle>().is_err());
        assert!("x".repeat(MAX_ENTRY_TEXT_CHARS).parse::<EntryText>().is_ok());
        assert!("x".repeat(MAX_ENTRY_TEXT_CHARS + 1).parse::<EntryText>().is_err());
    }
}
