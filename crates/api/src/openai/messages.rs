//! Parses a list of messages into the turns of a conversation. Both OpenAI APIs write a message as a role with a string
//! or a list of parts. They differ in the other fields that a message may have.

use super::unsupported::{self, IgnoredParam, UnsupportedParam};
use crate::error::{ApiError, ApiResult};
use crate::json::Json;
use crate::request::{FieldType, Fields, StringEnum, Text, wrong_type};
use chancery_engine::{MAX_TURNS, Role, Turn};
use serde_json::{Value, json};

/// How one of the APIs writes its messages. With `TAKES_TEXT`, a plain string stands for a single user message.
pub(super) struct MessageFormat<const TAKES_TEXT: bool> {
    /// Part types that are text.
    part: StringEnum,
    /// Fields allowed next to role and content if they request nothing.
    unsupported_fields: &'static [UnsupportedParam],
    /// Fields that our replies contain and that do not affect the text, so that a reply can be sent back as input.
    reply_fields: &'static [&'static str],
}

pub(super) const CHAT: MessageFormat<false> = MessageFormat {
    part: StringEnum { values: &["text"], hint: "only text is supported: use" },
    unsupported_fields: &[
        UnsupportedParam("name", IgnoredParam::NullOnly),
        UnsupportedParam("refusal", IgnoredParam::NullOnly),
        UnsupportedParam("tool_calls", IgnoredParam::Empty),
        UnsupportedParam("tool_call_id", IgnoredParam::NullOnly),
        UnsupportedParam("function_call", IgnoredParam::NullOnly),
        UnsupportedParam("audio", IgnoredParam::NullOnly),
        UnsupportedParam("annotations", IgnoredParam::Empty),
    ],
    reply_fields: &["reasoning_content"],
};

pub(super) const RESPONSES: MessageFormat<true> = MessageFormat {
    part: StringEnum { values: &["input_text", "output_text"], hint: "only text is supported: use" },
    unsupported_fields: &[
        UnsupportedParam("type", IgnoredParam::OneOf(&["message"])),
        UnsupportedParam("phase", IgnoredParam::OneOf(&["final_answer"])),
    ],
    reply_fields: &["id", "status"],
};

/// `developer` is a synonym for `system`.
const ROLE: StringEnum = StringEnum { values: &["system", "developer", "user", "assistant"], hint: "use" };

/// Fields allowed next to a part's type and text.
const UNSUPPORTED_PART_FIELDS: &[UnsupportedParam] = &[
    UnsupportedParam("annotations", IgnoredParam::Empty),
    UnsupportedParam("logprobs", IgnoredParam::AnyObjects),
    UnsupportedParam("prompt_cache_breakpoint", IgnoredParam::NullOnly),
];

/// Parts of one message become lines of its text.
const PART_SEPARATOR: &str = "\n";

impl<const TAKES_TEXT: bool> MessageFormat<TAKES_TEXT> {
    fn turn(&self, path: &str, message: Json) -> ApiResult<Turn> {
        if has_type(&message, "item_reference") {
            let field = format!("{path}.type");
            let reason = format!(
                "`{field}`: stored messages are not supported; send the message itself (set `store: false` in the client)"
            );
            return Err(ApiError::invalid_value(&field, reason));
        }
        Fields::read(path, message, |fields| self.message(fields))
    }

    fn message(&self, fields: &mut Fields) -> ApiResult<Turn> {
        // Check these first, so that an unsupported kind of item is rejected as such and not for a missing field.
        unsupported::ignore(fields, self.unsupported_fields)?;
        for name in self.reply_fields {
            fields.undocumented(name, &Text, "")?;
        }
        let role = match fields.required("role", &ROLE, "")? {
            "user" => Role::User,
            "assistant" => Role::Assistant,
            _ => Role::System,
        };
        let text = fields.required("content", &Content(&self.part), "")?;
        Ok(Turn { role, text })
    }
}

impl<const TAKES_TEXT: bool> FieldType for MessageFormat<TAKES_TEXT> {
    type Value = Vec<Turn>;
    const EXPECTED: &'static str =
        if TAKES_TEXT { "a string or an array of messages" } else { "an array of messages" };

    fn read(&self, path: &str, value: Json) -> ApiResult<Vec<Turn>> {
        let messages = match value {
            Json::Array(messages) => messages,
            Json::String(text) if TAKES_TEXT => return Ok(vec![Turn::user(text)]),
            other => return Err(wrong_type(path, Self::EXPECTED, &other)),
        };
        if messages.len() > MAX_TURNS {
            let reason = format!("`{path}` must have at most {MAX_TURNS} messages");
            return Err(ApiError::invalid_value(path, reason));
        }
        // Clients send the whole output of a reply back. Models expect their earlier answers without the reasoning.
        let messages = messages.into_iter().enumerate();
        let messages = messages.filter(|(_, message)| !(TAKES_TEXT && has_type(message, "reasoning")));
        let turn = |(index, message)| self.turn(&format!("{path}[{index}]"), message);
        messages.map(turn).collect()
    }

    fn schema(&self) -> Value {
        let mut list = json!({ "type": "array", "items": Fields::schema(|fields| self.message(fields)) });
        if TAKES_TEXT {
            return json!({ "oneOf": [Text.schema(), list] });
        }
        list["minItems"] = json!(1);
        list
    }
}

fn has_type(message: &Json, kind: &str) -> bool {
    let is_type = |(name, value): &(String, Json)| name == "type" && *value == Json::String(kind.to_owned());
    matches!(message, Json::Object(entries) if entries.iter().any(is_type))
}

struct Content<'a>(&'a StringEnum);

impl Content<'_> {
    fn part(&self, fields: &mut Fields) -> ApiResult<String> {
        fields.required("type", self.0, "")?;
        let text = fields.required("text", &Text, "")?;
        unsupported::ignore(fields, UNSUPPORTED_PART_FIELDS)?;
        Ok(text)
    }
}

impl FieldType for Content<'_> {
    type Value = String;
    const EXPECTED: &'static str = "a string or an array of parts";

    fn read(&self, path: &str, value: Json) -> ApiResult<String> {
        let parts = match value {
            Json::String(text) => return Ok(text),
            Json::Array(parts) => parts.into_iter().enumerate(),
            other => return Err(wrong_type(path, Self::EXPECTED, &other)),
        };
        let texts = parts
            .map(|(index, part)| Fields::read(&format!("{path}[{index}]"), part, |fields| self.part(fields)));
        Ok(texts.collect::<Result<Vec<_>, _>>()?.join(PART_SEPARATOR))
    }

    fn schema(&self) -> Value {
        let parts = json!({ "type": "array", "items": Fields::schema(|fields| self.part(fields)) });
        json!({ "oneOf": [Text.schema(), parts] })
    }
}

/// At least one message must have text.
pub(super) fn ensure_text(path: &str, turns: &[Turn]) -> ApiResult<()> {
    match turns.iter().any(|turn| !turn.text.is_empty()) {
        true => Ok(()),
        false => {
            Err(ApiError::invalid_value(path, format!("`{path}` must have at least one message with text")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(messages: &str) -> ApiResult<Vec<Turn>> {
        CHAT.read("messages", Json::parse(messages.as_bytes()).unwrap())
    }

    fn responses(messages: &str) -> ApiResult<Vec<Turn>> {
        RESPONSES.read("input", Json::parse(messages.as_bytes()).unwrap())
    }

    #[test]
    fn messages_become_turns_in_order() {
        let expected =
            [Turn::system("a"), Turn::system("b"), Turn::user("c\nd"), Turn::assistant("e"), Turn::user("")];
        let of_chat = r#"[{"role":"system","content":"a"},{"role":"developer","content":"b"},
            {"role":"user","content":[{"type":"text","text":"c"},{"type":"text","text":"d"}]},
            {"role":"assistant","content":"e","reasoning_content":"f","refusal":null,"annotations":[],
             "tool_calls":null},
            {"role":"user","content":[]}]"#;
        assert_eq!(chat(of_chat).unwrap(), expected);
        let of_responses = r#"[{"role":"system","content":"a"},{"type":"message","role":"developer","content":"b"},
            {"role":"user","content":[{"type":"input_text","text":"c"},{"type":"input_text","text":"d"}]},
            {"id":"rs_1","type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"f"}]},
            {"id":"msg_1","type":"message","role":"assistant","status":"completed","phase":null,
             "content":[{"type":"output_text","text":"e","annotations":[],
              "logprobs":[{"token":"e","bytes":[101],"logprob":-0.5,"top_logprobs":[]}]}]},
            {"role":"user","content":""}]"#;
        assert_eq!(responses(of_responses).unwrap(), expected);
    }

    #[test]
    fn non_text_content_is_rejected_by_its_path() {
        for (read, messages, field) in [
            (
                chat as fn(&str) -> ApiResult<Vec<Turn>>,
                r#"[{"role":"user","content":"a"},{"role":"tool","content":"b"}]"#,
                "messages[1].role",
            ),
            (chat, r#"[{"role":"user"}]"#, "messages[0].content"),
            (chat, r#"[{"role":"assistant","content":null,"tool_calls":[{}]}]"#, "messages[0].tool_calls"),
            (chat, r#"[{"role":"user","content":"a","name":"Ruth"}]"#, "messages[0].name"),
            (chat, r#"[{"role":"user","content":"a","nme":"Ruth"}]"#, "messages[0].nme"),
            (
                chat,
                r#"[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]"#,
                "messages[0].content[0].type",
            ),
            (
                chat,
                r#"[{"role":"user","content":[{"type":"text","text":5}]}]"#,
                "messages[0].content[0].text",
            ),
            (chat, r#"[{"role":"user","content":5}]"#, "messages[0].content"),
            (chat, r#"["hello"]"#, "messages[0]"),
            (responses, r#"[{"type":"function_call_output","call_id":"x","output":"y"}]"#, "input[0].type"),
            (responses, r#"[{"type":"item_reference","id":"x"}]"#, "input[0].type"),
            (
                responses,
                r#"[{"role":"user","content":[{"type":"input_file","file_id":"x"}]}]"#,
                "input[0].content[0].type",
            ),
            (
                responses,
                r#"[{"role":"user","content":[{"type":"input_text","text":"a","x":1}]}]"#,
                "input[0].content[0].x",
            ),
        ] {
            let error = read(messages).expect_err(messages);
            assert_eq!(error.field.as_deref(), Some(field), "{messages}");
            assert!(error.reason.contains(field), "{messages}: {}", error.reason);
        }
    }

    #[test]
    fn conversation_over_max_turns_is_rejected() {
        let message = r#"{"role":"user","content":"a"}"#;
        let of_length = |length: usize| format!("[{}]", vec![message; length].join(","));
        assert!(chat(&of_length(MAX_TURNS)).is_ok());
        let error = chat(&of_length(MAX_TURNS + 1)).unwrap_err();
        assert_eq!(error.field.as_deref(), Some("messages"));
    }
}
