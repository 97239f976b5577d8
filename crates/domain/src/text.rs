//! Text that people write into forms and files, within bounds.

/// What a text must keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// As errors call it, with its article.
    pub what: &'static str,
    pub min_chars: usize,
    pub max_chars: usize,
    pub lines: Lines,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    One,
    Many,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    #[error("{what} is missing")]
    Missing { what: &'static str },
    #[error("{what} has {chars} characters; {max_chars} at most")]
    TooLong { what: &'static str, chars: usize, max_chars: usize },
    #[error("{what} is one line; take the line breaks out")]
    SeveralLines { what: &'static str },
    #[error("{what} has a character that cannot be shown (U+{:04X}); take it out", u32::from(*character))]
    Unprintable { what: &'static str, character: char },
    #[error("an e-mail address has one @, with something on both sides of it, and no blanks")]
    NotAnEmailAddress,
}

impl Bounds {
    /// The text as it is kept: without blanks at its ends, and with `\n` at the ends of lines.
    pub fn take(&self, text: &str) -> Result<String, TextError> {
        let Self { what, min_chars, max_chars, lines } = *self;
        let text = text.replace("\r\n", "\n").replace(['\r', '\u{b}', '\u{c}', '\u{2028}', '\u{2029}'], "\n");
        let text = text.trim();
        if lines == Lines::One && text.contains('\n') {
            return Err(TextError::SeveralLines { what });
        }
        if let Some(character) = text.chars().find(|c| is_unprintable(*c)) {
            return Err(TextError::Unprintable { what, character });
        }
        match text.chars().count() {
            chars if chars < min_chars => Err(TextError::Missing { what }),
            _ if min_chars > 0 && text.chars().all(takes_no_ink) => Err(TextError::Missing { what }),
            chars if chars > max_chars => Err(TextError::TooLong { what, chars, max_chars }),
            _ => Ok(text.to_owned()),
        }
    }
}

/// Control characters, and those that make text look like another: turned around, or with something unseen in it. Joiners and
/// marks of direction stay, for some scripts need them.
fn is_unprintable(c: char) -> bool {
    let is_blank = matches!(c, '\n' | '\t');
    // Tags are letters that nobody sees and a model reads.
    let is_deceiving = matches!(c, '\u{e0000}'..='\u{e007f}' | '\u{200b}' | '\u{202a}'..='\u{202e}' | '\u{2060}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
    (c.is_control() && !is_blank) || is_deceiving
}

/// Of nothing but such characters no text is made, for nobody would see one.
fn takes_no_ink(c: char) -> bool {
    let is_blank_letter = matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180e}'
        | '\u{200c}'..='\u{200f}' | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}');
    c.is_whitespace() || is_blank_letter
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOTE: Bounds = Bounds { what: "the text", min_chars: 1, max_chars: 50, lines: Lines::Many };

    #[test]
    fn what_cannot_be_shown_is_named() {
        let error = NOTE.take("a\u{202e}b").unwrap_err().to_string();
        assert!(error.contains("the text") && error.contains("U+202E"), "{error}");
        assert!(NOTE.take("a\0b").is_err());
        assert!(NOTE.take("شرکة\u{200f} مثال").is_ok(), "marks of direction belong to some scripts");
        assert!(NOTE.take("می\u{200c}خواهم").is_ok());
    }

    #[test]
    fn what_nobody_would_see_is_no_text() {
        for unseen in ["\u{ad}", "\u{3164}\u{3164}", "\u{2800}", "\u{115f}", "\u{61c}", "\u{200d} \u{fe0f}"] {
            assert!(NOTE.take(unseen).is_err(), "{unseen:?} was taken");
        }
        assert!(NOTE.take("pay at once\u{e0041}\u{e0042}").is_err());
        assert!(NOTE.take("soft\u{ad}hyphen").is_ok());
    }

    proptest! {
        #[test]
        fn a_text_that_was_taken_is_taken_again_unchanged(text in "\\PC{0,60}") {
            if let Ok(taken) = NOTE.take(&text) {
                prop_assert_eq!(NOTE.take(&taken), Ok(taken.clone()));
                prop_assert!(taken.chars().count() <= 50 && !taken.is_empty());
            }
        }
    }
}
