//! The form of an entry, new or not: what was typed, what is wrong with it, and what it conflicts with. Nothing typed is ever lost:
//! whatever becomes of it, the form is shown again with everything in it.

use super::conflict::Conflict;
use super::entry_view::{KindWords, kind_words};
use crate::when::field_time;
use chancery_domain::{Entry, EntryId, EntryKind, EntryText, EntryTitle, UnixMillis, Version};
use chancery_web::Problems;
use serde::Deserialize;

/// Years in which an entry may have happened. Others are slips of the keyboard.
const YEARS: std::ops::RangeInclusive<i16> = 1900..=2199;

/// As typed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct EntryTyped {
    pub(crate) kind: String,
    pub(crate) title: String,
    pub(crate) text: String,
    /// `2026-11-13T09:14`, in UTC; empty for now, or for when it was.
    pub(crate) at: String,
    /// The exact moment that `at` showed: a field of a page has no seconds, and leaving it alone must not change it.
    pub(crate) at_was: String,
    /// There at all: yes. Browsers send nothing for an empty box.
    pub(crate) is_open: Option<String>,
    /// The one that was on the page; empty for a new entry.
    pub(crate) version: String,
    /// There at all: an entry that is archived is taken out again.
    pub(crate) restore: Option<String>,
    /// What the panel beside a letter has, so that a letter that cannot be saved yet does not take it along.
    pub(crate) purpose: String,
    pub(crate) max_output_tokens: String,
}

/// What was typed, once it is good.
#[derive(Debug)]
pub(crate) struct EntryRead {
    pub(crate) title: EntryTitle,
    pub(crate) text: EntryText,
    pub(crate) at: UnixMillis,
    pub(crate) is_open: bool,
}

/// The form as a page shows it.
pub(crate) struct EntryForm {
    pub(crate) kind: EntryKind,
    pub(crate) words: KindWords,
    /// None for a new one.
    pub(crate) entry: Option<EntryId>,
    pub(crate) version: Option<Version>,
    pub(crate) title: String,
    pub(crate) text: String,
    pub(crate) at: String,
    pub(crate) at_was: String,
    pub(crate) is_open: bool,
    /// Whoever saves it says whether it stays so.
    pub(crate) is_archived: bool,
    pub(crate) restores: bool,
    pub(crate) problems: Problems,
    pub(crate) conflict: Option<Conflict>,
    /// Something in it is not saved, though nobody has typed on this page yet.
    pub(crate) is_unsaved: bool,
    /// What a template of its own has made for the side of the letter editor, inside its form; HTML.
    pub(crate) side_panel: Option<String>,
    /// What was typed there.
    pub(crate) purpose: String,
    pub(crate) max_output_tokens: String,
}

impl EntryTyped {
    /// `otherwise` is when it happened where nothing is said.
    pub(crate) fn read(&self, kind: EntryKind, otherwise: UnixMillis) -> Result<EntryRead, Problems> {
        let mut problems = Problems::default();
        let title = problems.parse("title", &self.title, "Enter a title");
        let text = problems.parse("text", &self.text, "Write something here");
        let at = self.moment(otherwise);
        if at.is_none() {
            problems.add("at", "Write the day and the time like 2026-11-13 09:14");
        }
        let is_open = kind.can_be_open() && self.is_open.is_some();
        match (title, text, at) {
            (Some(title), Some(text), Some(at)) => Ok(EntryRead { title, text, at, is_open }),
            _ => Err(problems),
        }
    }

    fn moment(&self, otherwise: UnixMillis) -> Option<UnixMillis> {
        let typed = self.at.trim();
        if typed.is_empty() {
            return Some(otherwise);
        }
        let time: jiff::civil::DateTime = typed.replacen(' ', "T", 1).parse().ok()?;
        if !YEARS.contains(&time.year()) {
            return None;
        }
        let was = self.at_was.parse().ok().map(UnixMillis);
        if let Some(was) = was.filter(|was| field_time(*was) == typed) {
            return Some(was);
        }
        let at = time.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp();
        Some(UnixMillis(at.as_millisecond()))
    }
}

impl EntryForm {
    /// An empty one. What is new is open, until somebody says otherwise.
    pub(crate) fn new(kind: EntryKind, now: UnixMillis) -> Self {
        Self {
            kind,
            words: kind_words(kind),
            entry: None,
            version: None,
            title: String::new(),
            text: String::new(),
            at: field_time(now),
            at_was: String::new(),
            is_open: kind.can_be_open(),
            is_archived: false,
            restores: false,
            problems: Problems::default(),
            conflict: None,
            is_unsaved: false,
            side_panel: None,
            purpose: String::new(),
            max_output_tokens: String::new(),
        }
    }

    /// With what is saved.
    pub(crate) fn of(entry: &Entry) -> Self {
        Self {
            entry: Some(entry.id),
            version: Some(entry.version),
            title: entry.title.to_string(),
            text: entry.text.to_string(),
            at: field_time(entry.at),
            at_was: entry.at.0.to_string(),
            is_open: entry.is_open,
            is_archived: entry.archived_at.is_some(),
            ..Self::new(entry.kind, entry.at)
        }
    }

    /// With what was typed, saved or not.
    pub(crate) fn typed(kind: EntryKind, entry: Option<EntryId>, typed: EntryTyped) -> Self {
        Self {
            entry,
            version: typed.version.parse().ok().map(Version),
            title: typed.title,
            text: typed.text,
            at: typed.at,
            at_was: typed.at_was,
            is_open: typed.is_open.is_some(),
            is_archived: typed.restore.is_some(),
            restores: typed.restore.is_some(),
            is_unsaved: true,
            purpose: typed.purpose,
            max_output_tokens: typed.max_output_tokens,
            ..Self::new(kind, UnixMillis(0))
        }
    }

    pub(super) fn is_letter(&self) -> bool {
        self.kind == EntryKind::DraftLetter
    }

    pub(super) fn title_words(&self) -> String {
        match self.entry {
            None => format!("New {}", self.words.lower),
            Some(_) => format!("Edit {}", self.words.lower),
        }
    }

    /// Where it is sent.
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

    fn moment(at: &str, at_was: &str) -> Option<UnixMillis> {
        EntryTyped { at: at.to_owned(), at_was: at_was.to_owned(), ..EntryTyped::default() }.moment(NOW)
    }

    #[test]
    fn a_moment_is_read_in_utc_and_is_now_where_nothing_is_said() {
        assert_eq!(moment("2026-11-13T09:14", ""), Some(NOW));
        assert_eq!(moment("2026-11-13 09:14", ""), Some(NOW));
        assert_eq!(moment(" ", ""), Some(NOW));
        for bad in
            ["yesterday", "2026-13-01T00:00", "0026-11-13T09:14", "2026-11-13T09:14+01:00[Europe/Berlin]x"]
        {
            assert_eq!(moment(bad, ""), None, "{bad}");
        }
    }

    #[test]
    fn a_moment_that_nobody_touched_keeps_its_seconds() {
        let exact = UnixMillis(NOW.0 + 31_415);
        assert_eq!(moment("2026-11-13T09:14", &exact.0.to_string()), Some(exact));
        assert_eq!(moment("2026-11-13T09:15", &exact.0.to_string()), Some(UnixMillis(NOW.0 + 60_000)));
    }

    #[test]
    fn a_note_is_never_open_whatever_is_sent() {
        let typed = EntryTyped {
            title: "Call".to_owned(),
            text: "They called.".to_owned(),
            is_open: Some("on".to_owned()),
            ..EntryTyped::default()
        };
        assert!(!typed.read(EntryKind::MeetingNote, NOW).unwrap().is_open);
        assert!(typed.read(EntryKind::DraftLetter, NOW).unwrap().is_open);
    }
}
