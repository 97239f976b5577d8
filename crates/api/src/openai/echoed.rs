//! Fields that change nothing about the text: identifiers and notes of the caller's own, which the reply repeats.

use crate::error::ApiError;
use crate::json::{Json, shorten};
use crate::request::fields::{Fields, wrong_type};

/// That family's own bounds.
pub(super) const MAX_METADATA_ENTRIES: usize = 16;
pub(super) const MAX_METADATA_NAME_CHARS: usize = 64;
pub(super) const MAX_METADATA_VALUE_CHARS: usize = 512;

/// In the order in which the caller sent it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Metadata(Vec<(String, String)>);

#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub(super) struct Echoed {
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
    pub(super) fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        Ok(Self {
            metadata: metadata(fields)?,
            user: fields.optional_string("user")?,
            safety_identifier: fields.optional_string("safety_identifier")?,
            prompt_cache_key: fields.optional_string("prompt_cache_key")?,
        })
    }
}

fn metadata(fields: &mut Fields) -> Result<Option<Metadata>, ApiError> {
    let entries = match fields.take("metadata") {
        None => return Ok(None),
        Some(Json::Object(entries)) => entries,
        Some(other) => return Err(wrong_type("metadata", "an object", &other)),
    };
    if entries.len() > MAX_METADATA_ENTRIES {
        let reason = format!("`metadata` takes up to {MAX_METADATA_ENTRIES} entries");
        return Err(ApiError::invalid_value("metadata", reason));
    }
    let mut metadata = Vec::with_capacity(entries.len());
    for (name, value) in entries {
        let path = format!("metadata.{}", shorten(&name));
        let Json::String(value) = value else { return Err(wrong_type(&path, "a string", &value)) };
        if name.chars().count() > MAX_METADATA_NAME_CHARS || value.chars().count() > MAX_METADATA_VALUE_CHARS
        {
            let reason = format!(
                "`{path}` is too long; a name takes up to {MAX_METADATA_NAME_CHARS} characters and its value up to \
                 {MAX_METADATA_VALUE_CHARS}"
            );
            return Err(ApiError::invalid_value(&path, reason));
        }
        metadata.push((name, value));
    }
    Ok(Some(Metadata(metadata)))
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
        Echoed::take(&mut Fields::parse(body.as_bytes()).unwrap())
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
