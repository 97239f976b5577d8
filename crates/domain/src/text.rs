//! Validates and normalizes text from forms and files.

/// The limits of one text field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextBounds {
    /// The field's name in errors, with its article.
    pub what: &'static str,
    pub min_chars: usize,
    pub max_chars: usize,
    pub lines: LineMode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineMode {
    Single,
    Multiple,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    #[error("{what} is missing")]
    Missing { what: &'static str },
    #[error("use at most {max_chars} characters for {what}; it has {chars}")]
    TooLong { what: &'static str, chars: usize, max_chars: usize },
    #[error("{what} must be one line")]
    MultipleLines { what: &'static str },
    #[error("{what} contains an invisible character (U+{:04X}); remove it", u32::from(*character))]
    Unprintable { what: &'static str, character: char },
    #[error("enter an email address like name@example.com")]
    NotAnEmailAddress,
    #[error("enter a telephone number like +1 617 555 0142, or +1 617 555 0142 ext. 12")]
    NotATelephoneNumber,
}

impl TextBounds {
    /// Validates the text and returns it as stored: trimmed, and with `\n` line endings.
    pub fn take(&self, text: &str) -> Result<String, TextError> {
        let Self { what, min_chars, max_chars, lines } = *self;
        let text = text.replace("\r\n", "\n").replace(['\r', '\u{b}', '\u{c}', '\u{2028}', '\u{2029}'], "\n");
        let text = text.trim();
        if lines == LineMode::Single && text.contains('\n') {
            return Err(TextError::MultipleLines { what });
        }
        if let Some(character) = text.chars().find(|c| is_unprintable(*c)) {
            return Err(TextError::Unprintable { what, character });
        }
        match text.chars().count() {
            chars if chars < min_chars => Err(TextError::Missing { what }),
            _ if min_chars > 0 && text.chars().all(is_blank_char) => Err(TextError::Missing { what }),
            chars if chars > max_chars => Err(TextError::TooLong { what, chars, max_chars }),
            _ => Ok(text.to_owned()),
        }
    }
}

/// Control characters, and characters that disguise text: bidirectional overrides and invisible characters. Joiners and
/// directional marks are allowed, because some scripts need them.
fn is_unprintable(c: char) -> bool {
    let is_blank = matches!(c, '\n' | '\t');
    // Tag characters are invisible to people, but a model reads them.
    let is_deceiving = matches!(c, '\u{e0000}'..='\u{e007f}' | '\u{200b}' | '\u{202a}'..='\u{202e}' | '\u{2060}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
    (c.is_control() && !is_blank) || is_deceiving
}

/// Characters that render as blank. Text of only such characters counts as missing.
pub(crate) fn is_blank_char(c: char) -> bool {
    let is_blank_letter = matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180e}'
        | '\u{200c}'..='\u{200f}' | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}');
    c.is_whitespace() || is_blank_letter
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOTE: TextBounds =
        TextBounds { what: "the text", min_chars: 1, max_chars: 50, lines: LineMode::Multiple };

    #[test]
    fn unprintable_character_is_named_in_error() {
        let error = NOTE.take("a\u{202e}b").unwrap_err().to_string();
        assert!(error.contains("the text") && error.contains("U+202E"), "{error}");
        assert!(NOTE.take("a\0b").is_err());
        assert!(NOTE.take("شرکة\u{200f} مثال").is_ok(), "marks of direction belong to some scripts");
        assert!(NOTE.take("می\u{200c}خواهم").is_ok());
    }

    #[test]
    fn invisible_text_counts_as_missing() {
        for unseen in ["\u{ad}", "\u{3164}\u{3164}", "\u{2800}", "\u{115f}", "\u{61c}", "\u{200d} \u{fe0f}"] {
            assert!(NOTE.take(unseen).is_err(), "{unseen:?} was taken");
        }
        assert!(NOTE.take("pay at once\u{e0041}\u{e0042}").is_err());
        assert!(NOTE.take("soft\u{ad}hyphen").is_ok());
    }

    proptest! {
        #[test]
        fn text_normalization_is_idempotent(text in "\\PC{0,60}") {
            if let Ok(taken) = NOTE.take(&text) {
                prop_assert_eq!(NOTE.take(&taken), Ok(taken.clone()));
                prop_assert!(taken.chars().count() <= 50 && !taken.is_empty());
            }
        }
    }
}
