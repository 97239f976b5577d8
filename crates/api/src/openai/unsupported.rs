//! Parameters that OpenAI's API has and this one does not support. Each is ignored with a value that asks for nothing, and
//! is an error by its name with any other.

use crate::error::{ApiError, ApiResult};
use crate::json::Json;
use crate::request::{Boolean, Fields, Kind};
use serde_json::{Value, json};

/// Said of every such parameter in the schemas.
pub(crate) const ABOUT_UNSUPPORTED: &str = "Not offered: only a value that asks for nothing is taken.";

/// A parameter and the values that ask for nothing.
pub(super) struct UnsupportedParam(pub &'static str, pub IgnoredParam);

pub(super) enum IgnoredParam {
    /// Absent or null, as all of them may be.
    Nothing,
    False,
    Zero,
    One,
    /// Any whole number from 0.
    AnyCount,
    /// An array or an object without anything in it.
    Empty,
    Words(&'static [&'static str]),
    /// An array of these words only.
    ListOf(&'static [&'static str]),
    /// An object in which these fields, and no others, ask for nothing.
    Object(&'static [UnsupportedParam]),
}

pub(super) fn ignore(fields: &mut Fields, table: &'static [UnsupportedParam]) -> ApiResult<()> {
    for UnsupportedParam(name, ignored) in table {
        fields.unlisted(name, ignored, ABOUT_UNSUPPORTED)?;
    }
    Ok(())
}

/// How tools are chosen, where there are none: every choice is accepted, for the reply to repeat.
pub(super) struct ToolChoice {
    pub parallel_tool_calls: bool,
    pub tool_choice: &'static str,
}

pub(super) fn tools(fields: &mut Fields) -> ApiResult<ToolChoice> {
    const CHOICES: &[&str] = &["auto", "none"];
    let parallel_tool_calls =
        fields.optional("parallel_tool_calls", &Boolean, "There are no tools, so it changes nothing.")?;
    let chosen = fields.unlisted("tool_choice", &IgnoredParam::Words(CHOICES), ABOUT_UNSUPPORTED)?;
    let is_chosen = |choice: &&&str| matches!(&chosen, Some(Json::String(word)) if word == **choice);
    Ok(ToolChoice {
        parallel_tool_calls: parallel_tool_calls.unwrap_or(true),
        tool_choice: CHOICES.iter().find(is_chosen).unwrap_or(&"auto"),
    })
}

impl Kind for IgnoredParam {
    type Value = Json;
    const WANTED: &'static str = "a value that asks for nothing";

    fn read(&self, path: &str, value: Json) -> ApiResult<Json> {
        let is_word = |words: &[&str], value: &Json| matches!(value, Json::String(word) if words.contains(&word.as_str()));
        let is_ignored = match self {
            Self::Nothing => false,
            Self::False => value == Json::Bool(false),
            Self::Zero => matches!(value, Json::Integer(0)) || value == Json::Number(0.0),
            Self::One => matches!(value, Json::Integer(1)) || value == Json::Number(1.0),
            Self::AnyCount => matches!(value, Json::Integer(0..)),
            Self::Empty => match &value {
                Json::Array(items) => items.is_empty(),
                Json::Object(entries) => entries.is_empty(),
                _ => false,
            },
            Self::Words(words) => is_word(words, &value),
            Self::ListOf(words) => {
                matches!(&value, Json::Array(items) if items.iter().all(|item| is_word(words, item)))
            }
            Self::Object(table) => {
                Fields::read(path, value, |fields| ignore(fields, table))?;
                return Ok(Json::Null);
            }
        };
        match is_ignored {
            true => Ok(value),
            false => Err(ApiError::invalid_value(path, format!("`{path}` {}", self.what_is_ignored()))),
        }
    }

    fn schema(&self) -> Value {
        match self {
            Self::Nothing => json!({ "type": "null" }),
            Self::False => json!({ "enum": [false] }),
            Self::Zero => json!({ "enum": [0] }),
            Self::One => json!({ "enum": [1] }),
            Self::AnyCount => json!({ "type": "integer", "minimum": 0 }),
            Self::Empty => json!({ "type": ["array", "object"], "maxItems": 0, "maxProperties": 0 }),
            Self::Words(words) => json!({ "enum": words }),
            Self::ListOf(words) => json!({ "type": "array", "items": { "enum": words } }),
            Self::Object(table) => Value::Object(Fields::schema(|fields| ignore(fields, table))),
        }
    }
}

impl IgnoredParam {
    fn what_is_ignored(&self) -> String {
        let listed = |words: &[&str]| {
            let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
            quoted.join(" or ")
        };
        let value = match self {
            Self::Nothing | Self::Object(_) => return "is not offered here; leave it out".to_owned(),
            Self::Empty => return "is not offered here; leave it out or empty".to_owned(),
            Self::False => "false".to_owned(),
            Self::Zero => "0".to_owned(),
            Self::One => "1".to_owned(),
            Self::AnyCount => "a whole number".to_owned(),
            Self::Words(words) => listed(words),
            Self::ListOf(words) => format!("[{}]", listed(words)),
        };
        format!("with this value is not offered here; leave it out or send {value}")
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
        UnsupportedParam("penalty", IgnoredParam::Zero),
        UnsupportedParam("prompt", IgnoredParam::Nothing),
        UnsupportedParam(
            "text",
            IgnoredParam::Object(&[UnsupportedParam("type", IgnoredParam::Words(&["text", "plain"]))]),
        ),
    ];

    fn refusal(body: &str) -> Option<(Option<String>, String)> {
        let body = Json::parse(body.as_bytes()).unwrap();
        let read = Fields::read("", body, |fields| ignore(fields, TABLE));
        read.err().map(|error| (error.field, error.reason))
    }

    #[test]
    fn a_value_that_asks_for_nothing_is_taken() {
        for body in [
            r#"{}"#,
            r#"{"tools":null,"n":null,"store":null,"text":null,"prompt":null}"#,
            r#"{"tools":[],"n":1,"store":false,"modalities":["text"],"penalty":0,"text":{"type":"plain"}}"#,
            r#"{"tools":{},"penalty":0.0,"modalities":[],"text":{}}"#,
        ] {
            assert_eq!(refusal(body), None, "{body}");
        }
    }

    #[test]
    fn nobody_who_mistypes_is_pointed_to_what_is_not_offered() {
        let body = Json::parse(br#"{"tool":[],"model":"m"}"#).unwrap();
        let error = Fields::read("", body, |fields| {
            fields.required("model", &Text, "")?;
            ignore(fields, TABLE)
        });
        assert_eq!(error.unwrap_err().reason, "there is no field `tool`; the known ones are model");
    }

    #[test]
    fn any_other_value_is_refused_by_name_with_what_would_be_taken() {
        for (body, field, taken) in [
            (r#"{"tools":[{}]}"#, "tools", "leave it out or empty"),
            (r#"{"tools":"all"}"#, "tools", "leave it out or empty"),
            (r#"{"n":2}"#, "n", "send 1"),
            (r#"{"store":true}"#, "store", "send false"),
            (r#"{"modalities":["text","audio"]}"#, "modalities", r#"send ["text"]"#),
            (r#"{"penalty":0.1}"#, "penalty", "send 0"),
            (r#"{"prompt":{}}"#, "prompt", "leave it out"),
            (r#"{"text":{"type":"json_schema"}}"#, "text.type", r#"send "text" or "plain""#),
            (r#"{"text":{"kind":"x"}}"#, "text.kind", "there is no field"),
            (r#"{"text":"x"}"#, "text", "must be an object"),
        ] {
            let (named, reason) = refusal(body).unwrap();
            assert_eq!(named.as_deref(), Some(field), "{body}");
            assert!(reason.contains(taken) && reason.contains(&format!("`{field}`")), "{body}: {reason}");
        }
    }
}
