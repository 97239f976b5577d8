//! Value types of the sampling and stop fields, shared by all request bodies.

use super::field_types::{FieldType, Number};
use super::fields::wrong_type;
use crate::error::{ApiError, ApiResult};
use crate::json::Json;
use serde_json::{Value, json};

pub(crate) const TEMPERATURE: Number = Number { min: 0.0, excludes_min: false, max: 2.0 };
pub(crate) const TOP_P: Number = Number { min: 0.0, excludes_min: true, max: 1.0 };

const MAX_STOP_STRINGS: usize = 4;
/// Counted in characters because JSON Schema counts characters.
const MAX_STOP_CHARS: usize = 256;

/// Strings that end a reply.
pub(crate) struct Stop;

impl Stop {
    pub(crate) const DESCRIPTION: &'static str =
        "Strings that end the reply; they are left out of it. One string counts as an array of one.";
}

impl FieldType for Stop {
    type Value = Vec<String>;
    const EXPECTED: &'static str = "an array of strings";

    fn read(&self, path: &str, value: Json) -> ApiResult<Vec<String>> {
        let items = match value {
            Json::Array(items) => items,
            one @ Json::String(_) => vec![one],
            other => return Err(wrong_type(path, Self::EXPECTED, &other)),
        };
        let strings = items.into_iter().map(|item| match item {
            Json::String(text) => Ok(text),
            other => Err(wrong_type(path, Self::EXPECTED, &other)),
        });
        let strings: Vec<String> = strings.collect::<Result<_, _>>()?;
        let is_too_long = |text: &String| text.chars().nth(MAX_STOP_CHARS).is_some();
        if strings.len() > MAX_STOP_STRINGS || strings.iter().any(|text| text.is_empty() || is_too_long(text))
        {
            let reason = format!(
                "`{path}` must have at most {MAX_STOP_STRINGS} strings of 1 to {MAX_STOP_CHARS} characters"
            );
            return Err(ApiError::invalid_value(path, reason));
        }
        Ok(strings)
    }

    fn schema(&self) -> Value {
        let one = json!({ "type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS });
        json!({ "oneOf": [one, { "type": "array", "items": one, "maxItems": MAX_STOP_STRINGS }] })
    }
}
