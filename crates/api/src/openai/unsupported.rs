//! Parameters that are known and not offered. Each is taken only with a value that asks for nothing, and refused by its
//! name with any other.

use crate::error::ApiError;
use crate::json::Json;
use crate::request::fields::Fields;

/// A parameter and the values that ask for nothing.
pub(super) struct NotOffered(pub &'static str, pub Harmless);

pub(super) enum Harmless {
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
    /// An object in which these fields, and no others, have harmless values.
    Object(&'static [NotOffered]),
}

pub(super) fn refuse(fields: &mut Fields, table: &'static [NotOffered]) -> Result<(), ApiError> {
    for NotOffered(name, harmless) in table {
        let Some(value) = fields.take_unmentioned(name) else { continue };
        harmless.check(&fields.path_of(name), value)?;
    }
    Ok(())
}

/// What may be chosen of no tools.
pub(super) const TOOL_CHOICES: &[&str] = &["auto", "none"];

/// A choice between no tools: what was chosen, for the reply to repeat.
pub(super) fn tool_choice(fields: &mut Fields) -> Result<&'static str, ApiError> {
    match fields.take_unmentioned("tool_choice") {
        None => Ok("auto"),
        Some(value) => {
            let chosen = TOOL_CHOICES.iter().find(|choice| value == Json::String((**choice).to_owned()));
            Harmless::Words(TOOL_CHOICES).check("tool_choice", value)?;
            Ok(chosen.unwrap_or(&"auto"))
        }
    }
}

impl Harmless {
    fn check(&self, path: &str, value: Json) -> Result<(), ApiError> {
        let is_word = |words: &[&str], value: &Json| matches!(value, Json::String(word) if words.contains(&word.as_str()));
        let is_harmless = match self {
            Self::Nothing => false,
            Self::False => value == Json::Bool(false),
            Self::Zero => {
                matches!(value, Json::Integer(0)) || matches!(value, Json::Number(number) if number == 0.0)
            }
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
                let mut fields = Fields::of_object(path, value)?;
                refuse(&mut fields, table)?;
                return fields.refuse_the_rest();
            }
        };
        match is_harmless {
            true => Ok(()),
            false => Err(ApiError::invalid_value(path, format!("`{path}` {}", self.what_is_taken()))),
        }
    }

    fn what_is_taken(&self) -> String {
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

    const TABLE: &[NotOffered] = &[
        NotOffered("tools", Harmless::Empty),
        NotOffered("n", Harmless::One),
        NotOffered("store", Harmless::False),
        NotOffered("modalities", Harmless::ListOf(&["text"])),
        NotOffered("penalty", Harmless::Zero),
        NotOffered("prompt", Harmless::Nothing),
        NotOffered("text", Harmless::Object(&[NotOffered("type", Harmless::Words(&["text", "plain"]))])),
    ];

    fn refusal(body: &str) -> Option<(Option<String>, String)> {
        let mut fields = Fields::parse(body.as_bytes()).unwrap();
        refuse(&mut fields, TABLE).err().map(|error| (error.field, error.reason))
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
        let mut fields = Fields::parse(br#"{"tool":[],"model":"m"}"#).unwrap();
        fields.required_string("model").unwrap();
        refuse(&mut fields, TABLE).unwrap();
        assert_eq!(
            fields.refuse_the_rest().unwrap_err().reason,
            "there is no field `tool`; the known ones are model"
        );
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
