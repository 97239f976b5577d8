//! What was done to a record, as an address says it (`done=`), and as the record's page tells it.

use chancery_domain::{ClientId, EntryKind};
use chancery_web::Notice;

/// What was done to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    Created,
    FactsSaved,
    Archived,
    Restored,
    Reassigned,
    Added(EntryKind),
    EntrySaved,
    EntryArchived,
    EntryRestored,
}

impl Done {
    const ALL: [Self; 11] = [
        Self::Created,
        Self::FactsSaved,
        Self::Archived,
        Self::Restored,
        Self::Reassigned,
        Self::Added(EntryKind::MeetingNote),
        Self::Added(EntryKind::BillingDispute),
        Self::Added(EntryKind::DraftLetter),
        Self::EntrySaved,
        Self::EntryArchived,
        Self::EntryRestored,
    ];

    /// As in `done=`.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::FactsSaved => "facts",
            Self::Archived => "archived",
            Self::Restored => "restored",
            Self::Reassigned => "reassigned",
            Self::Added(EntryKind::MeetingNote) => "note",
            Self::Added(EntryKind::BillingDispute) => "dispute",
            Self::Added(EntryKind::DraftLetter) => "letter",
            Self::EntrySaved => "entry",
            Self::EntryArchived => "entry-archived",
            Self::EntryRestored => "entry-restored",
        }
    }

    /// An address may be old, or made up: what it does not say well, it does not say.
    pub(super) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|done| done.as_str() == text)
    }

    pub(super) fn notice(self, client: ClientId) -> Notice {
        match self {
            Self::Created => Notice::good("Saved.", "The client has its number and its page."),
            Self::FactsSaved => Notice::good("Saved.", "The earlier facts are kept among the versions."),
            Self::Archived => Notice::good(
                "Archived.",
                "The client is kept whole, and left out of the list. You can take it out again below.",
            ),
            Self::Restored => Notice::good("Restored.", "The client is in the list again."),
            Self::Reassigned => Notice::good("Reassigned.", "From now on it is the new owner’s client."),
            Self::Added(EntryKind::MeetingNote) => Notice::good("Saved.", "The note is in the record."),
            Self::Added(EntryKind::BillingDispute) => Notice::good("Saved.", "The dispute is in the record."),
            Self::Added(EntryKind::DraftLetter) => Notice::good("Saved.", "The letter is in the record."),
            Self::EntrySaved => Notice::good("Saved.", "What it said before is kept among its versions."),
            Self::EntryArchived => {
                let mut notice = Notice::good("Archived.", "The entry is kept, and left out of the record.");
                notice.link = Some((format!("/clients/{client}?tab=archived"), "Show archived entries"));
                notice
            }
            Self::EntryRestored => Notice::good("Restored.", "The entry is in the record again."),
        }
    }
}
