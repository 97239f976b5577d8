//! Two people changed the same thing. Whoever saves second sees both side by side, still has what they typed, and decides: saving
//! again goes over the other's on purpose, and what the other wrote stays among the versions.

use super::differences::{Span, spans};
use crate::when::Moment;
use chancery_domain::Version;

pub(crate) struct Conflict {
    /// None: the command line.
    pub(crate) by: Option<String>,
    pub(crate) at: Option<Moment>,
    pub(crate) version: i64,
    pub(crate) fields: Vec<FieldInConflict>,
}

pub(crate) struct FieldInConflict {
    pub(crate) label: &'static str,
    /// As it is saved now.
    pub(crate) theirs: String,
    pub(crate) is_different: bool,
    /// What they changed since this person opened it; empty where they did not.
    pub(crate) changed: Vec<Span>,
}

impl FieldInConflict {
    /// `base` is what both started from, where that is known.
    pub(super) fn new(label: &'static str, yours: &str, theirs: &str, base: Option<&str>) -> Self {
        let changed = base.filter(|base| *base != theirs).map_or_else(Vec::new, |base| spans(base, theirs));
        // Browsers send the ends of lines as two signs.
        let is_different = yours.replace("\r\n", "\n").trim() != theirs;
        Self { label, theirs: theirs.to_owned(), is_different, changed }
    }
}

impl Conflict {
    /// The labels of those that differ, in a sentence.
    pub(crate) fn different(&self) -> String {
        let labels: Vec<String> = self
            .fields
            .iter()
            .filter(|field| field.is_different)
            .map(|field| field.label.to_lowercase())
            .collect();
        match labels.is_empty() {
            true => "nothing".to_owned(),
            false => in_a_sentence(&labels),
        }
    }

    /// What was done while this person was writing. `base` is the version that they started from.
    pub(super) fn meanwhile(&self, base: Version, deeds: &[String]) -> String {
        let (who, deeds) = (self.who(), in_a_sentence(deeds));
        match self.version - base.0 {
            ..=1 => format!("{who} {deeds} while you were writing."),
            _ => format!("While you were writing, somebody {deeds}; the last change was by {who}."),
        }
    }

    pub(crate) fn who(&self) -> &str {
        self.by.as_deref().unwrap_or("The firm’s administrator")
    }

    pub(crate) fn has_changes(&self) -> bool {
        self.fields.iter().any(|field| !field.changed.is_empty())
    }
}

fn in_a_sentence(parts: &[String]) -> String {
    match parts.split_last() {
        None => String::new(),
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
    }
}
