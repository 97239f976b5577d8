//! Sources of settings: one TOML file and the environment, flattened to dotted keys. Each value keeps its origin, so that
//! problems can name its location. `figment` and `config` track a value's file but not its line; only `toml` does, in the
//! spans of its tables.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// Merged keys of the file and the environment; the environment wins.
#[derive(Debug, Default)]
pub struct Source {
    pub entries: BTreeMap<String, Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub value: RawValue,
    pub origin: Origin,
}

/// A value before its type is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawValue {
    Text(String),
    Integer(String),
    Boolean(bool),
    Strings(Vec<String>),
    /// A type that no key accepts, by its TOML name.
    Other(&'static str),
}

/// The type name of an empty section.
pub const EMPTY_TABLE: &str = "empty table";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Default,
    CommandLine,
    File { path: PathBuf, line: usize },
    Environment { variable: String },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::CommandLine => f.write_str("command line"),
            Self::File { path, line } => write!(f, "{} line {line}", path.display()),
            Self::Environment { variable } => write!(f, "environment variable {variable}"),
        }
    }
}

impl Source {
    /// Adds the settings of a TOML text; `path` is only used in messages.
    pub fn add_file(&mut self, path: &Path, text: &str) -> Result<(), String> {
        let line_of = |offset: usize| text[..offset.min(text.len())].matches('\n').count() + 1;
        let table = DeTable::parse(text).map_err(|error| {
            let line = error.span().map_or(1, |span| line_of(span.start));
            format!("{} line {line}: {}", path.display(), error.message().trim())
        })?;
        let mut add = |key: String, value: RawValue, offset: usize| {
            let origin = Origin::File { path: path.to_owned(), line: line_of(offset) };
            self.entries.insert(key, Entry { value, origin });
        };
        flatten(table.get_ref(), "", &mut add);
        Ok(())
    }

    /// Adds `CHANCERY_SECTION__KEY` variables. Other variables that start with `CHANCERY_`, such as the client's URL and key,
    /// are not settings. `CHANCERY_DATA` is the only setting outside a section.
    pub fn add_environment(&mut self, variables: impl IntoIterator<Item = (String, String)>) {
        for (variable, value) in variables {
            let Some(name) = variable.strip_prefix("CHANCERY_") else { continue };
            if name == "DATA" || name.contains("__") {
                let key = name.to_ascii_lowercase().replace("__", ".");
                self.entries.insert(
                    key,
                    Entry { value: RawValue::Text(value), origin: Origin::Environment { variable } },
                );
            }
        }
    }
}

fn flatten(table: &DeTable<'_>, prefix: &str, add: &mut impl FnMut(String, RawValue, usize)) {
    for (name, value) in table {
        let key = format!("{prefix}{}", name.get_ref());
        let offset = name.span().start;
        match value.get_ref() {
            DeValue::Table(inner) if !inner.is_empty() => flatten(inner, &format!("{key}."), add),
            DeValue::Table(_) => add(key, RawValue::Other(EMPTY_TABLE), offset),
            DeValue::Array(items)
                if !items.is_empty() && items.iter().all(|item| item.get_ref().is_table()) =>
            {
                for (index, item) in items.iter().enumerate() {
                    match item.get_ref() {
                        DeValue::Table(inner) if !inner.is_empty() => {
                            flatten(inner, &format!("{key}.{index}."), add);
                        }
                        _ => add(format!("{key}.{index}"), RawValue::Other(EMPTY_TABLE), offset),
                    }
                }
            }
            DeValue::Array(items) => {
                let texts: Option<Vec<String>> =
                    items.iter().map(|item| item.get_ref().as_str().map(str::to_owned)).collect();
                add(key, texts.map_or(RawValue::Other("array"), RawValue::Strings), offset);
            }
            DeValue::String(text) => add(key, RawValue::Text(text.to_string()), offset),
            DeValue::Integer(number) => add(key, RawValue::Integer(number.to_string()), offset),
            DeValue::Boolean(value) => add(key, RawValue::Boolean(*value), offset),
            other => add(key, RawValue::Other(other.type_str()), offset),
        }
    }
}
