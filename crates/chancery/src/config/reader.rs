//! Reads typed values from a `Source`. It collects all mistakes, each with its key, location and fix. At the end it reports
//! unknown keys with the nearest known one. It does not use `Deserialize`: serde stops at the first mistake and does not track
//! the origin of each value for `chancery config show`.

use super::bounds::UNBOUNDED;
use super::source::{EMPTY_TABLE, Entry, Origin, RawValue, Source};
use chancery_domain::mask_url;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::num::IntErrorKind;
use std::ops::RangeInclusive;
use std::str::FromStr;

pub struct Reader {
    entries: BTreeMap<String, Entry>,
    /// Every key that was read, with its effective value, in read order.
    pub settings: Vec<Setting>,
    pub problems: Vec<String>,
}

/// One line of `chancery config show`.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Setting {
    pub key: String,
    /// `None` if the key is unset and has no default.
    pub value: Option<String>,
    pub origin: String,
}

impl Setting {
    /// For people. Not at once: a reload compares values, secrets included.
    pub fn masked(self) -> Self {
        let mask = |value: String| value.split(", ").map(mask_url).collect::<Vec<_>>().join(", ");
        Self { value: self.value.map(mask), ..self }
    }
}

impl Reader {
    pub fn new(source: Source) -> Self {
        Self { entries: source.entries, settings: Vec::new(), problems: Vec::new() }
    }

    /// Returns the number of tables in an array of tables; its keys are `array.0.key`, `array.1.key`, …
    pub fn array_len(&self, array: &str) -> usize {
        let index = |key: &String| {
            key.strip_prefix(array)?.strip_prefix('.')?.split('.').next()?.parse::<usize>().ok()
        };
        self.entries.keys().filter_map(index).max().map_or(0, |last| last.saturating_add(1))
    }

    /// The names in a table whose keys the user chooses, in order.
    pub fn names_in(&self, table: &str) -> Vec<String> {
        let name = |key: &String| key.strip_prefix(table)?.strip_prefix('.').map(str::to_owned);
        self.entries.keys().filter_map(name).collect()
    }

    /// A value, or a list of accepted values, with their types.
    pub fn json_values(&mut self, key: &str) -> Vec<serde_json::Value> {
        let values: Vec<serde_json::Value> = match self.entries.get(key).map(|entry| entry.value.clone()) {
            Some(RawValue::Text(text)) => vec![text.into()],
            Some(RawValue::Boolean(value)) => vec![value.into()],
            Some(RawValue::Strings(texts)) => texts.into_iter().map(Into::into).collect(),
            Some(RawValue::Integer(literal)) => {
                literal.replace('_', "").parse::<i64>().map(Into::into).into_iter().collect()
            }
            _ => Vec::new(),
        };
        if values.is_empty() {
            self.problem(key, "must be a string, an integer, true, false or a list of strings");
        }
        let shown: Vec<String> = values.iter().map(ToString::to_string).collect();
        self.record_setting(key, Some(shown.join(", ")));
        values
    }

    pub fn origin(&self, key: &str) -> Origin {
        self.entries.get(key).map_or(Origin::Default, |entry| entry.origin.clone())
    }

    pub fn problem(&mut self, key: &str, message: impl Display) {
        let origin = self.origin(key);
        self.problems.push(match origin {
            Origin::Default => format!("{key}: {message}"),
            origin => format!("{origin}: {key}: {message}"),
        });
    }

    fn record_setting(&mut self, key: &str, value: Option<String>) {
        let origin = self.origin(key).to_string();
        self.settings.push(Setting { key: key.to_owned(), value, origin });
    }

    pub fn optional_text(&mut self, key: &str) -> Option<String> {
        let value = match self.entries.get(key).map(|entry| entry.value.clone()) {
            None => None,
            Some(RawValue::Text(text)) if !text.is_empty() && !text.contains('\0') => Some(text),
            Some(_) => {
                self.problem(key, "must be a non-empty string");
                None
            }
        };
        self.record_setting(key, value.clone());
        value
    }

    pub fn text(&mut self, key: &str, default: &str) -> String {
        match self.optional_text(key) {
            Some(text) => text,
            None => {
                if let Some(setting) = self.settings.last_mut() {
                    setting.value = Some(default.to_owned());
                }
                default.to_owned()
            }
        }
    }

    /// Parses a text value; the parser's error describes the expected format.
    pub fn parsed<T: FromStr<Err: Display>>(&mut self, key: &str, default: T, default_text: &str) -> T {
        let text = self.text(key, default_text);
        match text.parse() {
            Ok(value) => value,
            Err(error) => {
                self.problem(key, format!("{text:?}: {error}"));
                default
            }
        }
    }

    pub fn optional_integer(&mut self, key: &str, range: RangeInclusive<u64>) -> Option<u64> {
        let literal = match self.entries.get(key).map(|entry| &entry.value) {
            None => {
                self.record_setting(key, None);
                return None;
            }
            Some(RawValue::Integer(literal) | RawValue::Text(literal)) => literal.clone(),
            Some(_) => String::new(),
        };
        match literal.replace('_', "").parse::<u64>() {
            Ok(value) if range.contains(&value) => {
                self.record_setting(key, Some(value.to_string()));
                Some(value)
            }
            parsed => {
                let is_too_large = match &parsed {
                    Ok(value) => value > range.end(),
                    Err(error) => *error.kind() == IntErrorKind::PosOverflow,
                };
                let message = match (range.start(), range.end()) {
                    (_, &UNBOUNDED) if is_too_large => "too large; use a smaller number".to_owned(),
                    (min, &UNBOUNDED) => format!("must be an integer, {min} or more"),
                    (min, max) => format!("must be an integer from {min} to {max}"),
                };
                self.problem(key, message);
                self.record_setting(key, None);
                None
            }
        }
    }

    pub fn integer(&mut self, key: &str, default: u64, range: RangeInclusive<u64>) -> u64 {
        match self.optional_integer(key, range) {
            Some(value) => value,
            None => {
                if let Some(setting) = self.settings.last_mut().filter(|setting| setting.key == key) {
                    setting.value = Some(default.to_string());
                }
                default
            }
        }
    }

    pub fn boolean(&mut self, key: &str, default: bool) -> bool {
        let value = match self.entries.get(key).map(|entry| &entry.value) {
            None => default,
            Some(RawValue::Boolean(value)) => *value,
            Some(RawValue::Text(text)) if text == "true" => true,
            Some(RawValue::Text(text)) if text == "false" => false,
            Some(_) => {
                self.problem(key, "must be true or false");
                default
            }
        };
        self.record_setting(key, Some(value.to_string()));
        value
    }

    /// Reads a list of texts; an environment variable separates them with commas.
    pub fn texts(&mut self, key: &str) -> Vec<String> {
        let is_variable = matches!(self.origin(key), Origin::Environment { .. });
        let texts = match self.entries.get(key).map(|entry| entry.value.clone()) {
            None => Vec::new(),
            Some(RawValue::Strings(texts)) => texts,
            Some(RawValue::Text(text)) if is_variable => {
                text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
            }
            Some(_) => {
                self.problem(key, "must be a list of strings, such as [\"ruth@example.com\"]");
                Vec::new()
            }
        };
        let shown = (!texts.is_empty()).then(|| texts.join(", "));
        self.record_setting(key, shown);
        texts
    }

    /// Marks the key as known without reading its value.
    pub fn skip(&mut self, key: &str) -> bool {
        self.settings.push(Setting { key: key.to_owned(), value: None, origin: String::new() });
        self.entries.contains_key(key)
    }

    /// Replaces a secret in the displayed settings.
    pub fn show_as(&mut self, key: &str, shown: String) {
        if let Some(setting) = self.settings.iter_mut().rev().find(|setting| setting.key == key) {
            setting.value = Some(shown);
        }
    }

    /// An empty section counts as no value.
    pub fn has_value(&self, key: &str) -> bool {
        self.entries.get(key).is_some_and(|entry| entry.value != RawValue::Other(EMPTY_TABLE))
    }

    /// Call this after all known keys have been read.
    pub fn report_unknown(&mut self) {
        let without_index = |key: &str| {
            key.split('.').filter(|part| part.parse::<usize>().is_err()).collect::<Vec<_>>().join(".")
        };
        let known: Vec<String> = self.settings.iter().map(|setting| without_index(&setting.key)).collect();
        let unknown: Vec<String> = self
            .entries
            .keys()
            .filter(|key| !self.settings.iter().any(|setting| setting.key == **key))
            .cloned()
            .collect();
        let is_section =
            |key: &String| self.settings.iter().any(|setting| setting.key.starts_with(&format!("{key}.")));
        let unknown: Vec<String> =
            unknown.into_iter().filter(|key| !is_section(key) || self.has_value(key)).collect();
        for key in unknown {
            if key.split('.').next() == Some("models")
                && !key.split('.').any(|part| part.parse::<usize>().is_ok())
            {
                self.problem(&key, "must be a list of tables: write [[models]], with two brackets");
                continue;
            }
            let hint = match chancery_domain::closest_match(
                &without_index(&key),
                known.iter().map(String::as_str),
            ) {
                Some(near) => format!("did you mean {near}?"),
                None => "run `chancery config show` to see all keys".to_owned(),
            };
            self.problem(&key, format!("unknown key; {hint}"));
        }
    }
}
