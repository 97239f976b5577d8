//! Templates of letters: plain text with placeholders such as `{{client.name}}`. Values are inserted as they are: nothing
//! in them is a placeholder again, and nothing is markup.

use crate::closest_match;
use std::fmt;

/// Templates of a firm: enough for any list that people still read.
pub const MAX_LETTER_TEMPLATES: u64 = 100;

/// How much of an unknown placeholder an error shows, in characters.
const MAX_SHOWN_CHARS: usize = 40;

const OPEN: &str = "{{";
const CLOSE: &str = "}}";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LetterTemplateId(pub i64);

impl fmt::Display for LetterTemplateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

closed_enum! {
    /// What a template can have filled in, by the text between the braces.
    pub enum Placeholder {
        ClientName = "client.name",
        ClientContact = "client.contact",
        ClientEmail = "client.email",
        ClientAddress = "client.address",
        ClientNumber = "client.number",
        Today = "today",
        MyName = "me.name",
        MyEmail = "me.email",
        FirmName = "firm.name",
    }
}

impl Placeholder {
    pub fn description(self) -> &'static str {
        match self {
            Self::ClientName => "the client’s name",
            Self::ClientContact => {
                "the contact’s name without the job title, or the client’s name if there is none"
            }
            Self::ClientEmail => "the client’s email address",
            Self::ClientAddress => "the client’s postal address",
            Self::ClientNumber => "the client number",
            Self::Today => "the date on which the letter is started",
            Self::MyName => "the name of the person who writes the letter",
            Self::MyEmail => "that person’s email address",
            Self::FirmName => "the firm’s name",
        }
    }
}

impl fmt::Display for Placeholder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{OPEN}{}{CLOSE}", self.as_str())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    #[error("there is no placeholder {{{{{0}}}}}; {hint}", hint = correction(.0))]
    Unknown(String),
    #[error("a placeholder starts with {{{{ and has no }}}}; close it or remove the braces")]
    Unclosed,
}

/// What to write instead of an unknown placeholder.
fn correction(unknown: &str) -> String {
    match closest_match(unknown, Placeholder::ALL.map(Placeholder::as_str)) {
        Some(name) => format!("did you mean {OPEN}{name}{CLOSE}?"),
        None => {
            format!("use one of {}", Placeholder::ALL.map(|placeholder| placeholder.to_string()).join(", "))
        }
    }
}

/// A piece of a template.
enum Piece<'a> {
    Text(&'a str),
    /// The text between the braces, trimmed.
    Placeholder(&'a str),
    /// Braces that are never closed, and all that follows.
    Unclosed(&'a str),
}

fn pieces(template: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once(OPEN) {
        pieces.push(Piece::Text(before));
        match after.split_once(CLOSE) {
            Some((name, after)) => {
                pieces.push(Piece::Placeholder(name.trim()));
                rest = after;
            }
            None => {
                pieces.push(Piece::Unclosed(&rest[before.len()..]));
                return pieces;
            }
        }
    }
    pieces.push(Piece::Text(rest));
    pieces
}

/// Fails at the first placeholder that is unknown or not closed.
pub fn check_template(template: &str) -> Result<(), TemplateError> {
    for piece in pieces(template) {
        match piece {
            Piece::Placeholder(name) if Placeholder::parse(name).is_none() => {
                return Err(TemplateError::Unknown(name.chars().take(MAX_SHOWN_CHARS).collect()));
            }
            Piece::Unclosed(_) => return Err(TemplateError::Unclosed),
            Piece::Text(_) | Piece::Placeholder(_) => {}
        }
    }
    Ok(())
}

/// Replaces every placeholder by its value. A placeholder that is no longer known stays as it is.
pub fn fill_template(template: &str, value: impl Fn(Placeholder) -> String) -> String {
    let mut filled = String::with_capacity(template.len());
    for piece in pieces(template) {
        match piece {
            Piece::Text(text) | Piece::Unclosed(text) => filled.push_str(text),
            Piece::Placeholder(name) => match Placeholder::parse(name) {
                Some(placeholder) => filled.push_str(&value(placeholder)),
                None => filled.extend([OPEN, name, CLOSE]),
            },
        }
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fill(template: &str) -> String {
        fill_template(template, |placeholder| match placeholder {
            Placeholder::ClientName => "{{today}} <b>&".to_owned(),
            other => other.as_str().to_uppercase(),
        })
    }

    #[test]
    fn values_are_inserted_as_they_are_and_never_filled_again() {
        assert_eq!(fill("Dear {{ client.contact }},\n\n{{today}}"), "Dear CLIENT.CONTACT,\n\nTODAY");
        assert_eq!(fill("{{client.name}}!"), "{{today}} <b>&!");
        assert_eq!(fill("{ {today} } {{old.name}} {{open"), "{ {today} } {{old.name}} {{open");
    }

    #[test]
    fn unknown_placeholder_is_rejected_by_name() {
        assert_eq!(check_template("Dear {{client.name}}, it is {{ today }}."), Ok(()));
        let error = check_template("Dear {{client.nmae}}").unwrap_err();
        assert_eq!(error, TemplateError::Unknown("client.nmae".to_owned()));
        let text = error.to_string();
        assert_eq!(text, "there is no placeholder {{client.nmae}}; did you mean {{client.name}}?");
        let far = check_template("{{invoice}}").unwrap_err().to_string();
        assert!(far.contains("use one of {{client.name}}, ") && far.contains("{{today}}"), "{far}");
        assert_eq!(check_template("{{today}} and {{me.name"), Err(TemplateError::Unclosed));
        assert!(check_template("{{}}").is_err());
    }

    #[test]
    fn every_placeholder_is_accepted_as_it_is_shown() {
        for placeholder in Placeholder::ALL {
            assert_eq!(check_template(&placeholder.to_string()), Ok(()), "{placeholder}");
            assert!(!placeholder.description().is_empty());
        }
    }

    proptest! {
        #[test]
        fn text_without_placeholders_is_unchanged(text in "\\PC{0,60}") {
            prop_assume!(!text.contains(OPEN));
            prop_assert_eq!(fill(&text), text);
        }
    }
}
