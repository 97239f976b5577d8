//! Edit conflicts. The second person to save sees both versions side by side, with their typed text intact. Saving again
//! overwrites the other version deliberately; the history keeps it.

use super::diff::{DiffSpan, diff_spans};
use crate::time_format::DisplayTime;
use chancery_domain::Version;

pub(crate) struct Conflict {
    /// `None` for the command line.
    pub(crate) by: Option<String>,
    pub(crate) at: Option<DisplayTime>,
    pub(crate) version: i64,
    pub(crate) fields: Vec<ConflictField>,
}

pub(crate) struct ConflictField {
    pub(crate) label: &'static str,
    /// The saved value.
    pub(crate) current: String,
    pub(crate) is_different: bool,
    /// What they changed since this user opened the form; empty if nothing.
    pub(crate) changed: Vec<DiffSpan>,
}

impl ConflictField {
    /// `base` is the common ancestor, if known.
    pub(super) fn new(label: &'static str, yours: &str, current: &str, base: Option<&str>) -> Self {
        let changed =
            base.filter(|base| *base != current).map_or_else(Vec::new, |base| diff_spans(base, current));
        // Browsers send line breaks as CRLF.
        let is_different = yours.replace("\r\n", "\n").trim() != current;
        Self { label, current: current.to_owned(), is_different, changed }
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
    pub(super) fn summary(&self, base: Version, changes: &[String]) -> String {
        let (author, changes) = (self.author(), join_with_and(changes));
        match self.version - base.0 {
            ..=1 => format!("{} {changes}.", self.by.as_deref().unwrap_or("An administrator")),
            _ => format!("Other people {changes}; the last change was by {author}."),
        }
    }

    pub(crate) fn author(&self) -> &str {
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
