//! View model of an entry in the timeline.

use super::text::FoldedText;
use crate::person_names::{DisplayPerson, PersonNames};
use crate::time_format::{DisplayTime, LocalTime, long_day};
use chancery_domain::{Currency, Entry, EntryKind, SentLetter};

pub(crate) struct EntryView {
    pub(crate) id: i64,
    pub(crate) labels: EntryKindLabels,
    pub(crate) title: String,
    pub(crate) badge: Option<Badge>,
    pub(crate) author: DisplayPerson,
    pub(crate) at: DisplayTime,
    /// The disputed amount.
    pub(crate) amount: Option<String>,
    pub(crate) due: Option<DueDate>,
    pub(crate) text: FoldedText,
    pub(crate) is_letter: bool,
    pub(crate) is_archived: bool,
    pub(crate) version: i64,
    pub(crate) edit_href: String,
    pub(crate) sent: Option<SentView>,
}

/// How a letter was sent.
pub(crate) struct SentView {
    pub(crate) to: String,
    pub(crate) at: DisplayTime,
    pub(crate) by: DisplayPerson,
    pub(crate) subject: String,
}

impl SentView {
    pub(crate) fn new(sent: &SentLetter, names: &PersonNames, local: &LocalTime) -> Self {
        Self {
            to: sent.to.to_string(),
            at: DisplayTime::new(sent.at, local),
            by: names.of_ref(&sent.by),
            subject: sent.subject.to_string(),
        }
    }
}

/// A due date as ISO 8601 and as text.
pub(crate) struct DueDate {
    pub(crate) iso: String,
    pub(crate) text: String,
    /// The dispute is still open after that day.
    pub(crate) is_overdue: bool,
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
        (EntryKind::BillingDispute, false) => ("badge-settled", "Resolved"),
        (EntryKind::DraftLetter, true) => ("badge-draft", "Draft"),
        (EntryKind::DraftLetter, false) => ("badge-issued", "Sent"),
    };
    Some(Badge { class, label })
}

impl EntryView {
    pub(super) fn new(
        entry: &Entry,
        edit_href: String,
        (names, local, currency): (&PersonNames, &LocalTime, Currency),
    ) -> Self {
        Self {
            id: entry.id.0,
            labels: entry_kind_labels(entry.kind),
            title: entry.title.to_string(),
            badge: badge(entry.kind, entry.is_open),
            author: names.of_ref(&entry.author),
            at: DisplayTime::new(entry.at, local),
            amount: entry.dispute.amount.map(|amount| currency.format_amount(amount)),
            due: entry.dispute.due.map(|day| DueDate {
                iso: day.to_string(),
                text: long_day(day),
                is_overdue: entry.is_open && day < local.today(),
            }),
            text: FoldedText::new(entry.text.as_str()),
            is_letter: entry.kind == EntryKind::DraftLetter,
            is_archived: entry.archived_at.is_some(),
            version: entry.version.0,
            edit_href,
            sent: entry.sent.as_ref().map(|sent| SentView::new(sent, names, local)),
        }
    }
}
