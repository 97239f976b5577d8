//! Validation errors of a form, by field, worded for the user.

use chancery_domain::TextError;
use std::str::FromStr;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The field's `id` attribute.
    pub field: &'static str,
    pub text: String,
}

/// In field order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    pub fn one(field: &'static str, text: impl Into<String>) -> Self {
        Self(vec![Problem { field, text: text.into() }])
    }

    pub fn add(&mut self, field: &'static str, text: impl Into<String>) {
        self.0.push(Problem { field, text: text.into() });
    }

    /// Parses a domain text, or records its problem. `missing` is the message for an empty field.
    pub fn parse<T>(&mut self, field: &'static str, typed: &str, missing: &str) -> Option<T>
    where
        T: FromStr<Err = TextError>,
    {
        typed.parse().map_err(|error| self.add(field, text_error_message(&error, missing))).ok()
    }

    pub fn any(&self) -> bool {
        !self.0.is_empty()
    }

    /// A single problem is explained at its field.
    pub fn needs_summary(&self) -> bool {
        self.0.len() > 1
    }

    pub fn of(&self, field: &str) -> Option<&str> {
        self.0.iter().find(|problem| problem.field == field).map(|problem| problem.text.as_str())
    }

    /// All problems in one line, each with its field name.
    pub fn joined(&self) -> String {
        let problems: Vec<_> = self
            .0
            .iter()
            .map(|Problem { field, text }| format!("`{field}`: {}", text.trim_end_matches('.')))
            .collect();
        problems.join("; ")
    }

    pub fn heading(&self) -> String {
        match self.0.len() {
            0 | 1 => "There is a problem".to_owned(),
            count => format!("Fix {count} problems"),
        }
    }
}

/// The message for a field with invalid text.
pub fn text_error_message(error: &TextError, missing: &str) -> String {
    match error {
        TextError::Missing { .. } => missing.to_owned(),
        TextError::NotAnEmailAddress => "Enter an email address like name@example.com".to_owned(),
        error => capitalize(&error.to_string()),
    }
}

/// Capitalizes the first letter, for the start of a sentence.
pub fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}
