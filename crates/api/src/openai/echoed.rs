//! Fields that change nothing about the text: identifiers and notes of the caller's own, which the reply repeats.

use crate::error::{ApiError, ApiResult};
use crate::json::{Json, shorten};
use crate::request::{Fields, Kind, Text, wrong_type};
use serde_json::{Value, json};

/// That family's own bounds.
const MAX_METADATA_ENTRIES: usize = 16;
const MAX_METADATA_NAME_CHARS: usize = 64;
const MAX_METADATA_VALUE_CHARS: usize = 512;

/// In the order in which the caller sent it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Metadata(Vec<(String, String)>);

#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub(crate) struct Echoed {
    #[schema(value_type = Option<std::collections::HashMap<String, String>>, required)]
    pub metadata: Option<Metadata>,
    #[schema(required)]
    pub user: Option<String>,
    #[schema(required)]
    pub safety_identifier: Option<String>,
    #[schema(required)]
    pub prompt_cache_key: Option<String>,
}

impl Echoed {
    pub(super) fn fields(fields: &mut Fields) -> ApiResult<Self> {
        const ABOUT: &str = "An identifier of your own; it changes nothing about the text.";
        Ok(Self {
            metadata: fields.optional(
                "metadata",
                &MetadataKind,
                "Notes of your own; the reply repeats them.",
            )?,
            user: fields.optional("user", &Text, ABOUT)?,
            safety_identifier: fields.optional("safety_identifier", &Text, ABOUT)?,
            prompt_cache_key: fields.optional("prompt_cache_key", &Text, ABOUT)?,
        })
    }
}

struct MetadataKind;

impl Kind for MetadataKind {
    type Value = Metadata;
    const WANTED: &'static str = "an object";

    fn read(&self, path: &str, value: Json) -> ApiResult<Metadata> {
        let entries = match value {
            Json::Object(entries) => entries,
            other => return Err(wrong_type(path, Self::WANTED, &other)),
        };
        if entries.len() > MAX_METADATA_ENTRIES {
            let reason = format!("`{path}` takes up to {MAX_METADATA_ENTRIES} entries");
            return Err(ApiError::invalid_value(path, reason));
        }
        let entries = entries.into_iter().map(|(name, value)| {
            let path = format!("{path}.{}", shorten(&name));
            let value = Text.read(&path, value)?;
            let is_too_long = name.chars().count() > MAX_METADATA_NAME_CHARS
                || value.chars().count() > MAX_METADATA_VALUE_CHARS;
            if is_too_long {
                let reason = format!(
                    "`{path}` is too long; a name takes up to {MAX_METADATA_NAME_CHARS} characters and its value up to \
                     {MAX_METADATA_VALUE_CHARS}"
                );
                return Err(ApiError::invalid_value(&path, reason));
            }
            Ok((name, value))
        });
        Ok(Metadata(entries.collect::<Result<_, _>>()?))
    }

    fn schema(&self) -> Value {
        json!({
            "type": "object",
            "maxProperties": MAX_METADATA_ENTRIES,
            "propertyNames": { "maxLength": MAX_METADATA_NAME_CHARS },
            "additionalProperties": { "type": "string", "maxLength": MAX_METADATA_VALUE_CHARS },
        })
    }
}

impl serde::Serialize for Metadata {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(body: &str) -> Result<Echoed, ApiError> {
        Fields::read("", Json::parse(body.as_bytes()).unwrap(), Echoed::fields)
    }

    #[test]
    fn metadata_comes_back_as_it_was_sent() {
        let echoed = take(r#"{"metadata":{"b":"1","a":"2"},"user":"u"}"#).unwrap();
        assert_eq!(
            serde_json::to_string(&echoed).unwrap(),
            r#"{"metadata":{"b":"1","a":"2"},"user":"u","safety_identifier":null,"prompt_cache_key":null}"#
        );
    }

    #[test]
    fn metadata_past_its_bounds_is_refused_by_name() {
        let long = "x".repeat(513);
        let many: Vec<String> = (0..17).map(|number| format!(r#""{number}":"x""#)).collect();
        for (metadata, field) in [
            (format!(r#"{{"a":"{long}"}}"#), "metadata.a"),
            (r#"{"a":1}"#.to_owned(), "metadata.a"),
            (format!("{{{}}}", many.join(",")), "metadata"),
            ("[]".to_owned(), "metadata"),
        ] {
            let error = take(&format!(r#"{{"metadata":{metadata}}}"#)).unwrap_err();
            assert_eq!(error.field.as_deref(), Some(field));
        }
        assert!(take(&format!(r#"{{"metadata":{{"{}":"x"}}}}"#, "n".repeat(65))).is_err());
    }
}
