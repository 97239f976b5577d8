//! Undo, in the confirmation of a change. It is an ordinary change back, bound to the version that the first one made:
//! if anyone has changed the client or the entry since, nothing is undone.

use super::done::CompletedChange;
use crate::authz::capabilities::ClientCapabilities;
use chancery_domain::{ClientId, Version};
use chancery_web::{ErrorPage, NoticeForm};
use std::fmt;

/// The version that a change made. In the URL `undo=3`, or `undo=3_17` with the subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Undo {
    version: Version,
    /// The number of the changed entry, or of the former owner.
    subject: Option<i64>,
}

impl Undo {
    pub(super) fn of_client(version: Version) -> Self {
        Self { version, subject: None }
    }

    pub(super) fn of_subject(version: Version, subject: i64) -> Self {
        Self { version, subject: Some(subject) }
    }

    /// Ignores other values: the URL may be old or made up.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (version, subject) = match text.split_once('_') {
            Some((version, subject)) => (version, Some(subject.parse().ok()?)),
            None => (text, None),
        };
        Some(Self { version: Version(version.parse().ok()?), subject })
    }

    /// The button. `None` if the user may not undo this change.
    pub(super) fn form(
        self,
        done: CompletedChange,
        client: ClientId,
        can: ClientCapabilities,
    ) -> Option<NoticeForm> {
        let version = || vec![("version", self.version.to_string())];
        // A first version has none before it.
        let earlier = (self.version > Version::FIRST).then(|| {
            let earlier = Version(self.version.0 - 1);
            vec![("version", earlier.to_string()), ("current", self.version.to_string())]
        });
        let (is_allowed, path, fields) = match (done, self.subject) {
            (CompletedChange::DetailsSaved | CompletedChange::VersionRestored, None) => {
                (can.edit, "versions/restore".to_owned(), earlier?)
            }
            (CompletedChange::Archived, None) => (can.archive, "restore".to_owned(), version()),
            (CompletedChange::Restored, None) => (can.archive, "archive".to_owned(), version()),
            (CompletedChange::Reassigned, Some(owner)) => {
                let mut fields = version();
                fields.push(("owner", owner.to_string()));
                (can.reassign, "reassign".to_owned(), fields)
            }
            (CompletedChange::EntrySaved | CompletedChange::EntryVersionRestored, Some(entry)) => {
                (can.edit, format!("entries/{entry}/versions/restore"), earlier?)
            }
            (CompletedChange::EntryArchived, Some(entry)) => {
                (can.edit, format!("entries/{entry}/restore"), version())
            }
            (CompletedChange::EntryRestored, Some(entry)) => {
                (can.edit, format!("entries/{entry}/archive"), version())
            }
            _ => return None,
        };
        let action = format!("/clients/{client}/{path}");
        is_allowed.then_some(NoticeForm { action, label: "Undo", fields })
    }
}

impl fmt::Display for Undo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.subject {
            None => write!(f, "{}", self.version),
            Some(subject) => write!(f, "{}_{subject}", self.version),
        }
    }
}

/// The `version` field of a change back. Empty: any version may be changed.
pub(super) fn parse_version(text: &str) -> Result<Option<Version>, ErrorPage> {
    match text.trim() {
        "" => Ok(None),
        number => {
            let version = number.parse().map(Version);
            let invalid = |_| ErrorPage::invalid_form("`version` must be a version number.");
            version.map(Some).map_err(invalid)
        }
    }
}

/// Someone has changed the client or the entry since. `path` is its history.
pub(super) fn changed_since(client: ClientId, history: String) -> ErrorPage {
    let reason = "It was changed again since this page was shown. Nothing was undone or restored.";
    ErrorPage::conflict("changed_since", "Someone else edited this", reason)
        .advice("Look at the history, and restore the version that you want.")
        .next_link(history, "Show history")
        .other_link(Some(format!("/clients/{client}")), "Go to client")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAN: ClientCapabilities = ClientCapabilities { edit: true, archive: true, reassign: false };
    const CLIENT: ClientId = ClientId(1042);

    #[test]
    fn undo_is_the_opposite_change_of_that_version() {
        let form = |done, undo: &str| Undo::parse(undo).unwrap().form(done, CLIENT, CAN);
        let archived = form(CompletedChange::Archived, "3").unwrap();
        assert_eq!(
            (archived.action.as_str(), archived.fields),
            ("/clients/1042/restore", vec![("version", "3".to_owned())])
        );
        let edited = form(CompletedChange::EntrySaved, "3_17").unwrap();
        assert_eq!(edited.action, "/clients/1042/entries/17/versions/restore");
        assert_eq!(edited.fields, [("version", "2".to_owned()), ("current", "3".to_owned())]);
        assert_eq!(form(CompletedChange::EntrySaved, "1_17"), None, "nothing comes before the first version");
        assert_eq!(form(CompletedChange::Created, "1"), None);
        assert_eq!(form(CompletedChange::Reassigned, "2_5"), None, "this user may not reassign");
        for invalid in ["", "x", "3_", "_3"] {
            assert_eq!(Undo::parse(invalid), None, "{invalid}");
        }
    }
}
