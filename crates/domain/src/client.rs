//! Client records: a client with its contact facts and one owner, and the dated entries that make up its history.

use crate::text::{Bounds, Lines, TextError};
use crate::{Day, EmailAddress, PersonId, UnixMillis};
use std::fmt;
use std::str::FromStr;

/// Longest name of a client, in characters.
pub const MAX_CLIENT_NAME_CHARS: usize = 200;
/// Longest contact fact of one line.
pub const MAX_FACT_CHARS: usize = 200;
/// Longest postal address.
pub const MAX_ADDRESS_CHARS: usize = 500;
pub const MAX_ENTRY_TITLE_CHARS: usize = 200;
/// Longest text of a note, a dispute or a letter: some eight pages.
pub const MAX_ENTRY_TEXT_CHARS: usize = 20_000;

/// Counts up from one client to the next, for all of the firm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(transparent)]
pub struct ClientId(pub i64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(transparent)]
pub struct EntryId(pub i64);

/// Counts the versions of a client's facts, or of an entry. The first is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(transparent)]
pub struct Version(pub i64);

/// Somebody as records name them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PersonRef {
    pub id: PersonId,
    pub email: EmailAddress,
}

/// What people write about a client, within bounds. Blanks at the ends are taken off; ends of lines are `\n`.
macro_rules! written {
    ($(#[$doc:meta])* $name:ident, $bounds:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            pub const BOUNDS: Bounds = $bounds;

            /// Takes a text back from the store, where it may be older than today's rule for new ones.
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
                Self::BOUNDS.take(text).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

written!(
    ClientName,
    Bounds { what: "the name", min_chars: 1, max_chars: MAX_CLIENT_NAME_CHARS, lines: Lines::One }
);
written!(
    /// A contact fact of one line; it may be empty.
    FactLine,
    Bounds { what: "this fact", min_chars: 0, max_chars: MAX_FACT_CHARS, lines: Lines::One }
);
written!(
    /// It may be empty.
    PostalAddress,
    Bounds { what: "the address", min_chars: 0, max_chars: MAX_ADDRESS_CHARS, lines: Lines::Many }
);
written!(
    EntryTitle,
    Bounds { what: "the title", min_chars: 1, max_chars: MAX_ENTRY_TITLE_CHARS, lines: Lines::One }
);
written!(
    EntryText,
    Bounds { what: "the text", min_chars: 1, max_chars: MAX_ENTRY_TEXT_CHARS, lines: Lines::Many }
);

/// How to reach a client. What is not known is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContactFacts {
    /// Whom one speaks to.
    pub contact: FactLine,
    pub email: ContactEmail,
    pub telephone: FactLine,
    pub address: PostalAddress,
    /// The day from which they have been a client.
    pub since: Option<Day>,
}

impl Default for ContactFacts {
    fn default() -> Self {
        Self {
            contact: FactLine(String::new()),
            email: ContactEmail(String::new()),
            telephone: FactLine(String::new()),
            address: PostalAddress(String::new()),
            since: None,
        }
    }
}

/// An address that somebody outside the firm reads, or nothing. It only has to look like one: nothing is decided by it.
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
        let text = FactLine::BOUNDS.take(text)?;
        let looks_right = |(name, host): (&str, &str)| {
            !name.is_empty()
                && !host.is_empty()
                && !host.contains('@')
                && !text.chars().any(char::is_whitespace)
        };
        match text.is_empty() || text.split_once('@').is_some_and(looks_right) {
            true => Ok(Self(text)),
            false => Err(TextError::NotAnEmailAddress),
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
    pub facts: ContactFacts,
    pub owner: PersonRef,
    pub version: Version,
    pub created_at: UnixMillis,
    /// Archived clients are kept whole, and left out of lists.
    pub archived_at: Option<UnixMillis>,
    /// When the newest entry that is not archived happened.
    pub last_entry_at: Option<UnixMillis>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EntryKind {
    MeetingNote,
    BillingDispute,
    DraftLetter,
}

impl EntryKind {
    pub const ALL: [Self; 3] = [Self::MeetingNote, Self::BillingDispute, Self::DraftLetter];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::MeetingNote => "meeting_note",
            Self::BillingDispute => "billing_dispute",
            Self::DraftLetter => "draft_letter",
        }
    }

    /// Whether something may be left to do about one: a dispute to settle, a letter to send.
    pub fn can_be_open(self) -> bool {
        self != Self::MeetingNote
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a kind of entry is `meeting_note`, `billing_dispute` or `draft_letter`")]
pub struct EntryKindError;

impl FromStr for EntryKind {
    type Err = EntryKindError;

    fn from_str(text: &str) -> Result<Self, EntryKindError> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text).ok_or(EntryKindError)
    }
}

impl fmt::Display for EntryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub id: EntryId,
    pub client: ClientId,
    pub kind: EntryKind,
    /// When it happened, which the author says.
    pub at: UnixMillis,
    pub author: PersonRef,
    pub title: EntryTitle,
    pub text: EntryText,
    /// A dispute that is not settled, a letter that was not sent. Never of a meeting note.
    pub is_open: bool,
    pub version: Version,
    pub archived_at: Option<UnixMillis>,
}

macro_rules! shown_as_a_number {
    ($($name:ident)*) => {
        $(impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        })*
    };
}

shown_as_a_number!(ClientId EntryId Version);

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
    fn a_contact_address_is_empty_or_looks_like_one() {
        for good in ["", "  ", "priya@harbourlane.example", "a+b@büro.example"] {
            assert!(good.parse::<ContactEmail>().is_ok(), "{good:?} was refused");
        }
        for bad in ["priya", "@host", "priya@", "a b@host.example", "a@b@c", "a@b\u{202e}c"] {
            assert!(bad.parse::<ContactEmail>().is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn names_and_texts_keep_their_words_and_lose_only_the_blanks_around_them() {
        assert_eq!("  Calder & Sons ".parse::<ClientName>().unwrap().as_str(), "Calder & Sons");
        assert_eq!("one\r\ntwo\r\n".parse::<EntryText>().unwrap().as_str(), "one\ntwo");
        assert!("".parse::<ClientName>().is_err() && " \n".parse::<EntryText>().is_err());
        assert!("two\nlines".parse::<EntryTitle>().is_err());
        assert!("x".repeat(MAX_ENTRY_TEXT_CHARS).parse::<EntryText>().is_ok());
        assert!("x".repeat(MAX_ENTRY_TEXT_CHARS + 1).parse::<EntryText>().is_err());
    }
}
