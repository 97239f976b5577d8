//! The kinds of the fields that say how a text is drawn and where it ends, in whichever body they stand.

use super::fields::wrong_type;
use super::kinds::{Kind, Number};
use crate::error::{ApiError, ApiResult};
use crate::json::Json;
use serde_json::{Value, json};

pub(crate) const TEMPERATURE: Number = Number { min: 0.0, excludes_min: false, max: 2.0 };
pub(crate) const TOP_P: Number = Number { min: 0.0, excludes_min: true, max: 1.0 };

const MAX_STOP_STRINGS: usize = 4;
/// In characters, because that is what a schema can say.
const MAX_STOP_CHARS: usize = 256;

/// The strings that end a reply.
pub(crate) struct Stop;

impl Stop {
    pub(crate) const ABOUT: &'static str =
        "Strings that end the reply; they are left out of it. One string counts as an array of one.";
}

impl Kind for Stop {
    type Value = Vec<String>;
    const WANTED: &'static str = "an array of strings";

    fn read(&self, path: &str, value: Json) -> ApiResult<Vec<String>> {
        let items = match value {
            Json::Array(items) => items,
            one @ Json::String(_) => vec![one],
            other => return Err(wrong_type(path, Self::WANTED, &other)),
        };
        let strings = items.into_iter().map(|item| match item {
            Json::String(text) => Ok(text),
            other => Err(wrong_type(path, Self::WANTED, &other)),
        });
        let strings: Vec<String> = strings.collect::<Result<_, _>>()?;
        let is_too_long = |text: &String| text.chars().nth(MAX_STOP_CHARS).is_some();
        if strings.len() > MAX_STOP_STRINGS || strings.iter().any(|text| text.is_empty() || is_too_long(text))
        {
            let reason = format!(
                "`{path}` takes up to {MAX_STOP_STRINGS} strings of 1 to {MAX_STOP_CHARS} characters each"
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
