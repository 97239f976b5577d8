//! A list of messages as turns of a conversation. Both families write them alike: a role, and a text or a list of parts;
//! they differ in what else may stand beside these.

use super::unsupported::{self, Harmless, NotOffered};
use crate::error::ApiError;
use crate::json::{Json, shorten};
use crate::request::fields::{Fields, wrong_type};
use chancery_engine::{MAX_TURNS, Role, Turn};

/// How one family writes its messages.
pub(super) struct Dialect {
    /// The field that the list stands in.
    pub list: &'static str,
    /// The types of parts that are text.
    pub text_parts: &'static [&'static str],
    /// What may stand beside role and content, harmless values only.
    pub beside: &'static [NotOffered],
    /// Names that a reply of ours carries and that say nothing about the text: what a caller gets can be sent back.
    pub identifiers: &'static [&'static str],
}

pub(super) const CHAT: Dialect = Dialect {
    list: "messages",
    text_parts: &["text"],
    beside: &[
        NotOffered("name", Harmless::Nothing),
        NotOffered("refusal", Harmless::Nothing),
        NotOffered("tool_calls", Harmless::Empty),
        NotOffered("tool_call_id", Harmless::Nothing),
        NotOffered("function_call", Harmless::Nothing),
        NotOffered("audio", Harmless::Nothing),
        NotOffered("annotations", Harmless::Empty),
    ],
    identifiers: &[],
};

pub(super) const RESPONSES: Dialect = Dialect {
    list: "input",
    text_parts: &["input_text", "output_text"],
    beside: &[
        NotOffered("type", Harmless::Words(&["message"])),
        NotOffered("phase", Harmless::Words(&["final_answer"])),
    ],
    identifiers: &["id", "status"],
};

/// `developer` is another name for `system`.
pub(super) const ROLES: [&str; 4] = ["system", "developer", "user", "assistant"];

/// What may stand beside a part's type and text.
pub(super) const BESIDE_TEXT: &[NotOffered] = &[
    NotOffered("annotations", Harmless::Empty),
    NotOffered("logprobs", Harmless::Empty),
    NotOffered("prompt_cache_breakpoint", Harmless::Nothing),
];

/// Parts of one message are lines of its text.
const BETWEEN_PARTS: &str = "\n";

impl Dialect {
    pub(super) fn turns(&self, messages: Vec<Json>) -> Result<Vec<Turn>, ApiError> {
        if messages.len() > MAX_TURNS {
            let reason = format!("`{}` takes up to {MAX_TURNS} messages", self.list);
            return Err(ApiError::invalid_value(self.list, reason));
        }
        let turn = |(place, message)| self.turn(&format!("{}[{place}]", self.list), message);
        messages.into_iter().enumerate().map(turn).collect()
    }

    fn turn(&self, path: &str, message: Json) -> Result<Turn, ApiError> {
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
        let mut fields = Fields::of_object(path, message)?;
        // First, so that an item of another kind is refused for what it is and not for what it lacks.
        unsupported::refuse(&mut fields, self.beside)?;
        for name in self.identifiers {
            match fields.take_unmentioned(name) {
                None | Some(Json::String(_)) => {}
                Some(other) => return Err(wrong_type(&fields.path_of(name), "a string", &other)),
            }
        }
        let role = match fields.required_string("role")?.as_str() {
            "system" | "developer" => Role::System,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            other => {
                let path = fields.path_of("role");
                let reason = format!(
                    "`{path}` is {:?}, which is not offered here; it must be system, developer, user or assistant",
                    shorten(other)
                );
                return Err(ApiError::invalid_value(&path, reason));
            }
        };
        let path = fields.path_of("content");
        let text = match fields.take("content") {
            Some(Json::String(text)) => text,
            Some(Json::Array(parts)) => self.text_of(&path, parts)?,
            Some(other) => return Err(wrong_type(&path, "a string or an array of parts", &other)),
            None => return Err(fields.missing("content", "a string or an array of parts")),
        };
        fields.refuse_the_rest()?;
        Ok(Turn { role, text })
    }

    fn text_of(&self, path: &str, parts: Vec<Json>) -> Result<String, ApiError> {
        let mut text = String::new();
        for (place, part) in parts.into_iter().enumerate() {
            let mut fields = Fields::of_object(&format!("{path}[{place}]"), part)?;
            let kind = fields.required_string("type")?;
            if !self.text_parts.contains(&kind.as_str()) {
                let path = fields.path_of("type");
                let reason = format!(
                    "`{path}` is {:?}, which is not offered here; send text, as {}",
                    shorten(&kind),
                    self.text_parts.join(" or ")
                );
                return Err(ApiError::invalid_value(&path, reason));
            }
            if place > 0 {
                text.push_str(BETWEEN_PARTS);
            }
            text.push_str(&fields.required_string("text")?);
            unsupported::refuse(&mut fields, BESIDE_TEXT)?;
            fields.refuse_the_rest()?;
        }
        Ok(text)
    }
}

/// There must be something to answer.
pub(super) fn refuse_without_text(list: &str, turns: &[Turn]) -> Result<(), ApiError> {
    match turns.iter().any(|turn| !turn.text.is_empty()) {
        true => Ok(()),
        false => {
            Err(ApiError::invalid_value(list, format!("`{list}` has no text; at least one message must")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(dialect: &Dialect, messages: &str) -> Result<Vec<Turn>, ApiError> {
        let Ok(Json::Array(messages)) = Json::parse(messages.as_bytes()) else { panic!("{messages}") };
        dialect.turns(messages)
    }

    #[test]
    fn roles_and_texts_become_turns_in_their_order() {
        let expected =
            [Turn::system("a"), Turn::system("b"), Turn::user("c\nd"), Turn::assistant("e"), Turn::user("")];
        let chat = r#"[{"role":"system","content":"a"},{"role":"developer","content":"b"},
            {"role":"user","content":[{"type":"text","text":"c"},{"type":"text","text":"d"}]},
            {"role":"assistant","content":"e","refusal":null,"annotations":[],"tool_calls":null},
            {"role":"user","content":[]}]"#;
        assert_eq!(turns(&CHAT, chat).unwrap(), expected);
        let responses = r#"[{"role":"system","content":"a"},{"type":"message","role":"developer","content":"b"},
            {"role":"user","content":[{"type":"input_text","text":"c"},{"type":"input_text","text":"d"}]},
            {"id":"msg_1","type":"message","role":"assistant","status":"completed","phase":null,
             "content":[{"type":"output_text","text":"e","annotations":[],"logprobs":[]}]},
            {"role":"user","content":""}]"#;
        assert_eq!(turns(&RESPONSES, responses).unwrap(), expected);
    }

    #[test]
    fn what_is_not_text_is_refused_by_its_place() {
        for (dialect, messages, field) in [
            (&CHAT, r#"[{"role":"user","content":"a"},{"role":"tool","content":"b"}]"#, "messages[1].role"),
            (&CHAT, r#"[{"role":"user"}]"#, "messages[0].content"),
            (&CHAT, r#"[{"role":"assistant","content":null,"tool_calls":[{}]}]"#, "messages[0].tool_calls"),
            (&CHAT, r#"[{"role":"user","content":"a","name":"Ruth"}]"#, "messages[0].name"),
            (&CHAT, r#"[{"role":"user","content":"a","nme":"Ruth"}]"#, "messages[0].nme"),
            (
                &CHAT,
                r#"[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]"#,
                "messages[0].content[0].type",
            ),
            (
                &CHAT,
                r#"[{"role":"user","content":[{"type":"text","text":5}]}]"#,
                "messages[0].content[0].text",
            ),
            (&CHAT, r#"[{"role":"user","content":5}]"#, "messages[0].content"),
            (&CHAT, r#"["hello"]"#, "messages[0]"),
            (&RESPONSES, r#"[{"type":"function_call_output","call_id":"x","output":"y"}]"#, "input[0].type"),
            (&RESPONSES, r#"[{"type":"item_reference","id":"x"}]"#, "input[0].type"),
            (
                &RESPONSES,
                r#"[{"role":"user","content":[{"type":"input_file","file_id":"x"}]}]"#,
                "input[0].content[0].type",
            ),
            (
                &RESPONSES,
                r#"[{"role":"user","content":[{"type":"input_text","text":"a","x":1}]}]"#,
                "input[0].content[0].x",
            ),
        ] {
            let error = turns(dialect, messages).expect_err(messages);
            assert_eq!(error.field.as_deref(), Some(field), "{messages}");
            assert!(error.reason.contains(field), "{messages}: {}", error.reason);
        }
    }

    #[test]
    fn a_conversation_past_the_longest_is_refused() {
        let message = r#"{"role":"user","content":"a"}"#;
        let of_length = |length: usize| format!("[{}]", vec![message; length].join(","));
        assert!(turns(&CHAT, &of_length(MAX_TURNS)).is_ok());
        let error = turns(&CHAT, &of_length(MAX_TURNS + 1)).unwrap_err();
        assert_eq!(error.field.as_deref(), Some("messages"));
    }
}
