//! An entry as the timeline shows it.

use super::text::Shown;
use crate::when::Moment;
use chancery_domain::{Entry, EntryKind, UnixMillis};

pub(crate) struct EntryView {
    pub(crate) id: i64,
    pub(crate) words: KindWords,
    pub(crate) title: String,
    pub(crate) badge: Option<Badge>,
    pub(crate) author: String,
    pub(crate) at: Moment,
    pub(crate) text: Shown,
    pub(crate) is_letter: bool,
    pub(crate) is_archived: bool,
    pub(crate) version: i64,
    pub(crate) edit_href: String,
}

pub(crate) struct Badge {
    pub(crate) class: &'static str,
    pub(crate) word: &'static str,
}

/// What pages call a kind of entry.
#[derive(Clone, Copy)]
pub(crate) struct KindWords {
    /// Of the timeline's mark.
    pub(crate) class: &'static str,
    pub(crate) noun: &'static str,
    /// In a sentence.
    pub(crate) lower: &'static str,
    /// Beside the box that says that something is left to do about it; empty where nothing ever is.
    pub(crate) open_label: &'static str,
    pub(crate) text_label: &'static str,
}

pub(crate) fn kind_words(kind: EntryKind) -> KindWords {
    match kind {
        EntryKind::MeetingNote => KindWords {
            class: "is-note",
            noun: "Meeting note",
            lower: "note",
            open_label: "",
            text_label: "Note",
        },
        EntryKind::BillingDispute => KindWords {
            class: "is-dispute",
            noun: "Dispute",
            lower: "dispute",
            open_label: "Still open",
            text_label: "What it is about",
        },
        EntryKind::DraftLetter => KindWords {
            class: "is-letter",
            noun: "Letter",
            lower: "letter",
            open_label: "Not sent yet",
            text_label: "Letter",
        },
    }
}

pub(crate) fn badge(kind: EntryKind, is_open: bool) -> Option<Badge> {
    let (class, word) = match (kind, is_open) {
        (EntryKind::MeetingNote, _) => return None,
        (EntryKind::BillingDispute, true) => ("badge-open", "Open"),
        (EntryKind::BillingDispute, false) => ("badge-settled", "Settled"),
        (EntryKind::DraftLetter, true) => ("badge-draft", "Draft"),
        (EntryKind::DraftLetter, false) => ("badge-issued", "Sent"),
    };
    Some(Badge { class, word })
}

impl EntryView {
    pub(super) fn new(entry: &Entry, edit_href: String, now: UnixMillis) -> Self {
        Self {
            id: entry.id.0,
            words: kind_words(entry.kind),
            title: entry.title.to_string(),
            badge: badge(entry.kind, entry.is_open),
            author: entry.author.email.to_string(),
            at: Moment::new(entry.at, now),
            text: Shown::new(entry.text.as_str()),
            is_letter: entry.kind == EntryKind::DraftLetter,
            is_archived: entry.archived_at.is_some(),
            version: entry.version.0,
            edit_href,
        }
    }
}
