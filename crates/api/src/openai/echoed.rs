//! Fields that do not affect the text: identifiers and metadata of the caller, echoed in the reply.

use crate::error::{ApiError, ApiResult};
use crate::json::{Json, truncate};
use crate::request::{FieldType, Fields, Text, wrong_type};
use serde_json::{Value, json};

/// OpenAI's own limits.
const MAX_METADATA_ENTRIES: usize = 16;
const MAX_METADATA_NAME_CHARS: usize = 64;
const MAX_METADATA_VALUE_CHARS: usize = 512;

/// Keeps the order in which the caller sent the entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Metadata(Vec<(String, String)>);

#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
#[schema(as = Echoed)]
pub(crate) struct EchoedFields {
    #[schema(value_type = Option<std::collections::HashMap<String, String>>, required)]
    pub metadata: Option<Metadata>,
    #[schema(required)]
    pub user: Option<String>,
    #[schema(required)]
    pub safety_identifier: Option<String>,
    #[schema(required)]
    pub prompt_cache_key: Option<String>,
}

impl EchoedFields {
    pub(super) fn fields(fields: &mut Fields) -> ApiResult<Self> {
        const DESCRIPTION: &str = "An identifier of your own; it changes nothing about the text.";
        Ok(Self {
            metadata: fields.optional(
                "metadata",
                &MetadataKind,
                "Notes of your own; the reply repeats them.",
            )?,
            user: fields.optional("user", &Text, DESCRIPTION)?,
            safety_identifier: fields.optional("safety_identifier", &Text, DESCRIPTION)?,
            prompt_cache_key: fields.optional("prompt_cache_key", &Text, DESCRIPTION)?,
        })
    }
}

struct MetadataKind;

impl FieldType for MetadataKind {
    type Value = Metadata;
    const EXPECTED: &'static str = "an object";

    fn read(&self, path: &str, value: Json) -> ApiResult<Metadata> {
        let entries = match value {
            Json::Object(entries) => entries,
            other => return Err(wrong_type(path, Self::EXPECTED, &other)),
        };
        if entries.len() > MAX_METADATA_ENTRIES {
            let reason = format!("`{path}` must have at most {MAX_METADATA_ENTRIES} entries");
            return Err(ApiError::invalid_value(path, reason));
        }
        let entries = entries.into_iter().map(|(name, value)| {
            let path = format!("{path}.{}", truncate(&name));
            let value = Text.read(&path, value)?;
            let is_too_long = name.chars().count() > MAX_METADATA_NAME_CHARS
                || value.chars().count() > MAX_METADATA_VALUE_CHARS;
            if is_too_long {
                let reason = format!(
                    "`{path}` is too long; names have at most {MAX_METADATA_NAME_CHARS} characters and values at most \
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

    fn take(body: &str) -> Result<EchoedFields, ApiError> {
        Fields::read("", Json::parse(body.as_bytes()).unwrap(), EchoedFields::fields)
    }

    #[test]
    fn metadata_round_trips() {
        let echoed = take(r#"{"metadata":{"b":"1","a":"2"},"user":"u"}"#).unwrap();
        assert_eq!(
            serde_json::to_string(&echoed).unwrap(),
            r#"{"metadata":{"b":"1","a":"2"},"user":"u","safety_identifier":null,"prompt_cache_key":null}"#
        );
    }

    #[test]
    fn oversized_metadata_is_rejected_by_name() {
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
