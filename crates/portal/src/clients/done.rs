//! The change that a record's page confirms, as the `done=` parameter and as a notice.

use chancery_domain::{ClientId, EntryKind};
use chancery_web::Notice;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompletedChange {
    Created,
    DetailsSaved,
    Archived,
    Restored,
    Reassigned,
    Added(EntryKind),
    EntrySaved,
    EntryArchived,
    EntryRestored,
    VersionRestored,
    EntryVersionRestored,
}

impl CompletedChange {
    const ALL: [Self; 13] = [
        Self::Created,
        Self::DetailsSaved,
        Self::Archived,
        Self::Restored,
        Self::Reassigned,
        Self::Added(EntryKind::MeetingNote),
        Self::Added(EntryKind::BillingDispute),
        Self::Added(EntryKind::DraftLetter),
        Self::EntrySaved,
        Self::EntryArchived,
        Self::EntryRestored,
        Self::VersionRestored,
        Self::EntryVersionRestored,
    ];

    /// The value of `done=`.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::DetailsSaved => "facts",
            Self::Archived => "archived",
            Self::Restored => "restored",
            Self::Reassigned => "reassigned",
            Self::Added(EntryKind::MeetingNote) => "note",
            Self::Added(EntryKind::BillingDispute) => "dispute",
            Self::Added(EntryKind::DraftLetter) => "letter",
            Self::EntrySaved => "entry",
            Self::EntryArchived => "entry-archived",
            Self::EntryRestored => "entry-restored",
            Self::VersionRestored => "version",
            Self::EntryVersionRestored => "entry-version",
        }
    }

    /// Ignores unknown values: the URL may be old or made up.
    pub(super) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|done| done.as_str() == text)
    }

    pub(super) fn notice(self, client: ClientId) -> Notice {
        match self {
            Self::Created => Notice::success("Client created.", ""),
            Self::DetailsSaved => Notice::success("Details saved.", "Earlier versions are in the history."),
            Self::Archived => Notice::success("Client archived.", "Hidden from the list. Restore it below."),
            Self::Restored => Notice::success("Client restored.", "It is back in the list."),
            Self::Reassigned => Notice::success("Client reassigned.", ""),
            Self::Added(EntryKind::MeetingNote) => Notice::success("Note added.", ""),
            Self::Added(EntryKind::BillingDispute) => Notice::success("Dispute added.", ""),
            Self::Added(EntryKind::DraftLetter) => Notice::success("Letter added.", ""),
            Self::EntrySaved => Notice::success("Saved.", "Earlier versions are in the history."),
            Self::EntryArchived => {
                let mut notice = Notice::success("Entry archived.", "You can restore it any time.");
                notice.link = Some((format!("/clients/{client}?tab=archived"), "Show archived entries"));
                notice
            }
            Self::EntryRestored => Notice::success("Entry restored.", ""),
            Self::VersionRestored | Self::EntryVersionRestored => Notice::success(
                "Version restored.",
                "Nothing is lost: the other versions are in the history.",
            ),
        }
    }
}
