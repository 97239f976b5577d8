//! A telephone number as people write it. The format stays theirs; what is no number at all is rejected.

use crate::client::ContactField;
use crate::text::TextError;
use std::fmt;
use std::str::FromStr;

/// Emergency numbers have three.
const MIN_DIGITS: usize = 3;
const MAX_EXTENSION_DIGITS: usize = 10;
const PUNCTUATION: &str = "+()-./\u{2010}\u{2011}\u{2013}";

/// Digits with spaces and `+ ( ) - . /`, and optionally an extension: `+1 617 555 0142 ext. 12`. May be empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(transparent)]
pub struct Telephone(String);

impl Telephone {
    pub(crate) const fn empty() -> Self {
        Self(String::new())
    }

    /// Skips validation, because stored text may predate the current rules.
    pub fn from_stored(text: String) -> Self {
        Self(text)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Telephone {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let text = ContactField::TEXT_BOUNDS.take(text)?;
        match text.is_empty() || is_number(&text) {
            true => Ok(Self(text)),
            false => Err(TextError::NotATelephoneNumber),
        }
    }
}

impl fmt::Display for Telephone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_number(text: &str) -> bool {
    let (number, extension) = match text.find(char::is_alphabetic) {
        Some(start) => text.split_at(start),
        None => (text, ""),
    };
    let is_allowed = |c: char| is_digit(c) || c.is_whitespace() || PUNCTUATION.contains(c);
    number.chars().all(is_allowed)
        && number.chars().filter(|c| is_digit(*c)).count() >= MIN_DIGITS
        && (extension.is_empty() || is_extension(extension))
}

fn is_extension(text: &str) -> bool {
    let text = text.to_lowercase();
    let word_end = text.find(|c: char| !c.is_alphabetic()).unwrap_or(text.len());
    let (word, rest) = text.split_at(word_end);
    let digits = rest.trim_start_matches('.').trim();
    matches!(word, "x" | "ext" | "extension")
        && (1..=MAX_EXTENSION_DIGITS).contains(&digits.chars().count())
        && digits.chars().all(is_digit)
}

/// Arabic, Persian and Devanagari digits too: they are on the keyboards of people who use them.
fn is_digit(c: char) -> bool {
    c.is_ascii_digit() || matches!(c, '\u{660}'..='\u{669}' | '\u{6f0}'..='\u{6f9}' | '\u{966}'..='\u{96f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn telephone_is_empty_or_a_number_with_an_optional_extension() {
        for good in [
            "",
            "  ",
            "112",
            "+1 617 555 0142",
            "(0)20/7946-0958",
            "617.555.0142 ext. 12",
            "617 555 0142 x12",
            "+49 30 1234 Extension 7",
            "٠٢٠ ٧٩٤٦",
        ] {
            assert!(good.parse::<Telephone>().is_ok(), "{good:?} was rejected");
        }
        for bad in [
            "call me maybe",
            "12",
            "+-()",
            "617 555 0142 ask",
            "ext. 12",
            "617 555 0142 ext.",
            "javascript:1112",
        ] {
            assert_eq!(bad.parse::<Telephone>(), Err(TextError::NotATelephoneNumber), "{bad:?}");
        }
        assert!(matches!("1".repeat(201).parse::<Telephone>(), Err(TextError::TooLong { .. })));
    }
}
