//! What the editor sends when a draft is asked for: what the model is to do, and everything that is in the editor, so that
//! nothing typed is lost whatever becomes of the draft.

use super::failure::Failure;
use super::limits::{
    DEFAULT_OUTPUT_TOKENS, MAX_ENTRIES_READ, MAX_FORMER_TEXTS, MAX_PURPOSE_CHARS, OUTPUT_TOKENS,
};
use chancery_domain::{EntryId, Version, grouped};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DraftForm {
    /// As typed.
    pub(crate) purpose: String,
    /// What the model is to read; None among them is no number.
    pub(crate) entries: Vec<Option<EntryId>>,
    /// As typed.
    pub(crate) max_output_tokens: String,
    /// The letter in the editor; None for a new one.
    pub(crate) entry: Option<EntryId>,
    pub(crate) version: Option<Version>,
    pub(crate) title: String,
    pub(crate) text: String,
    /// When the letter is from, and whether it was sent, as the editor has them.
    pub(crate) at: String,
    pub(crate) at_was: String,
    pub(crate) is_open: Option<String>,
    /// What was in the editor before earlier drafts, the newest first.
    pub(crate) former_texts: Vec<String>,
    /// Instead of drafting: the former text to put back.
    pub(crate) put_back: Option<usize>,
}

/// What is asked of the model, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) purpose: String,
    pub(crate) max_output_tokens: u32,
}

impl DraftForm {
    /// Fields that are not known are left alone: the editor has some that do not matter here.
    pub(crate) fn parse(body: &[u8]) -> Self {
        let mut form = Self { max_output_tokens: DEFAULT_OUTPUT_TOKENS.to_string(), ..Self::default() };
        for (name, value) in form_urlencoded::parse(body) {
            // Browsers send the ends of lines as two signs.
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
                "former_text" => form.former_texts.push(value),
                "put_back" => form.put_back = value.parse().ok(),
                _ => {}
            }
        }
        form.former_texts.truncate(MAX_FORMER_TEXTS);
        form
    }

    /// Those of the chosen entries that are numbers, as many as may be read.
    pub(crate) fn chosen(&self) -> Vec<EntryId> {
        self.entries.iter().copied().flatten().take(MAX_ENTRIES_READ).collect()
    }

    pub(crate) fn check(&self) -> Result<Wanted, Failure> {
        let purpose = self.purpose.trim();
        match purpose.chars().count() {
            0 => {
                return Err(Failure::of_field(
                    "purpose",
                    "Say what the letter is for: a sentence is enough.",
                ));
            }
            chars if chars > MAX_PURPOSE_CHARS => {
                let words = format!("This has {chars} characters; {MAX_PURPOSE_CHARS} at most.");
                return Err(Failure::of_field("purpose", words));
            }
            _ => {}
        }
        if self.entries.len() > MAX_ENTRIES_READ {
            let words = format!("The model reads {MAX_ENTRIES_READ} notes at most; untick some.");
            return Err(Failure::of_field("entries", words));
        }
        let typed = self.max_output_tokens.trim().replace([',', ' '], "");
        match typed.parse() {
            Ok(max_output_tokens) if OUTPUT_TOKENS.contains(&max_output_tokens) => {
                Ok(Wanted { purpose: purpose.to_owned(), max_output_tokens })
            }
            _ => {
                let (least, most) =
                    (grouped((*OUTPUT_TOKENS.start()).into()), grouped((*OUTPUT_TOKENS.end()).into()));
                let words = format!("Write a whole number from {least} to {most}.");
                Err(Failure::of_field("max_output_tokens", words))
            }
        }
    }

    /// Puts another text into the editor, and what was in it with the former ones.
    pub(crate) fn replace_text(&mut self, text: String) {
        let before = std::mem::replace(&mut self.text, text);
        self.former_texts.retain(|former| *former != before && *former != self.text);
        if !before.trim().is_empty() && before != self.text {
            self.former_texts.insert(0, before);
        }
        self.former_texts.truncate(MAX_FORMER_TEXTS);
    }

    /// What the button beside a former text does.
    pub(crate) fn put_back(&mut self) -> bool {
        let Some(place) = self.put_back.take() else { return false };
        if let Some(former) = self.former_texts.get(place).cloned() {
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
    fn everything_in_the_editor_comes_along() {
        let form = DraftForm::parse(TYPED.as_bytes());
        assert_eq!(form.chosen(), [EntryId(6), EntryId(5)]);
        assert_eq!((form.entry, form.version), (Some(EntryId(7)), Some(Version(3))));
        assert_eq!((form.title.as_str(), form.text.as_str()), ("Credit", "Dear\nMs Raman"));
        let wanted = Wanted { purpose: "Offer a credit.".to_owned(), max_output_tokens: 1_200 };
        assert_eq!(form.check(), Ok(wanted));
    }

    #[test]
    fn what_is_wrong_is_told_at_its_field() {
        for (body, field, words) in [
            ("purpose=+", "purpose", "Say what the letter is for"),
            (&format!("purpose={}", "x".repeat(2_001)), "purpose", "2001 characters; 2000 at most"),
            ("purpose=x&max_output_tokens=many", "max_output_tokens", "a whole number from 16 to 4,000"),
            ("purpose=x&max_output_tokens=4001", "max_output_tokens", "a whole number from 16 to 4,000"),
            (&format!("purpose=x{}", "&entries=1".repeat(51)), "entries", "50 notes at most"),
        ] {
            let failure = DraftForm::parse(body.as_bytes()).check().unwrap_err();
            assert_eq!(failure.field, Some(field));
            assert!(failure.words.contains(words), "{}", failure.words);
        }
        assert_eq!(DraftForm::parse(b"purpose=x").check().unwrap().max_output_tokens, 600);
    }

    #[test]
    fn a_draft_never_takes_the_text_away() {
        let mut form = DraftForm { text: "mine".to_owned(), ..DraftForm::default() };
        form.replace_text("first draft".to_owned());
        form.replace_text("second draft".to_owned());
        assert_eq!(form.former_texts, ["first draft", "mine"]);
        form.put_back = Some(1);
        assert!(form.put_back());
        assert_eq!(
            (form.text.as_str(), form.former_texts.as_slice()),
            ("mine", ["second draft", "first draft"].map(str::to_owned).as_slice())
        );
        form.put_back = Some(9);
        assert!(form.put_back());
        assert_eq!(form.text, "mine");
    }
}
