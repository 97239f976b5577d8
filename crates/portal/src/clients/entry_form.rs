//! The form of a new or existing entry: typed values, problems and conflicts. Nothing typed is ever lost: if the entry cannot be
//! saved, the form is shown again with everything in it.

use super::conflict::Conflict;
use super::dispute_amount::parse_amount;
use super::entry_view::{EntryKindLabels, entry_kind_labels};
use crate::time_format::{DisplayTime, LocalTime, field_time};
use chancery_domain::{
    Currency, Day, DisputeDetails, DisputeStatus, Entry, EntryId, EntryKind, EntryText, EntryTitle,
    MinorUnits, UnixMillis, Version, check_due_day, check_entry_day,
};
use chancery_web::{Problems, capitalize};
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
    /// `open` or `resolved`, for disputes. Takes precedence over `is_open`.
    pub(crate) status: String,
    /// The disputed amount, or empty. Absent from forms of other entries.
    pub(crate) amount: Option<String>,
    /// `2026-11-20`, or empty. Absent from forms of other entries.
    pub(crate) due: Option<String>,
    /// `edit` if the user wants to go on editing after a conflict.
    pub(crate) resolve: String,
    /// The version that the page showed; empty for a new entry.
    pub(crate) version: String,
    /// Present if saving is to restore an archived entry.
    pub(crate) restore: Option<String>,
    /// Values of the panel beside a letter. They must survive when the letter cannot be saved.
    pub(crate) purpose: String,
    pub(crate) max_output_tokens: String,
    /// The editor's texts before earlier drafts, newest first. Only in stored text: a submitted form has one field for each.
    #[serde(rename = "former_texts")]
    pub(crate) previous_texts: Vec<String>,
}

/// Validated values.
#[derive(Debug)]
pub(crate) struct ValidEntry {
    pub(crate) title: EntryTitle,
    pub(crate) text: EntryText,
    pub(crate) at: UnixMillis,
    pub(crate) is_open: bool,
    /// `None` if the form has no such fields.
    pub(crate) dispute: Option<DisputeDetails>,
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
    pub(crate) amount: String,
    pub(crate) due: String,
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
    pub(crate) previous_texts: Vec<String>,
    /// When the restored text was stored.
    pub(crate) restored_at: Option<DisplayTime>,
}

impl EntryInput {
    /// `default_at` is the entry's time if none was typed.
    pub(crate) fn read(
        &self,
        kind: EntryKind,
        default_at: UnixMillis,
        local: &LocalTime,
        currency: Currency,
    ) -> Result<ValidEntry, Problems> {
        let mut problems = Problems::default();
        let title = problems.parse("title", &self.title, "Enter a title");
        let text = problems.parse("text", &self.text, "Enter the text");
        let at = self.parse_time(default_at, local);
        match at {
            None => problems.add("at", "Enter a date and time like 2026-11-13 09:14"),
            // A time that was stored before this rule does not prevent other edits.
            Some(at) if Some(at) == self.stored_time() => {}
            Some(at) => {
                if let Err(error) = check_entry_day(local.day(at), local.today()) {
                    problems.add("at", capitalize(&error.to_string()));
                }
            }
        }
        let is_open = kind.can_be_open() && self.is_open();
        let dispute = self.parse_dispute(currency, local.today(), &mut problems);
        match (title, text, at) {
            (Some(title), Some(text), Some(at)) if !problems.any() => {
                Ok(ValidEntry { title, text, at, is_open, dispute })
            }
            _ => Err(problems),
        }
    }

    /// The exact time that the page showed. `None` for a new entry.
    fn stored_time(&self) -> Option<UnixMillis> {
        self.at_was.parse().ok().map(UnixMillis)
    }

    pub(crate) fn is_open(&self) -> bool {
        match self.status.parse::<DisputeStatus>() {
            Ok(status) => status.is_open(),
            Err(_) => self.is_open.is_some(),
        }
    }

    fn parse_dispute(
        &self,
        currency: Currency,
        today: Day,
        problems: &mut Problems,
    ) -> Option<DisputeDetails> {
        if self.amount.is_none() && self.due.is_none() {
            return None;
        }
        let amount = self.amount.as_deref().unwrap_or_default().trim();
        let due = self.due.as_deref().unwrap_or_default().trim();
        let details = DisputeDetails { amount: parse_amount(amount, currency), due: parse_due(due) };
        if details.amount.is_none() && !amount.is_empty() {
            problems.add("amount", format!("Enter an amount like {}", currency.example_amount()));
        }
        if details.due.is_none() && !due.is_empty() {
            problems.add("due", "Enter a date like 2026-11-20");
        }
        if let Some(Err(error)) = details.due.map(|due| check_due_day(due, today)) {
            problems.add("due", capitalize(&error.to_string()));
        }
        Some(details)
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
        if let Some(was) = self.stored_time().filter(|was| field_time(*was, local) == typed) {
            return Some(was);
        }
        local.parse_field(time)
    }
}

fn parse_due(text: &str) -> Option<Day> {
    let year: i16 = text.get(..4)?.parse().ok()?;
    text.parse().ok().filter(|_| YEARS.contains(&year))
}

/// The value of an amount's field.
pub(super) fn amount_field(amount: Option<MinorUnits>, currency: Currency) -> String {
    amount.map_or_else(String::new, |amount| currency.to_decimal_string(amount))
}

/// The value of a date's field.
pub(super) fn day_field(day: Option<Day>) -> String {
    day.map_or_else(String::new, |day| day.to_string())
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
            amount: String::new(),
            due: String::new(),
            is_archived: false,
            restore_checked: false,
            problems: Problems::default(),
            conflict: None,
            is_unsaved: false,
            side_panel_html: None,
            purpose: String::new(),
            max_output_tokens: String::new(),
            previous_texts: Vec::new(),
            restored_at: None,
        }
    }

    /// The form with the saved values.
    pub(crate) fn of(entry: &Entry, local: &LocalTime, currency: Currency) -> Self {
        Self {
            entry: Some(entry.id),
            version: Some(entry.version),
            title: entry.title.to_string(),
            text: entry.text.to_string(),
            at: field_time(entry.at, local),
            at_was: entry.at.0.to_string(),
            is_open: entry.is_open,
            amount: amount_field(entry.dispute.amount, currency),
            due: day_field(entry.dispute.due),
            is_archived: entry.archived_at.is_some(),
            ..Self::empty(entry.kind)
        }
    }

    /// The form with the typed values.
    pub(crate) fn typed(kind: EntryKind, entry: Option<EntryId>, typed: EntryInput) -> Self {
        Self {
            entry,
            version: typed.version.parse().ok().map(Version),
            is_open: typed.is_open(),
            amount: typed.amount.unwrap_or_default(),
            due: typed.due.unwrap_or_default(),
            title: typed.title,
            text: typed.text,
            at: typed.at,
            at_was: typed.at_was,
            is_archived: typed.restore.is_some(),
            restore_checked: typed.restore.is_some(),
            is_unsaved: true,
            purpose: typed.purpose,
            max_output_tokens: typed.max_output_tokens,
            previous_texts: typed.previous_texts,
            ..Self::empty(kind)
        }
    }

    /// The form with unsaved text from this time, unless that is the same.
    pub(super) fn restored(self, typed: EntryInput, at: DisplayTime) -> Self {
        // Browsers send line breaks as CRLF.
        let typed = EntryInput { text: typed.text.replace("\r\n", "\n"), ..typed };
        let has_same_state = self.entry.is_none() || (typed.at == self.at && typed.is_open() == self.is_open);
        let [amount, due] = [&typed.amount, &typed.due].map(|field| field.as_deref().unwrap_or_default());
        let has_same_terms = amount.trim() == self.amount && due.trim() == self.due;
        if typed.title == self.title
            && typed.text.trim() == self.text.trim()
            && typed.purpose.trim().is_empty()
            && typed.previous_texts.is_empty()
            && has_same_state
            && has_same_terms
        {
            return self;
        }
        let version = typed.version.parse().ok().map(Version).or(self.version);
        Self {
            version,
            is_archived: self.is_archived,
            restored_at: Some(at),
            ..Self::typed(self.kind, self.entry, typed)
        }
    }

    pub(super) fn is_letter(&self) -> bool {
        self.kind == EntryKind::DraftLetter
    }

    /// Whether the user must first see how both versions differ.
    pub(super) fn is_conflict(&self) -> bool {
        self.conflict.as_ref().is_some_and(|conflict| !conflict.is_merging)
    }

    pub(super) fn is_dispute(&self) -> bool {
        self.kind == EntryKind::BillingDispute
    }

    pub(super) fn form_title(&self) -> String {
        match self.entry {
            None => format!("New {}", self.labels.lower),
            Some(_) => format!("Edit {}", self.labels.lower),
        }
    }

    /// Empty for a new entry.
    pub(super) fn entry_number(&self) -> String {
        self.entry.map_or_else(String::new, |entry| entry.to_string())
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
    fn entry_more_than_a_year_ahead_is_rejected_unless_it_was_stored() {
        let read = |at: &str, at_was: &str| {
            let typed = EntryInput {
                title: "Call".to_owned(),
                text: "They called.".to_owned(),
                at: at.to_owned(),
                at_was: at_was.to_owned(),
                ..EntryInput::default()
            };
            let local = LocalTime::utc(NOW);
            typed.read(EntryKind::MeetingNote, NOW, &local, Currency::USD).map(|entry| entry.at)
        };
        assert!(read("2027-11-14T23:59", "").is_ok(), "a year ahead");
        let problems = read("2027-11-15T00:00", "").unwrap_err();
        assert!(
            problems.of("at").is_some_and(|text| text.contains("more than a year ahead")),
            "{problems:?}"
        );
        let stored = UnixMillis(4_070_908_800_000);
        assert_eq!(read("2099-01-01T00:00", &stored.0.to_string()), Ok(stored));
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
        assert!(!typed.read(EntryKind::MeetingNote, NOW, &local, Currency::USD).unwrap().is_open);
        assert!(typed.read(EntryKind::DraftLetter, NOW, &local, Currency::USD).unwrap().is_open);
    }

    fn dispute(status: &str, amount: &str, due: &str) -> Result<ValidEntry, Problems> {
        let typed = EntryInput {
            title: "Invoice 7".to_owned(),
            text: "Too much.".to_owned(),
            status: status.to_owned(),
            amount: Some(amount.to_owned()),
            due: Some(due.to_owned()),
            ..EntryInput::default()
        };
        typed.read(EntryKind::BillingDispute, NOW, &LocalTime::utc(NOW), Currency::USD)
    }

    #[test]
    fn dispute_has_status_amount_and_due_date() {
        let valid = dispute("open", " 120.5 ", "2026-11-20").unwrap();
        let details = valid.dispute.unwrap();
        assert!(valid.is_open);
        assert_eq!(
            (details.amount, day_field(details.due)),
            (Some(MinorUnits(12_050)), "2026-11-20".to_owned())
        );
        let valid = dispute("resolved", "", "").unwrap();
        assert!(!valid.is_open);
        assert_eq!(valid.dispute, Some(DisputeDetails::default()));
    }

    #[test]
    fn due_date_more_than_five_years_ahead_is_rejected() {
        assert!(dispute("open", "", "2031-11-13").is_ok());
        let problems = dispute("open", "", "2099-01-01").unwrap_err();
        assert_eq!(problems.of("due"), Some("The date is more than five years ahead; check the year"));
    }

    #[test]
    fn invalid_amount_and_due_date_are_reported_at_their_fields() {
        let problems = dispute("open", "a lot", "9999-01-01").unwrap_err();
        assert_eq!(problems.of("amount"), Some("Enter an amount like 50.00"));
        assert_eq!(problems.of("due"), Some("Enter a date like 2026-11-20"));
    }
}
