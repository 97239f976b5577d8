//! The form of a new or existing entry: typed values, problems and conflicts. Nothing typed is ever lost: if the entry cannot be
//! saved, the form is shown again with everything in it.

use super::conflict::Conflict;
use super::entry_view::{EntryKindLabels, entry_kind_labels};
use crate::time_format::{LocalTime, field_time};
use chancery_domain::{Entry, EntryId, EntryKind, EntryText, EntryTitle, UnixMillis, Version};
use chancery_web::Problems;
use serde::Deserialize;

/// Accepted years of an entry. Others are typing errors.
const YEARS: std::ops::RangeInclusive<i16> = 1900..=2199;

/// Submitted values.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct EntryInput {
    pub(crate) kind: String,
    pub(crate) title: String,
    pub(crate) text: String,
    /// `2026-11-13T09:14`, in the person's time zone. Empty means now, or the entry's current time.
    pub(crate) at: String,
    /// The exact time behind `at`, which has no seconds. An untouched field must not change the entry's time.
    pub(crate) at_was: String,
    /// Present if checked: browsers omit unchecked boxes.
    pub(crate) is_open: Option<String>,
    /// The version that the page showed; empty for a new entry.
    pub(crate) version: String,
    /// Present if saving is to restore an archived entry.
    pub(crate) restore: Option<String>,
    /// Values of the panel beside a letter. They must survive when the letter cannot be saved.
    pub(crate) purpose: String,
    pub(crate) max_output_tokens: String,
}

/// Validated values.
#[derive(Debug)]
pub(crate) struct ValidEntry {
    pub(crate) title: EntryTitle,
    pub(crate) text: EntryText,
    pub(crate) at: UnixMillis,
    pub(crate) is_open: bool,
}

/// The form as shown on a page.
pub(crate) struct EntryForm {
    pub(crate) kind: EntryKind,
    pub(crate) labels: EntryKindLabels,
    /// `None` for a new entry.
    pub(crate) entry: Option<EntryId>,
    pub(crate) version: Option<Version>,
    pub(crate) title: String,
    pub(crate) text: String,
    pub(crate) at: String,
    pub(crate) at_was: String,
    pub(crate) is_open: bool,
    /// The user decides on saving whether the entry stays archived.
    pub(crate) is_archived: bool,
    pub(crate) restore_checked: bool,
    pub(crate) problems: Problems,
    pub(crate) conflict: Option<Conflict>,
    /// Contains unsaved text although the user has not typed on this page yet.
    pub(crate) is_unsaved: bool,
    /// Rendered HTML of the panel beside the letter editor, inside its form.
    pub(crate) side_panel_html: Option<String>,
    /// Values typed into that panel.
    pub(crate) purpose: String,
    pub(crate) max_output_tokens: String,
}

impl EntryInput {
    /// `default_at` is the entry's time if none was typed.
    pub(crate) fn read(
        &self,
        kind: EntryKind,
        default_at: UnixMillis,
        local: &LocalTime,
    ) -> Result<ValidEntry, Problems> {
        let mut problems = Problems::default();
        let title = problems.parse("title", &self.title, "Enter a title");
        let text = problems.parse("text", &self.text, "Enter the text");
        let at = self.parse_time(default_at, local);
        if at.is_none() {
            problems.add("at", "Enter a date and time like 2026-11-13 09:14");
        }
        let is_open = kind.can_be_open() && self.is_open.is_some();
        match (title, text, at) {
            (Some(title), Some(text), Some(at)) => Ok(ValidEntry { title, text, at, is_open }),
            _ => Err(problems),
        }
    }

    pub(super) fn parse_time(&self, default_at: UnixMillis, local: &LocalTime) -> Option<UnixMillis> {
        let typed = self.at.trim();
        if typed.is_empty() {
            return Some(default_at);
        }
        let time: jiff::civil::DateTime = typed.replacen(' ', "T", 1).parse().ok()?;
        if !YEARS.contains(&time.year()) {
            return None;
        }
        let was = self.at_was.parse().ok().map(UnixMillis);
        if let Some(was) = was.filter(|was| field_time(*was, local) == typed) {
            return Some(was);
        }
        local.parse_field(time)
    }
}

impl EntryForm {
    /// An empty form. A new entry is open unless the user says otherwise.
    pub(crate) fn new(kind: EntryKind, local: &LocalTime) -> Self {
        Self { at: field_time(local.now, local), ..Self::empty(kind) }
    }

    fn empty(kind: EntryKind) -> Self {
        Self {
            kind,
            labels: entry_kind_labels(kind),
            entry: None,
            version: None,
            title: String::new(),
            text: String::new(),
            at: String::new(),
            at_was: String::new(),
            is_open: kind.can_be_open(),
            is_archived: false,
            restore_checked: false,
            problems: Problems::default(),
            conflict: None,
            is_unsaved: false,
            side_panel_html: None,
            purpose: String::new(),
            max_output_tokens: String::new(),
        }
    }

    /// The form with the saved values.
    pub(crate) fn of(entry: &Entry, local: &LocalTime) -> Self {
        Self {
            entry: Some(entry.id),
            version: Some(entry.version),
            title: entry.title.to_string(),
            text: entry.text.to_string(),
            at: field_time(entry.at, local),
            at_was: entry.at.0.to_string(),
            is_open: entry.is_open,
            is_archived: entry.archived_at.is_some(),
            ..Self::empty(entry.kind)
        }
    }

    /// The form with the typed values.
    pub(crate) fn typed(kind: EntryKind, entry: Option<EntryId>, typed: EntryInput) -> Self {
        Self {
            entry,
            version: typed.version.parse().ok().map(Version),
            title: typed.title,
            text: typed.text,
            at: typed.at,
            at_was: typed.at_was,
            is_open: typed.is_open.is_some(),
            is_archived: typed.restore.is_some(),
            restore_checked: typed.restore.is_some(),
            is_unsaved: true,
            purpose: typed.purpose,
            max_output_tokens: typed.max_output_tokens,
            ..Self::empty(kind)
        }
    }

    pub(super) fn is_letter(&self) -> bool {
        self.kind == EntryKind::DraftLetter
    }

    pub(super) fn form_title(&self) -> String {
        match self.entry {
            None => format!("New {}", self.labels.lower),
            Some(_) => format!("Edit {}", self.labels.lower),
        }
    }

    /// The form's `action` URL.
    pub(super) fn action(&self, client: i64) -> String {
        match self.entry {
            None => format!("/clients/{client}/entries"),
            Some(entry) => format!("/clients/{client}/entries/{entry}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixMillis = UnixMillis(1_794_561_240_000);

    fn parse_time(at: &str, at_was: &str) -> Option<UnixMillis> {
        let typed = EntryInput { at: at.to_owned(), at_was: at_was.to_owned(), ..EntryInput::default() };
        typed.parse_time(NOW, &LocalTime::utc(NOW))
    }

    #[test]
    fn entry_time_is_parsed_as_utc_and_defaults_to_now() {
        assert_eq!(parse_time("2026-11-13T09:14", ""), Some(NOW));
        assert_eq!(parse_time("2026-11-13 09:14", ""), Some(NOW));
        assert_eq!(parse_time(" ", ""), Some(NOW));
        for bad in
            ["yesterday", "2026-13-01T00:00", "0026-11-13T09:14", "2026-11-13T09:14+01:00[Europe/Berlin]x"]
        {
            assert_eq!(parse_time(bad, ""), None, "{bad}");
        }
    }

    #[test]
    fn unchanged_entry_time_keeps_its_seconds() {
        let exact = UnixMillis(NOW.0 + 31_415);
        assert_eq!(parse_time("2026-11-13T09:14", &exact.0.to_string()), Some(exact));
        assert_eq!(parse_time("2026-11-13T09:15", &exact.0.to_string()), Some(UnixMillis(NOW.0 + 60_000)));
    }

    #[test]
    fn notes_are_never_open() {
        let typed = EntryInput {
            title: "Call".to_owned(),
            text: "They called.".to_owned(),
            is_open: Some("on".to_owned()),
            ..EntryInput::default()
        };
        let local = LocalTime::utc(NOW);
        assert!(!typed.read(EntryKind::MeetingNote, NOW, &local).unwrap().is_open);
        assert!(typed.read(EntryKind::DraftLetter, NOW, &local).unwrap().is_open);
    }
}
