//! Value types of fields, with their bounds. Each type reads a value and describes the same rules as a schema.

use super::fields::{integral_as_integer, wrong_type};
use crate::error::{ApiError, ApiResult};
use crate::json::{Json, LARGEST_EXACT, truncate};
use serde_json::{Value, json};

pub(crate) trait FieldType {
    /// The default is a placeholder while describing the schema.
    type Value: Default;
    /// Completes "must be …" in errors.
    const EXPECTED: &'static str;

    /// Reads the value at `path`, which is never null.
    fn read(&self, path: &str, value: Json) -> ApiResult<Self::Value>;

    /// Must allow exactly what `read` accepts. Optional fields add null themselves.
    fn schema(&self) -> Value;
}

pub(crate) struct Text;

impl FieldType for Text {
    type Value = String;
    const EXPECTED: &'static str = "a string";

    fn read(&self, path: &str, value: Json) -> ApiResult<String> {
        match value {
            Json::String(text) => Ok(text),
            other => Err(wrong_type(path, Self::EXPECTED, &other)),
        }
    }

    fn schema(&self) -> Value {
        json!({ "type": "string" })
    }
}

pub(crate) struct Boolean;

impl FieldType for Boolean {
    type Value = bool;
    const EXPECTED: &'static str = "a boolean";

    fn read(&self, path: &str, value: Json) -> ApiResult<bool> {
        match value {
            Json::Bool(value) => Ok(value),
            other => Err(wrong_type(path, Self::EXPECTED, &other)),
        }
    }

    fn schema(&self) -> Value {
        json!({ "type": "boolean" })
    }
}

/// Without `max`, the upper bound depends on the model and is checked later.
pub(crate) struct Integer {
    pub min: u64,
    pub max: Option<u64>,
}

impl Integer {
    /// Completes "must be …" in errors. Names real bounds only, never the maximum of `u64`.
    fn expected_range(&self, is_too_large: bool) -> String {
        match self.max {
            None if is_too_large => "at most the model's context length; see `GET /v1/models`".to_owned(),
            None => format!("{} or more", self.min),
            Some(u64::MAX) => "an unsigned 64-bit integer".to_owned(),
            Some(max) => format!("from {} to {max}", self.min),
        }
    }
}

impl FieldType for Integer {
    type Value = u64;
    const EXPECTED: &'static str = "an integer";

    fn read(&self, path: &str, value: Json) -> ApiResult<u64> {
        let (integer, is_negative) = match value {
            Json::Integer(value) => (u64::try_from(value).ok(), value < 0),
            // JSON does not distinguish `64` from `64.0`, so any whole number counts as an integer.
            Json::Number(value) if value.fract() == 0.0 => {
                ((0.0..=LARGEST_EXACT).contains(&value).then_some(value as u64), value < 0.0)
            }
            Json::Number(_) => {
                let reason = format!("`{path}` must be an integer, not a fraction");
                return Err(ApiError::malformed(reason).with_field(path));
            }
            other => return Err(wrong_type(path, Self::EXPECTED, &other)),
        };
        let max = self.max.unwrap_or(u64::MAX);
        integer.filter(|value| (self.min..=max).contains(value)).ok_or_else(|| {
            let is_too_large = !is_negative && integer.is_none_or(|value| value > max);
            ApiError::invalid_value(path, format!("`{path}` must be {}", self.expected_range(is_too_large)))
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
    /// Whether `min` itself is excluded.
    pub excludes_min: bool,
    pub max: f64,
}

impl FieldType for Number {
    type Value = f32;
    const EXPECTED: &'static str = "a number";

    fn read(&self, path: &str, value: Json) -> ApiResult<f32> {
        let number = match value {
            Json::Integer(value) => value as f64,
            Json::Number(value) => value,
            other => return Err(wrong_type(path, Self::EXPECTED, &other)),
        };
        let Self { min, excludes_min, max } = *self;
        let range = match excludes_min {
            true if number > min && number <= max => {
                // A value that underflows `f32` must still be above the minimum.
                return Ok((number as f32).max(min as f32 + f32::MIN_POSITIVE));
            }
            false if (min..=max).contains(&number) => return Ok(number as f32),
            true => format!("greater than {min} and at most {max}"),
            false => format!("from {min} to {max}"),
        };
        Err(ApiError::invalid_value(path, format!("`{path}` must be {range}")))
    }

    fn schema(&self) -> Value {
        let min = if self.excludes_min { "exclusiveMinimum" } else { "minimum" };
        json!({ "type": "number", min: integral_as_integer(json!(self.min)), "maximum": integral_as_integer(json!(self.max)) })
    }
}

/// One of a fixed set of strings.
pub(crate) struct StringEnum {
    pub values: &'static [&'static str],
    /// Precedes the list of allowed values in the error, such as `use`.
    pub hint: &'static str,
}

impl FieldType for StringEnum {
    type Value = &'static str;
    const EXPECTED: &'static str = Text::EXPECTED;

    fn read(&self, path: &str, value: Json) -> ApiResult<&'static str> {
        let text = Text.read(path, value)?;
        self.values.iter().find(|value| **value == text).copied().ok_or_else(|| {
            let reason =
                format!("unsupported `{path}` {:?}; {} {}", truncate(&text), self.hint, join_or(self.values));
            ApiError::invalid_value(path, reason)
        })
    }

    fn schema(&self) -> Value {
        json!({ "type": "string", "enum": self.values })
    }
}

/// Formats as `a`, `a or b`, or `a, b or c`.
fn join_or(values: &[&str]) -> String {
    match values {
        [first @ .., one, last] => [first, &[format!("{one} or {last}").as_str()]].concat().join(", "),
        few => few.concat(),
    }
}
