//! A list of messages as turns of a conversation. Both families write them alike: a role, and a text or a list of parts;
//! they differ in what else may stand beside these.

use super::unsupported::{self, IgnoredParam, UnsupportedParam};
use crate::error::{ApiError, ApiResult};
use crate::json::Json;
use crate::request::{Fields, Kind, Text, Word, wrong_type};
use chancery_engine::{MAX_TURNS, Role, Turn};
use serde_json::{Value, json};

/// How one family writes its messages. Where it takes text, a string may stand for the list: one message by the user.
pub(super) struct Dialect<const TAKES_TEXT: bool> {
    /// The types of parts that are text.
    part: Word,
    /// What may stand beside role and content, asking for nothing.
    beside: &'static [UnsupportedParam],
    /// Names that a reply of ours carries and that say nothing about the text: what a caller gets can be sent back.
    identifiers: &'static [&'static str],
}

pub(super) const CHAT: Dialect<false> = Dialect {
    part: Word { words: &["text"], demand: "send text, as" },
    beside: &[
        UnsupportedParam("name", IgnoredParam::Nothing),
        UnsupportedParam("refusal", IgnoredParam::Nothing),
        UnsupportedParam("tool_calls", IgnoredParam::Empty),
        UnsupportedParam("tool_call_id", IgnoredParam::Nothing),
        UnsupportedParam("function_call", IgnoredParam::Nothing),
        UnsupportedParam("audio", IgnoredParam::Nothing),
        UnsupportedParam("annotations", IgnoredParam::Empty),
    ],
    identifiers: &[],
};

pub(super) const RESPONSES: Dialect<true> = Dialect {
    part: Word { words: &["input_text", "output_text"], demand: "send text, as" },
    beside: &[
        UnsupportedParam("type", IgnoredParam::Words(&["message"])),
        UnsupportedParam("phase", IgnoredParam::Words(&["final_answer"])),
    ],
    identifiers: &["id", "status"],
};

/// `developer` is another name for `system`.
const ROLE: Word = Word { words: &["system", "developer", "user", "assistant"], demand: "it must be" };

/// What may stand beside a part's type and text.
const BESIDE_TEXT: &[UnsupportedParam] = &[
    UnsupportedParam("annotations", IgnoredParam::Empty),
    UnsupportedParam("logprobs", IgnoredParam::Empty),
    UnsupportedParam("prompt_cache_breakpoint", IgnoredParam::Nothing),
];

/// Parts of one message are lines of its text.
const BETWEEN_PARTS: &str = "\n";

impl<const TAKES_TEXT: bool> Dialect<TAKES_TEXT> {
    fn turn(&self, path: &str, message: Json) -> ApiResult<Turn> {
        let is_reference = |(name, value): &(String, Json)| {
            name == "type" && *value == Json::String("item_reference".to_owned())
        };
        if matches!(&message, Json::Object(entries) if entries.iter().any(is_reference)) {
            let field = format!("{path}.type");
            let reason = format!(
                "`{field}` refers to a stored message, and nothing is stored here; send the message itself (clients do so with `store: false`)"
            );
            return Err(ApiError::invalid_value(&field, reason));
        }
        Fields::read(path, message, |fields| self.message(fields))
    }

    fn message(&self, fields: &mut Fields) -> ApiResult<Turn> {
        // First, so that an item of another kind is denied for what it is and not for what it lacks.
        unsupported::ignore(fields, self.beside)?;
        for name in self.identifiers {
            fields.unlisted(name, &Text, "")?;
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

impl<const TAKES_TEXT: bool> Kind for Dialect<TAKES_TEXT> {
    type Value = Vec<Turn>;
    const WANTED: &'static str =
        if TAKES_TEXT { "a string or an array of messages" } else { "an array of messages" };

    fn read(&self, path: &str, value: Json) -> ApiResult<Vec<Turn>> {
        let messages = match value {
            Json::Array(messages) => messages,
            Json::String(text) if TAKES_TEXT => return Ok(vec![Turn::user(text)]),
            other => return Err(wrong_type(path, Self::WANTED, &other)),
        };
        if messages.len() > MAX_TURNS {
            let reason = format!("`{path}` takes up to {MAX_TURNS} messages");
            return Err(ApiError::invalid_value(path, reason));
        }
        let turn = |(index, message)| self.turn(&format!("{path}[{index}]"), message);
        messages.into_iter().enumerate().map(turn).collect()
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

struct Content<'a>(&'a Word);

impl Content<'_> {
    fn part(&self, fields: &mut Fields) -> ApiResult<String> {
        fields.required("type", self.0, "")?;
        let text = fields.required("text", &Text, "")?;
        unsupported::ignore(fields, BESIDE_TEXT)?;
        Ok(text)
    }
}

impl Kind for Content<'_> {
    type Value = String;
    const WANTED: &'static str = "a string or an array of parts";

    fn read(&self, path: &str, value: Json) -> ApiResult<String> {
        let parts = match value {
            Json::String(text) => return Ok(text),
            Json::Array(parts) => parts.into_iter().enumerate(),
            other => return Err(wrong_type(path, Self::WANTED, &other)),
        };
        let texts = parts
            .map(|(index, part)| Fields::read(&format!("{path}[{index}]"), part, |fields| self.part(fields)));
        Ok(texts.collect::<Result<Vec<_>, _>>()?.join(BETWEEN_PARTS))
    }

    fn schema(&self) -> Value {
        let parts = json!({ "type": "array", "items": Fields::schema(|fields| self.part(fields)) });
        json!({ "oneOf": [Text.schema(), parts] })
    }
}

/// There must be something to answer.
pub(super) fn ensure_text(path: &str, turns: &[Turn]) -> ApiResult<()> {
    match turns.iter().any(|turn| !turn.text.is_empty()) {
        true => Ok(()),
        false => {
            Err(ApiError::invalid_value(path, format!("`{path}` has no text; at least one message must")))
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
    fn roles_and_texts_become_turns_in_their_order() {
        let expected =
            [Turn::system("a"), Turn::system("b"), Turn::user("c\nd"), Turn::assistant("e"), Turn::user("")];
        let of_chat = r#"[{"role":"system","content":"a"},{"role":"developer","content":"b"},
            {"role":"user","content":[{"type":"text","text":"c"},{"type":"text","text":"d"}]},
            {"role":"assistant","content":"e","refusal":null,"annotations":[],"tool_calls":null},
            {"role":"user","content":[]}]"#;
        assert_eq!(chat(of_chat).unwrap(), expected);
        let of_responses = r#"[{"role":"system","content":"a"},{"type":"message","role":"developer","content":"b"},
            {"role":"user","content":[{"type":"input_text","text":"c"},{"type":"input_text","text":"d"}]},
            {"id":"msg_1","type":"message","role":"assistant","status":"completed","phase":null,
             "content":[{"type":"output_text","text":"e","annotations":[],"logprobs":[]}]},
            {"role":"user","content":""}]"#;
        assert_eq!(responses(of_responses).unwrap(), expected);
    }

    #[test]
    fn what_is_not_text_is_refused_by_its_place() {
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
    fn a_conversation_past_the_longest_is_refused() {
        let message = r#"{"role":"user","content":"a"}"#;
        let of_length = |length: usize| format!("[{}]", vec![message; length].join(","));
        assert!(chat(&of_length(MAX_TURNS)).is_ok());
        let error = chat(&of_length(MAX_TURNS + 1)).unwrap_err();
        assert_eq!(error.field.as_deref(), Some("messages"));
    }
}
