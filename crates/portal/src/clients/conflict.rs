//! Edit conflicts. The second person to save sees how their text differs from the saved version, with their typed text
//! intact. They go on editing it beside the saved version, and save what they have merged; or they overwrite the other
//! version deliberately. The history keeps it in any case.

use super::diff::{DiffSpan, diff_spans};
use crate::time_format::DisplayTime;
use chancery_domain::Version;

/// The value of `resolve` in a form whose user goes on editing.
pub(super) const CONTINUE_EDITING: &str = "edit";

pub(crate) struct Conflict {
    /// `None` for the command line.
    pub(crate) by: Option<String>,
    /// The saved version is this user's own, from another tab or device.
    pub(crate) is_own: bool,
    pub(crate) at: Option<DisplayTime>,
    pub(crate) version: i64,
    /// The user has chosen to go on editing.
    pub(crate) is_merging: bool,
    pub(crate) fields: Vec<ConflictField>,
}

pub(crate) struct ConflictField {
    pub(crate) label: &'static str,
    /// The saved value.
    pub(crate) current: String,
    pub(crate) is_different: bool,
    /// From the saved value to this user's; empty if they are the same.
    pub(crate) difference: Vec<DiffSpan>,
    /// What they changed since this user opened the form; empty if nothing.
    pub(crate) changed: Vec<DiffSpan>,
}

impl ConflictField {
    /// `base` is the common ancestor, if known.
    pub(super) fn new(label: &'static str, yours: &str, current: &str, base: Option<&str>) -> Self {
        let changed =
            base.filter(|base| *base != current).map_or_else(Vec::new, |base| diff_spans(base, current));
        // Browsers send line breaks as CRLF.
        let yours = yours.replace("\r\n", "\n");
        let is_different = yours.trim() != current;
        let difference = if is_different { diff_spans(current, yours.trim()) } else { Vec::new() };
        Self { label, current: current.to_owned(), is_different, difference, changed }
    }
}

impl Conflict {
    /// The labels of the differing fields, as part of a sentence.
    pub(crate) fn differing_fields(&self) -> String {
        let labels: Vec<String> = self
            .fields
            .iter()
            .filter(|field| field.is_different)
            .map(|field| field.label.to_lowercase())
            .collect();
        match labels.is_empty() {
            true => "none".to_owned(),
            false => join_with_and(&labels),
        }
    }

    /// What others did while this user was editing. `base` is the version that the user started from.
    fn summary(&self, base: Version, changes: &[String]) -> String {
        let (author, changes) = (self.author(), join_with_and(changes));
        match self.version - base.0 {
            ..=1 if self.is_own => format!("You {changes} in another tab or on another device."),
            newer if self.is_own => format!("It has {newer} newer versions; the last is yours."),
            ..=1 => format!("{} {changes}.", self.by.as_deref().unwrap_or("An administrator")),
            _ => format!("Other people {changes}; the last change was by {author}."),
        }
    }

    /// The notice above the form: what happened, and what to do.
    pub(super) fn notice_text(&self, base: Version, changes: &[String]) -> String {
        match self.is_merging {
            true => format!(
                "Your text is in the form. Add what you want to keep of version {}, then save.",
                self.version
            ),
            false => format!(
                "{} Your text is kept below. Compare both, then continue editing.",
                self.summary(base, changes)
            ),
        }
    }

    /// What happened, in a few words.
    pub(super) fn headline(&self) -> &'static str {
        match self.is_own {
            true => "You edited this elsewhere.",
            false => "Someone else edited this.",
        }
    }

    pub(crate) fn author(&self) -> &str {
        if self.is_own {
            return "you";
        }
        self.by.as_deref().unwrap_or("an administrator")
    }

    pub(crate) fn has_changes(&self) -> bool {
        self.fields.iter().any(|field| !field.changed.is_empty())
    }
}

fn join_with_and(parts: &[String]) -> String {
    match parts.split_last() {
        None => String::new(),
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
    }
}
