//! The parts of a letter that need no model: salutation, subject and closing, from the record. Names are used as recorded; nothing
//! is guessed, such as `Ms`.

use super::cleaner::ends_sentence;

/// A longer subject is cut at a word.
const MAX_SUBJECT_CHARS: usize = 80;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Skeleton {
    pub(super) opening: String,
    pub(super) closing: String,
}

impl Skeleton {
    pub(super) fn new(reader: &str, writer: &str, firm: &str) -> Self {
        Self {
            opening: format!("Dear {reader},\n\n"),
            closing: format!("\n\nKind regards,\n{writer}\n{firm}"),
        }
    }
}

/// Whom the letter addresses: the contact, if the record names one person, or else the client.
pub(super) fn reader(contact: &str, client_name: &str) -> String {
    contact_name(contact).unwrap_or_else(|| one_line(client_name))
}

/// The name of the contact, if the record names one person.
pub(super) fn contact_name(contact: &str) -> Option<String> {
    // Of `Priya Raman, owner`, the name.
    let name = contact.split([',', '(']).next().unwrap_or_default().trim();
    let words: Vec<&str> = name.split_whitespace().collect();
    let is_several = words.iter().any(|word| ["and", "or", "&", "+", "und"].contains(word));
    let is_name =
        name.chars().all(|c| c.is_alphabetic() || c.is_whitespace() || ['.', '\'', '’', '-'].contains(&c));
    (!words.is_empty() && !is_several && is_name).then(|| one_line(name))
}

/// The subject of a letter without a title: what its newest entry is about. The purpose is an order to the writer, so its first
/// sentence is the subject only where no entry was selected.
pub(super) fn subject(entry_title: Option<&str>, purpose: &str) -> String {
    if let Some(title) = entry_title {
        return one_line(title);
    }
    let first_line = purpose.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let mut subject = String::new();
    for word in first_line.split_whitespace() {
        if subject.chars().count() + 1 + word.chars().count() > MAX_SUBJECT_CHARS {
            break;
        }
        if !subject.is_empty() {
            subject.push(' ');
        }
        subject.push_str(word);
        if ends_sentence(word) {
            break;
        }
    }
    subject.trim_end_matches(['.', '!', '?']).to_owned()
}

/// Keeps a name from starting a new line.
pub(super) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn salutation_uses_the_recorded_name_or_the_client() {
        for (contact, expected) in [
            ("Priya Raman, owner", "Priya Raman"),
            ("Priya Raman (owner)", "Priya Raman"),
            ("Dr. Anne-Marie O’Hara", "Dr. Anne-Marie O’Hara"),
            ("", "Harbour Lane Bakery"),
            ("Priya Raman and her brother", "Harbour Lane Bakery"),
            ("office 12", "Harbour Lane Bakery"),
            ("priya@harbourlane.example", "Harbour Lane Bakery"),
        ] {
            assert_eq!(reader(contact, "Harbour Lane Bakery"), expected);
        }
        let skeleton = Skeleton::new("Priya Raman", "Maya Castellanos", "Marlow & Finch");
        assert_eq!(skeleton.opening, "Dear Priya Raman,\n\n");
        assert_eq!(skeleton.closing, "\n\nKind regards,\nMaya Castellanos\nMarlow & Finch");
    }

    #[test]
    fn subject_is_what_the_entry_is_about_or_else_the_purpose() {
        assert_eq!(subject(Some("Late report"), "Apologise for it."), "Late report");
        assert_eq!(subject(None, "Credit for September. Be brief."), "Credit for September");
        assert_eq!(subject(None, "\nCredit Dr. Hale $420.50!\nSoon."), "Credit Dr. Hale $420.50");
        assert_eq!(subject(None, ""), "");
        let long = subject(None, &"word ".repeat(40));
        assert!(long.chars().count() <= MAX_SUBJECT_CHARS && long.ends_with("word"), "{long}");
    }
}
