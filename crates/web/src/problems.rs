//! What is wrong with a form, field by field, in words for the person who filled it in.

use chancery_domain::TextError;
use std::str::FromStr;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The field's `id`.
    pub field: &'static str,
    pub text: String,
}

/// In the order of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    pub fn one(field: &'static str, text: impl Into<String>) -> Self {
        Self(vec![Problem { field, text: text.into() }])
    }

    pub fn add(&mut self, field: &'static str, text: impl Into<String>) {
        self.0.push(Problem { field, text: text.into() });
    }

    /// A text of the domain's, or its problem. `missing` is what to do where nothing was typed.
    pub fn parse<T>(&mut self, field: &'static str, typed: &str, missing: &str) -> Option<T>
    where
        T: FromStr<Err = TextError>,
    {
        typed.parse().map_err(|error| self.add(field, text_problem(&error, missing))).ok()
    }

    pub fn any(&self) -> bool {
        !self.0.is_empty()
    }

    /// With one, the words at its field say enough.
    pub fn need_a_summary(&self) -> bool {
        self.0.len() > 1
    }

    pub fn of(&self, field: &str) -> Option<&str> {
        self.0.iter().find(|problem| problem.field == field).map(|problem| problem.text.as_str())
    }

    /// In one line, each with the name of its field.
    pub fn in_words(&self) -> String {
        let words: Vec<_> =
            self.0.iter().map(|Problem { field, text }| format!("`{field}`: {text}")).collect();
        words.join(" ")
    }

    /// The summary's heading.
    pub fn heading(&self) -> &'static str {
        match self.0.len() {
            0 | 1 => "One thing to put right",
            2 => "Two things to put right",
            3 => "Three things to put right",
            4 => "Four things to put right",
            _ => "Several things to put right",
        }
    }
}

/// What to do about a text, in words for its field.
pub fn text_problem(error: &TextError, missing: &str) -> String {
    match error {
        TextError::Missing { .. } => missing.to_owned(),
        TextError::NotAnEmailAddress => "Write the e-mail address like name@example.com".to_owned(),
        error => capitalized(&error.to_string()),
    }
}

/// As a sentence begins.
pub fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
