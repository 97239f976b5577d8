//! The fields of a form that are stored as unsaved text, as JSON. All other fields are left out.

use crate::drafting::limits::MAX_PREVIOUS_TEXTS;
use chancery_domain::{EntryId, PersonId};
use chancery_store::{MAX_UNSAVED_TEXT_BYTES, UnsavedForm};
use serde_json::{Map, Value};

/// Fields of the forms for details and entries that people fill in, and the version that they started from.
const FIELDS: [&str; 17] = [
    "name",
    "contact",
    "email",
    "telephone",
    "address",
    "since",
    "title",
    "text",
    "at",
    "at_was",
    "is_open",
    "status",
    "amount",
    "due",
    "restore",
    "purpose",
    "max_output_tokens",
];
/// Number of the person who opened the form.
const PERSON: &str = "person";
const VERSION: &str = "version";
/// The value of `kind` in the form for the client's details.
const DETAILS: &str = "details";
/// Texts of the editor before earlier drafts.
const PREVIOUS_TEXT: &str = "former_text";
const PREVIOUS_TEXTS: &str = "former_texts";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnsavedFields {
    pub(super) form: UnsavedForm,
    pub(super) json: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldsError {
    UnknownForm,
    TooLong,
}

impl FieldsError {
    pub(super) fn reason(self) -> String {
        match self {
            Self::UnknownForm => "`kind` or `entry` is missing or not valid.".to_owned(),
            Self::TooLong => {
                format!("The text is too long to be stored: use at most {MAX_UNSAVED_TEXT_BYTES} bytes.")
            }
        }
    }
}

impl UnsavedFields {
    pub(super) fn of<N: AsRef<str>, V: Into<String>>(
        pairs: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Self, FieldsError> {
        let (mut kind, mut entry) = (String::new(), None);
        let (mut fields, mut previous_texts) = (Map::new(), Vec::new());
        for (name, value) in pairs {
            let value: String = value.into();
            match name.as_ref() {
                "kind" => kind = value,
                "entry" => entry = Some(value),
                PREVIOUS_TEXT => previous_texts.push(Value::String(value)),
                name if name == VERSION || FIELDS.contains(&name) => {
                    fields.insert(name.to_owned(), Value::String(value));
                }
                _ => {}
            }
        }
        previous_texts.truncate(MAX_PREVIOUS_TEXTS);
        if !previous_texts.is_empty() {
            fields.insert(PREVIOUS_TEXTS.to_owned(), Value::Array(previous_texts));
        }
        let form = match (entry, kind.as_str()) {
            (Some(entry), _) => {
                let entry: i64 = entry.parse().map_err(|_| FieldsError::UnknownForm)?;
                // The form of a new entry has no number, and no entry has the number 0.
                let entry = Some(EntryId(entry)).filter(|entry| entry.0 != 0);
                UnsavedForm::Entry(entry.ok_or(FieldsError::UnknownForm)?)
            }
            (None, DETAILS) => UnsavedForm::Details,
            (None, kind) => UnsavedForm::NewEntry(kind.parse().map_err(|_| FieldsError::UnknownForm)?),
        };
        let json = Value::Object(fields).to_string();
        match json.len() <= MAX_UNSAVED_TEXT_BYTES {
            true => Ok(Self { form, json }),
            false => Err(FieldsError::TooLong),
        }
    }
}

/// The person who opened the form.
pub(super) fn form_person(body: &[u8]) -> Option<PersonId> {
    let (_, person) = form_urlencoded::parse(body).find(|(name, _)| name == PERSON)?;
    person.parse().ok().map(PersonId)
}

/// The editor's texts before earlier drafts, newest first.
pub(super) fn previous_texts(body: &[u8]) -> Vec<String> {
    let texts = form_urlencoded::parse(body).filter(|(name, _)| name == PREVIOUS_TEXT);
    // Browsers send line breaks as CRLF.
    texts.map(|(_, text)| text.replace("\r\n", "\n")).take(MAX_PREVIOUS_TEXTS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::entry_form::EntryInput;
    use chancery_domain::EntryKind;

    fn fields(body: &str) -> Result<UnsavedFields, FieldsError> {
        UnsavedFields::of(form_urlencoded::parse(body.as_bytes()))
    }

    #[test]
    fn unsaved_fields_name_their_form_and_round_trip() {
        let letter =
            fields("kind=draft_letter&title=Credit&text=Dear&is_open=1&former_text=a&former_text=b&x=1");
        let letter = letter.unwrap();
        assert_eq!(letter.form, UnsavedForm::NewEntry(EntryKind::DraftLetter));
        let typed: EntryInput = serde_json::from_str(&letter.json).unwrap();
        assert_eq!((typed.title.as_str(), typed.text.as_str()), ("Credit", "Dear"));
        assert_eq!(typed.is_open.as_deref(), Some("1"));
        assert_eq!(typed.previous_texts, ["a", "b"]);
        assert!(!letter.json.contains("\"x\""), "{}", letter.json);
        let dispute = fields("kind=billing_dispute&status=resolved&amount=12.50&due=2026-11-20").unwrap();
        let typed: EntryInput = serde_json::from_str(&dispute.json).unwrap();
        assert!(!typed.is_open());
        assert_eq!((typed.amount.as_deref(), typed.due.as_deref()), (Some("12.50"), Some("2026-11-20")));
        assert_eq!(fields("kind=draft_letter&entry=7").unwrap().form, UnsavedForm::Entry(EntryId(7)));
        assert_eq!(fields("kind=details&name=Calder").unwrap().form, UnsavedForm::Details);
    }

    #[test]
    fn unknown_forms_and_long_texts_are_rejected() {
        for body in ["", "kind=poem", "kind=meeting_note&entry=x", "kind=meeting_note&entry=0"] {
            assert_eq!(fields(body), Err(FieldsError::UnknownForm), "{body}");
        }
        let long = format!("kind=meeting_note&text={}", "x".repeat(MAX_UNSAVED_TEXT_BYTES));
        assert_eq!(fields(&long), Err(FieldsError::TooLong));
    }
}
