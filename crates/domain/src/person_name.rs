//! A person's name, which pages show instead of their address.

use crate::text::is_blank_char;
use crate::{LineMode, TextBounds, TextError};
use std::fmt;
use std::str::FromStr;

pub const MAX_PERSON_NAME_CHARS: usize = 80;

const BOUNDS: TextBounds =
    TextBounds { what: "the name", min_chars: 1, max_chars: MAX_PERSON_NAME_CHARS, lines: LineMode::Single };

/// One line without control characters, bidirectional overrides or `@`. Runs of blanks are one space.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PersonName(String);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PersonNameError {
    #[error(transparent)]
    Text(#[from] TextError),
    /// Nobody can pass off another person's address as a name.
    #[error("a name cannot contain `@`")]
    AtSign,
}

impl PersonName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Equal for names that look the same but for case and characters without a width. Pages show the addresses of
    /// people whose names are equal this way.
    pub fn folded(&self) -> String {
        let visible = |c: &char| *c == ' ' || !is_blank_char(*c);
        self.0.chars().filter(visible).flat_map(char::to_lowercase).collect()
    }
}

impl FromStr for PersonName {
    type Err = PersonNameError;

    fn from_str(text: &str) -> Result<Self, PersonNameError> {
        let name = BOUNDS.take(text)?;
        if name.contains(['@', '\u{ff20}', '\u{fe6b}']) {
            return Err(PersonNameError::AtSign);
        }
        Ok(Self(name.split_whitespace().collect::<Vec<_>>().join(" ")))
    }
}

impl fmt::Display for PersonName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(text: &str) -> PersonName {
        text.parse().unwrap()
    }

    #[test]
    fn names_are_trimmed_and_blanks_collapsed() {
        assert_eq!(name("  Maya \u{a0}\t Chen ").as_str(), "Maya Chen");
        assert_eq!(name("Åsa O'Neil-Núñez").as_str(), "Åsa O'Neil-Núñez");
        assert_eq!(name(&"x".repeat(MAX_PERSON_NAME_CHARS)).as_str().len(), MAX_PERSON_NAME_CHARS);
    }

    #[test]
    fn deceiving_names_are_rejected() {
        for text in [
            "",
            "  ",
            "\u{3164}",
            "Maya\nChen",
            "Maya\0",
            "Maya\u{7}",
            "\u{202e}nehC ayaM",
            "\u{2066}Maya",
            "Maya\u{200b}",
            "ruth@company.com",
            "ruth\u{ff20}company.com",
        ] {
            assert!(text.parse::<PersonName>().is_err(), "{text:?}");
        }
        assert!("x".repeat(MAX_PERSON_NAME_CHARS + 1).parse::<PersonName>().is_err());
    }

    #[test]
    fn folded_names_ignore_case_and_invisible_characters() {
        assert_eq!(name("Ruth HALE").folded(), name("ruth\u{200e} hale").folded());
        assert_ne!(name("Ruth Hale").folded(), name("Ruth Haley").folded());
    }

    proptest! {
        #[test]
        fn accepted_name_is_stable_and_bounded(text in "\\PC{0,100}") {
            if let Ok(name) = text.parse::<PersonName>() {
                prop_assert_eq!(name.as_str().parse::<PersonName>(), Ok(name.clone()));
                let chars = name.as_str().chars().count();
                prop_assert!((1..=MAX_PERSON_NAME_CHARS).contains(&chars));
                prop_assert!(!name.as_str().chars().any(|c| c.is_control() || c == '@'));
            }
        }
    }
}
