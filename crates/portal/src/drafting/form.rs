//! The form that requests a draft or an edit: the purpose and options, and the whole content of the editor, so that nothing typed
//! is lost whether or not it succeeds.

use super::failure::DraftFailure;
use super::limits::{
    DEFAULT_OUTPUT_TOKENS, MAX_CONTEXT_ENTRIES, MAX_PREVIOUS_TEXTS, MAX_PURPOSE_CHARS, OUTPUT_TOKENS,
};
use super::rewrite::{Change, RewriteRequest, selected_range};
use chancery_domain::{EntryId, Version, group_thousands};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DraftForm {
    /// As typed.
    pub(crate) purpose: String,
    /// Entries to include as context. `None` for a value that is not a number.
    pub(crate) entries: Vec<Option<EntryId>>,
    /// As typed.
    pub(crate) max_output_tokens: String,
    /// The letter in the editor; `None` for a new one.
    pub(crate) entry: Option<EntryId>,
    pub(crate) version: Option<Version>,
    pub(crate) title: String,
    pub(crate) text: String,
    /// The letter's date and whether it was sent, as in the editor.
    pub(crate) at: String,
    pub(crate) at_was: String,
    pub(crate) is_open: Option<String>,
    /// The editor's text before earlier drafts, newest first.
    pub(crate) previous_texts: Vec<String>,
    /// Index of the former text to restore instead of drafting.
    pub(crate) put_back: Option<usize>,
    /// Number of drafts and edits that this editor has had. Each draws another text.
    pub(crate) attempt: u32,
    /// The edit to make, as sent.
    pub(crate) change: String,
    /// The selected part of the text, as sent, in UTF-16 code units. Empty without a selection.
    pub(crate) selection: [String; 2],
}

/// Validated options of a draft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DraftRequest {
    pub(crate) purpose: String,
    pub(crate) max_output_tokens: u32,
    pub(crate) attempt: u32,
}

/// What the model is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobRequest {
    Draft(DraftRequest),
    Rewrite(RewriteRequest),
}

impl DraftForm {
    /// Ignores unknown fields: the editor has some that do not matter here.
    pub(crate) fn parse(body: &[u8]) -> Self {
        let mut form = Self { max_output_tokens: DEFAULT_OUTPUT_TOKENS.to_string(), ..Self::default() };
        for (name, value) in form_urlencoded::parse(body) {
            // Browsers send line breaks as CRLF.
            let value = value.replace("\r\n", "\n");
            match &*name {
                "purpose" => form.purpose = value,
                "entries" => form.entries.push(value.parse().ok().map(EntryId)),
                "max_output_tokens" => form.max_output_tokens = value,
                "entry" => form.entry = value.parse().ok().map(EntryId),
                "version" => form.version = value.parse().ok().map(Version),
                "title" => form.title = value,
                "text" => form.text = value,
                "at" => form.at = value,
                "at_was" => form.at_was = value,
                "is_open" => form.is_open = Some(value),
                "former_text" => form.previous_texts.push(value),
                "put_back" => form.put_back = value.parse().ok(),
                "attempt" => form.attempt = value.parse().unwrap_or_default(),
                "change" => form.change = value,
                "selection_start" => form.selection[0] = value,
                "selection_end" => form.selection[1] = value,
                _ => {}
            }
        }
        form.previous_texts.truncate(MAX_PREVIOUS_TEXTS);
        form
    }

    /// The selected entries that are numbers, up to `MAX_CONTEXT_ENTRIES`.
    pub(crate) fn chosen(&self) -> Vec<EntryId> {
        self.entries.iter().copied().flatten().take(MAX_CONTEXT_ENTRIES).collect()
    }

    pub(crate) fn check(&self) -> Result<DraftRequest, DraftFailure> {
        let purpose = self.purpose.trim();
        match purpose.chars().count() {
            0 => {
                return Err(DraftFailure::for_field(
                    "purpose",
                    "Enter what the letter is for. One sentence is enough.",
                ));
            }
            chars if chars > MAX_PURPOSE_CHARS => {
                let message = format!("Use at most {MAX_PURPOSE_CHARS} characters. You entered {chars}.");
                return Err(DraftFailure::for_field("purpose", message));
            }
            _ => {}
        }
        if self.entries.len() > MAX_CONTEXT_ENTRIES {
            let message = format!("Select at most {MAX_CONTEXT_ENTRIES} entries.");
            return Err(DraftFailure::for_field("entries", message));
        }
        let typed = self.max_output_tokens.trim().replace([',', ' '], "");
        match typed.parse() {
            Ok(max_output_tokens) if OUTPUT_TOKENS.contains(&max_output_tokens) => {
                let attempt = self.attempt;
                Ok(DraftRequest { purpose: purpose.to_owned(), max_output_tokens, attempt })
            }
            _ => {
                let (min, max) = (
                    group_thousands((*OUTPUT_TOKENS.start()).into()),
                    group_thousands((*OUTPUT_TOKENS.end()).into()),
                );
                let message = format!("Enter a whole number from {min} to {max}.");
                Err(DraftFailure::for_field("max_output_tokens", message))
            }
        }
    }

    pub(crate) fn check_rewrite(&self) -> Result<RewriteRequest, DraftFailure> {
        let change = Change::parse(&self.change).ok_or_else(|| {
            DraftFailure::invalid(
                "Choose what to do with the text: rewrite it, shorten it or make it more formal.",
            )
        })?;
        let selection = match &self.selection {
            [start, end] if start.is_empty() && end.is_empty() => None,
            // A number that cannot be read fits no text.
            [start, end] => Some((start.parse().unwrap_or(usize::MAX), end.parse().unwrap_or(usize::MAX))),
        };
        let range = selected_range(&self.text, selection)?;
        let selected = self.text[range.clone()].to_owned();
        Ok(RewriteRequest { change, selected, range, attempt: self.attempt })
    }

    /// Whether it requests an edit of the text.
    pub(crate) fn is_rewrite(&self) -> bool {
        !self.change.is_empty()
    }

    /// Puts a draft or an edited passage into the editor. An empty draft replaces nothing.
    pub(crate) fn take_result(&mut self, request: &JobRequest, text: &str, title: Option<String>) {
        let text = match request {
            JobRequest::Draft(_) if text.is_empty() => self.text.clone(),
            JobRequest::Draft(_) => text.to_owned(),
            JobRequest::Rewrite(RewriteRequest { range, .. }) => {
                let mut whole = self.text.clone();
                whole.replace_range(range.clone(), text);
                whole
            }
        };
        self.replace_text(text);
        if self.title.trim().is_empty() {
            self.title = title.unwrap_or_default();
        }
        self.attempt = self.attempt.saturating_add(1);
    }

    /// Replaces the editor's text and adds the previous one to the former texts.
    pub(crate) fn replace_text(&mut self, text: String) {
        let before = std::mem::replace(&mut self.text, text);
        self.previous_texts.retain(|former| *former != before && *former != self.text);
        if !before.trim().is_empty() && before != self.text {
            self.previous_texts.insert(0, before);
        }
        self.previous_texts.truncate(MAX_PREVIOUS_TEXTS);
    }

    /// Restores the former text that the user chose, if any.
    pub(crate) fn put_back(&mut self) -> bool {
        let Some(index) = self.put_back.take() else { return false };
        if let Some(former) = self.previous_texts.get(index).cloned() {
            self.replace_text(former);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPED: &str = "purpose=Offer+a+credit.&entries=6&entries=5&max_output_tokens=1%2C200&entry=7&version=3\
        &title=Credit&text=Dear%0D%0AMs+Raman&former_text=old&unknown=1";

    #[test]
    fn draft_form_keeps_all_editor_fields() {
        let form = DraftForm::parse(TYPED.as_bytes());
        assert_eq!(form.chosen(), [EntryId(6), EntryId(5)]);
        assert_eq!((form.entry, form.version), (Some(EntryId(7)), Some(Version(3))));
        assert_eq!((form.title.as_str(), form.text.as_str()), ("Credit", "Dear\nMs Raman"));
        let expected =
            DraftRequest { purpose: "Offer a credit.".to_owned(), max_output_tokens: 1_200, attempt: 0 };
        assert_eq!(form.check(), Ok(expected));
    }

    #[test]
    fn draft_form_errors_name_their_field() {
        for (body, field, message) in [
            ("purpose=+", "purpose", "Enter what the letter is for"),
            (
                &format!("purpose={}", "x".repeat(2_001)),
                "purpose",
                "Use at most 2000 characters. You entered 2001.",
            ),
            ("purpose=x&max_output_tokens=many", "max_output_tokens", "a whole number from 16 to 4,000"),
            ("purpose=x&max_output_tokens=4001", "max_output_tokens", "a whole number from 16 to 4,000"),
            (&format!("purpose=x{}", "&entries=1".repeat(51)), "entries", "Select at most 50 entries"),
        ] {
            let failure = DraftForm::parse(body.as_bytes()).check().unwrap_err();
            assert_eq!(failure.field, Some(field));
            assert!(failure.message.contains(message), "{}", failure.message);
        }
        assert_eq!(DraftForm::parse(b"purpose=x").check().unwrap().max_output_tokens, 600);
    }

    #[test]
    fn edit_replaces_the_selection_only_and_keeps_the_previous_text() {
        let body = "text=One.+Two.+Three.&selection_start=5&selection_end=9&change=shorten&attempt=2&title=T";
        let mut form = DraftForm::parse(body.as_bytes());
        let request = form.check_rewrite().unwrap();
        assert_eq!((request.selected.as_str(), request.change), ("Two.", Change::Shorten));
        form.take_result(&JobRequest::Rewrite(request), "2.", Some("Subject".to_owned()));
        assert_eq!((form.text.as_str(), form.title.as_str(), form.attempt), ("One. 2. Three.", "T", 3));
        assert_eq!(form.previous_texts, ["One. Two. Three."]);
    }

    #[test]
    fn unreadable_selections_and_unknown_edits_are_rejected() {
        for body in [
            "text=One.&change=poem",
            "text=One.",
            "text=One.&change=formal&selection_start=x&selection_end=2",
            "text=One.&change=formal&selection_start=1",
            "text=One.&change=formal&selection_start=3&selection_end=1",
            "text=&change=formal",
        ] {
            let failure = DraftForm::parse(body.as_bytes()).check_rewrite().unwrap_err();
            assert_eq!(failure.status.as_u16(), 422, "{body}");
        }
        let whole = DraftForm::parse(b"text=One.&change=formal").check_rewrite().unwrap();
        assert_eq!(whole.selected, "One.");
    }

    #[test]
    fn empty_draft_leaves_the_text_alone() {
        let mut form = DraftForm::parse(b"purpose=Say+thank+you.&text=mine");
        let request = JobRequest::Draft(form.check().unwrap());
        form.take_result(&request, "", None);
        assert_eq!((form.text.as_str(), form.previous_texts.len(), form.attempt), ("mine", 0, 1));
    }

    #[test]
    fn draft_keeps_the_previous_text() {
        let mut form = DraftForm { text: "mine".to_owned(), ..DraftForm::default() };
        form.replace_text("first draft".to_owned());
        form.replace_text("second draft".to_owned());
        assert_eq!(form.previous_texts, ["first draft", "mine"]);
        form.put_back = Some(1);
        assert!(form.put_back());
        assert_eq!(
            (form.text.as_str(), form.previous_texts.as_slice()),
            ("mine", ["second draft", "first draft"].map(str::to_owned).as_slice())
        );
        form.put_back = Some(9);
        assert!(form.put_back());
        assert_eq!(form.text, "mine");
    }
}
