//! View model of an entry in the timeline.

use super::text::FoldedText;
use crate::person_names::{DisplayPerson, PersonNames};
use crate::time_format::{DisplayTime, LocalTime};
use chancery_domain::{Entry, EntryKind};

pub(crate) struct EntryView {
    pub(crate) id: i64,
    pub(crate) labels: EntryKindLabels,
    pub(crate) title: String,
    pub(crate) badge: Option<Badge>,
    pub(crate) author: DisplayPerson,
    pub(crate) at: DisplayTime,
    pub(crate) text: FoldedText,
    pub(crate) is_letter: bool,
    pub(crate) is_archived: bool,
    pub(crate) version: i64,
    pub(crate) edit_href: String,
}

pub(crate) struct Badge {
    pub(crate) class: &'static str,
    pub(crate) label: &'static str,
}

/// Labels for a kind of entry.
#[derive(Clone, Copy)]
pub(crate) struct EntryKindLabels {
    /// CSS class of the timeline's marker.
    pub(crate) class: &'static str,
    pub(crate) noun: &'static str,
    /// Lower-case noun for use in a sentence.
    pub(crate) lower: &'static str,
    /// Label of the checkbox for open entries; empty if the kind cannot be open.
    pub(crate) open_label: &'static str,
    pub(crate) text_label: &'static str,
}

pub(crate) fn entry_kind_labels(kind: EntryKind) -> EntryKindLabels {
    match kind {
        EntryKind::MeetingNote => EntryKindLabels {
            class: "is-note",
            noun: "Meeting note",
            lower: "note",
            open_label: "",
            text_label: "Note",
        },
        EntryKind::BillingDispute => EntryKindLabels {
            class: "is-dispute",
            noun: "Dispute",
            lower: "dispute",
            open_label: "Open",
            text_label: "Description",
        },
        EntryKind::DraftLetter => EntryKindLabels {
            class: "is-letter",
            noun: "Letter",
            lower: "letter",
            open_label: "Draft",
            text_label: "Letter",
        },
    }
}

pub(crate) fn badge(kind: EntryKind, is_open: bool) -> Option<Badge> {
    let (class, label) = match (kind, is_open) {
        (EntryKind::MeetingNote, _) => return None,
        (EntryKind::BillingDispute, true) => ("badge-open", "Open"),
        (EntryKind::BillingDispute, false) => ("badge-settled", "Settled"),
        (EntryKind::DraftLetter, true) => ("badge-draft", "Draft"),
        (EntryKind::DraftLetter, false) => ("badge-issued", "Sent"),
    };
    Some(Badge { class, label })
}

impl EntryView {
    pub(super) fn new(entry: &Entry, edit_href: String, names: &PersonNames, local: &LocalTime) -> Self {
        Self {
            id: entry.id.0,
            labels: entry_kind_labels(entry.kind),
            title: entry.title.to_string(),
            badge: badge(entry.kind, entry.is_open),
            author: names.of_ref(&entry.author),
            at: DisplayTime::new(entry.at, local),
            text: FoldedText::new(entry.text.as_str()),
            is_letter: entry.kind == EntryKind::DraftLetter,
            is_archived: entry.archived_at.is_some(),
            version: entry.version.0,
            edit_href,
        }
    }
}
