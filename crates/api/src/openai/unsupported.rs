//! Parameters that OpenAI's API has and this one does not support. Each is ignored if its value requests nothing, and
//! rejected by name otherwise.

use crate::error::{ApiError, ApiResult};
use crate::json::Json;
use crate::request::{Boolean, FieldType, Fields};
use serde_json::{Value, json};

/// Schema description of every unsupported parameter.
pub(crate) const UNSUPPORTED_DESCRIPTION: &str = "Not offered: only a value that asks for nothing is taken.";

/// A parameter and the values that are accepted because they request nothing.
pub(super) struct UnsupportedParam(pub &'static str, pub IgnoredParam);

pub(super) enum IgnoredParam {
    /// Absent or null, which every parameter may be.
    NullOnly,
    False,
    One,
    /// Any non-negative integer.
    AnyCount,
    /// An empty array or object.
    Empty,
    OneOf(&'static [&'static str]),
    /// An array of only these strings.
    ListOf(&'static [&'static str]),
    /// Any array of objects: part of an earlier reply that is sent back.
    AnyObjects,
    /// An object with only these fields, each of which must request nothing.
    Object(&'static [UnsupportedParam]),
}

pub(super) fn ignore(fields: &mut Fields, table: &'static [UnsupportedParam]) -> ApiResult<()> {
    for UnsupportedParam(name, ignored) in table {
        fields.undocumented(name, ignored, UNSUPPORTED_DESCRIPTION)?;
    }
    Ok(())
}

/// How tools are chosen. There are none, so every choice is accepted and repeated in the reply.
pub(super) struct ToolChoice {
    pub parallel_tool_calls: bool,
    pub tool_choice: &'static str,
}

pub(super) fn tools(fields: &mut Fields) -> ApiResult<ToolChoice> {
    const CHOICES: &[&str] = &["auto", "none"];
    let parallel_tool_calls =
        fields.optional("parallel_tool_calls", &Boolean, "There are no tools, so it changes nothing.")?;
    let chosen =
        fields.undocumented("tool_choice", &IgnoredParam::OneOf(CHOICES), UNSUPPORTED_DESCRIPTION)?;
    let is_selected = |choice: &&&str| matches!(&chosen, Some(Json::String(text)) if text == **choice);
    Ok(ToolChoice {
        parallel_tool_calls: parallel_tool_calls.unwrap_or(true),
        tool_choice: CHOICES.iter().find(is_selected).unwrap_or(&"auto"),
    })
}

impl FieldType for IgnoredParam {
    type Value = Json;
    const EXPECTED: &'static str = "a value without effect";

    fn read(&self, path: &str, value: Json) -> ApiResult<Json> {
        let is_one_of = |allowed: &[&str], value: &Json| matches!(value, Json::String(text) if allowed.contains(&text.as_str()));
        let is_ignored = match self {
            Self::NullOnly => false,
            Self::False => value == Json::Bool(false),
            Self::One => matches!(value, Json::Integer(1)) || value == Json::Number(1.0),
            Self::AnyCount => match value {
                Json::Integer(count) => count >= 0,
                Json::Number(count) => count >= 0.0 && count.fract() == 0.0,
                _ => false,
            },
            Self::Empty => match &value {
                Json::Array(items) => items.is_empty(),
                Json::Object(entries) => entries.is_empty(),
                _ => false,
            },
            Self::OneOf(allowed) => is_one_of(allowed, &value),
            Self::ListOf(allowed) => {
                matches!(&value, Json::Array(items) if items.iter().all(|item| is_one_of(allowed, item)))
            }
            Self::AnyObjects => {
                matches!(&value, Json::Array(items) if items.iter().all(|item| matches!(item, Json::Object(_))))
            }
            Self::Object(table) => {
                Fields::read(path, value, |fields| ignore(fields, table))?;
                return Ok(Json::Null);
            }
        };
        match is_ignored {
            true => Ok(value),
            false => Err(ApiError::invalid_value(path, format!("`{path}` {}", self.accepted_hint()))),
        }
    }

    fn schema(&self) -> Value {
        match self {
            Self::NullOnly => json!({ "type": "null" }),
            Self::False => json!({ "enum": [false] }),
            Self::One => json!({ "enum": [1] }),
            Self::AnyCount => json!({ "type": "integer", "minimum": 0 }),
            Self::Empty => json!({ "type": ["array", "object"], "maxItems": 0, "maxProperties": 0 }),
            Self::OneOf(allowed) => json!({ "enum": allowed }),
            Self::ListOf(allowed) => json!({ "type": "array", "items": { "enum": allowed } }),
            Self::AnyObjects => json!({ "type": "array", "items": { "type": "object" } }),
            Self::Object(table) => Value::Object(Fields::schema(|fields| ignore(fields, table))),
        }
    }
}

impl IgnoredParam {
    fn accepted_hint(&self) -> String {
        let join_or = |allowed: &[&str]| {
            let quoted: Vec<String> = allowed.iter().map(|value| format!("\"{value}\"")).collect();
            quoted.join(" or ")
        };
        let value = match self {
            Self::NullOnly | Self::Object(_) => return "is not supported; remove it".to_owned(),
            Self::Empty => return "is not supported; remove it or leave it empty".to_owned(),
            Self::False => "false".to_owned(),
            Self::One => "1".to_owned(),
            Self::AnyCount => "an integer".to_owned(),
            Self::AnyObjects => "an array of objects".to_owned(),
            Self::OneOf(allowed) => join_or(allowed),
            Self::ListOf(allowed) => format!("[{}]", join_or(allowed)),
        };
        format!("with this value is not supported; remove it or send {value}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Text;

    const TABLE: &[UnsupportedParam] = &[
        UnsupportedParam("tools", IgnoredParam::Empty),
        UnsupportedParam("n", IgnoredParam::One),
        UnsupportedParam("store", IgnoredParam::False),
        UnsupportedParam("modalities", IgnoredParam::ListOf(&["text"])),
        UnsupportedParam("prompt", IgnoredParam::NullOnly),
        UnsupportedParam("logprobs", IgnoredParam::AnyObjects),
        UnsupportedParam(
            "text",
            IgnoredParam::Object(&[UnsupportedParam("type", IgnoredParam::OneOf(&["text", "plain"]))]),
        ),
    ];

    fn rejection(body: &str) -> Option<(Option<String>, String)> {
        let body = Json::parse(body.as_bytes()).unwrap();
        let read = Fields::read("", body, |fields| ignore(fields, TABLE));
        read.err().map(|error| (error.field, error.reason))
    }

    #[test]
    fn no_op_value_is_accepted() {
        for body in [
            r#"{}"#,
            r#"{"tools":null,"n":null,"store":null,"text":null,"prompt":null}"#,
            r#"{"tools":[],"n":1,"store":false,"modalities":["text"],"text":{"type":"plain"}}"#,
            r#"{"tools":{},"n":1.0,"modalities":[],"text":{}}"#,
            r#"{"logprobs":[]}"#,
            r#"{"logprobs":[{"token":"a","logprob":-1.5},{}]}"#,
        ] {
            assert_eq!(rejection(body), None, "{body}");
        }
    }

    #[test]
    fn unsupported_params_are_never_suggested_for_typos() {
        let body = Json::parse(br#"{"tool":[],"model":"m"}"#).unwrap();
        let error = Fields::read("", body, |fields| {
            fields.required("model", &Text, "")?;
            ignore(fields, TABLE)
        });
        assert_eq!(error.unwrap_err().reason, "unknown field `tool`; known fields: model");
    }

    #[test]
    fn unsupported_value_error_names_the_accepted_value() {
        for (body, field, taken) in [
            (r#"{"tools":[{}]}"#, "tools", "remove it or leave it empty"),
            (r#"{"tools":"all"}"#, "tools", "remove it or leave it empty"),
            (r#"{"n":2}"#, "n", "send 1"),
            (r#"{"store":true}"#, "store", "send false"),
            (r#"{"modalities":["text","audio"]}"#, "modalities", r#"send ["text"]"#),
            (r#"{"prompt":{}}"#, "prompt", "remove it"),
            (r#"{"logprobs":[1]}"#, "logprobs", "send an array of objects"),
            (r#"{"text":{"type":"json_schema"}}"#, "text.type", r#"send "text" or "plain""#),
            (r#"{"text":{"kind":"x"}}"#, "text.kind", "unknown field"),
            (r#"{"text":"x"}"#, "text", "must be an object"),
        ] {
            let (named, reason) = rejection(body).unwrap();
            assert_eq!(named.as_deref(), Some(field), "{body}");
            assert!(reason.contains(taken) && reason.contains(&format!("`{field}`")), "{body}: {reason}");
        }
    }
}
