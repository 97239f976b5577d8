//! What a field's value may be: how it is read, and how its schema tells the same. One type for each, with its bounds.

use super::fields::{whole, wrong_type};
use crate::error::{ApiError, ApiResult};
use crate::json::{Json, LARGEST_EXACT, shorten};
use serde_json::{Value, json};

pub(crate) trait Kind {
    /// Its default stands for the value where a list of fields is only described.
    type Value: Default;
    /// What an error says that a value must be.
    const WANTED: &'static str;

    /// Reads the value that stands at `path`; it is not null.
    fn read(&self, path: &str, value: Json) -> ApiResult<Self::Value>;

    /// Allows what `read` takes; an optional field adds null by itself.
    fn schema(&self) -> Value;
}

pub(crate) struct Text;

impl Kind for Text {
    type Value = String;
    const WANTED: &'static str = "a string";

    fn read(&self, path: &str, value: Json) -> ApiResult<String> {
        match value {
            Json::String(text) => Ok(text),
            other => Err(wrong_type(path, Self::WANTED, &other)),
        }
    }

    fn schema(&self) -> Value {
        json!({ "type": "string" })
    }
}

pub(crate) struct Boolean;

impl Kind for Boolean {
    type Value = bool;
    const WANTED: &'static str = "a boolean";

    fn read(&self, path: &str, value: Json) -> ApiResult<bool> {
        match value {
            Json::Bool(value) => Ok(value),
            other => Err(wrong_type(path, Self::WANTED, &other)),
        }
    }

    fn schema(&self) -> Value {
        json!({ "type": "boolean" })
    }
}

/// Without `max`, the upper bound is checked later, because it depends on the model.
pub(crate) struct Integer {
    pub min: u64,
    pub max: Option<u64>,
}

impl Kind for Integer {
    type Value = u64;
    const WANTED: &'static str = "an integer";

    fn read(&self, path: &str, value: Json) -> ApiResult<u64> {
        let max = self.max.unwrap_or(u64::MAX);
        let integer = match value {
            Json::Integer(value) => u64::try_from(value).ok(),
            // JSON does not tell `64` from `64.0`, so a whole number is an integer however it is written.
            Json::Number(value) if value.fract() == 0.0 => {
                (0.0..=LARGEST_EXACT).contains(&value).then_some(value as u64)
            }
            Json::Number(_) => {
                let reason = format!("`{path}` must be an integer, and it has a fraction");
                return Err(ApiError::malformed(reason).at_field(path));
            }
            other => return Err(wrong_type(path, Self::WANTED, &other)),
        };
        integer.filter(|value| (self.min..=max).contains(value)).ok_or_else(|| {
            let reason = format!("`{path}` is out of range; it must be from {} to {max}", self.min);
            ApiError::invalid_value(path, reason)
        })
    }

    fn schema(&self) -> Value {
        let mut schema = json!({ "type": "integer", "minimum": self.min });
        if let Some(max) = self.max {
            schema["maximum"] = json!(max);
        }
        schema
    }
}

pub(crate) struct Number {
    pub min: f64,
    /// Whether the value must be above `min`.
    pub excludes_min: bool,
    pub max: f64,
}

impl Kind for Number {
    type Value = f32;
    const WANTED: &'static str = "a number";

    fn read(&self, path: &str, value: Json) -> ApiResult<f32> {
        let number = match value {
            Json::Integer(value) => value as f64,
            Json::Number(value) => value,
            other => return Err(wrong_type(path, Self::WANTED, &other)),
        };
        let Self { min, excludes_min, max } = *self;
        let range = match excludes_min {
            true if number > min && number <= max => {
                // What is too small for the type is above the minimum all the same.
                return Ok((number as f32).max(min as f32 + f32::MIN_POSITIVE));
            }
            false if (min..=max).contains(&number) => return Ok(number as f32),
            true => format!("above {min} and at most {max}"),
            false => format!("from {min} to {max}"),
        };
        Err(ApiError::invalid_value(path, format!("`{path}` must be {range}")))
    }

    fn schema(&self) -> Value {
        let min = if self.excludes_min { "exclusiveMinimum" } else { "minimum" };
        json!({ "type": "number", min: whole(json!(self.min)), "maximum": whole(json!(self.max)) })
    }
}

/// One of a few words.
pub(crate) struct Word {
    pub words: &'static [&'static str],
    /// Stands before the words in the error, such as `it must be`.
    pub demand: &'static str,
}

impl Kind for Word {
    type Value = &'static str;
    const WANTED: &'static str = Text::WANTED;

    fn read(&self, path: &str, value: Json) -> ApiResult<&'static str> {
        let text = Text.read(path, value)?;
        self.words.iter().find(|word| **word == text).copied().ok_or_else(|| {
            let reason = format!(
                "`{path}` is {:?}, which is not offered here; {} {}",
                shorten(&text),
                self.demand,
                listed(self.words)
            );
            ApiError::invalid_value(path, reason)
        })
    }

    fn schema(&self) -> Value {
        json!({ "type": "string", "enum": self.words })
    }
}

/// `a`, `a or b`, `a, b or c`.
fn listed(words: &[&str]) -> String {
    match words {
        [first @ .., one, last] => [first, &[format!("{one} or {last}").as_str()]].concat().join(", "),
        few => few.concat(),
    }
}
