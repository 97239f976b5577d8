//! The bodies of `POST /v1/responses` and `POST /v1/responses/input_tokens`, checked field by field.

use super::DEFAULT_TEMPERATURE;
use super::echoed::Echoed;
use super::messages::{self, RESPONSES};
use super::unsupported::{self, Harmless, NotOffered};
use crate::error::ApiError;
use crate::json::Json;
use crate::request::fields::{Fields, wrong_type};
use crate::request::sampling;
use chancery_engine::Turn;
use chancery_metering::GenerateRequest;

/// What both bodies may have, harmless values only.
pub(super) const NOT_OFFERED: &[NotOffered] = &[
    NotOffered("conversation", Harmless::Nothing),
    NotOffered("previous_response_id", Harmless::Nothing),
    NotOffered(
        "reasoning",
        Harmless::Object(&[
            NotOffered("effort", Harmless::Words(&["none"])),
            NotOffered("context", Harmless::Words(&["auto"])),
            NotOffered("mode", Harmless::Words(&["standard"])),
            NotOffered("summary", Harmless::Nothing),
            NotOffered("generate_summary", Harmless::Nothing),
        ]),
    ),
    NotOffered(
        "text",
        Harmless::Object(&[
            NotOffered("format", Harmless::Object(&[NotOffered("type", Harmless::Words(&["text"]))])),
            NotOffered("verbosity", Harmless::Words(&["medium"])),
        ]),
    ),
    NotOffered("tools", Harmless::Empty),
    NotOffered("truncation", Harmless::Words(&["disabled"])),
];

pub(super) const NOT_OFFERED_FOR_COUNTING: &[NotOffered] = &[NotOffered("personality", Harmless::Nothing)];

pub(super) const NOT_OFFERED_FOR_RUNNING: &[NotOffered] = &[
    NotOffered("access_programs", Harmless::Nothing),
    NotOffered("background", Harmless::False),
    NotOffered("context_management", Harmless::Empty),
    NotOffered("image", Harmless::Nothing),
    // Nothing of either is there to be included or counted.
    NotOffered("include", Harmless::ListOf(&["reasoning.encrypted_content"])),
    NotOffered("max_tool_calls", Harmless::AnyCount),
    NotOffered("moderation", Harmless::Nothing),
    NotOffered("prompt", Harmless::Nothing),
    NotOffered("prompt_cache_options", Harmless::Nothing),
    NotOffered("prompt_cache_retention", Harmless::Words(&["in_memory", "in-memory"])),
    NotOffered("service_tier", Harmless::Words(&["auto", "default"])),
    NotOffered("store", Harmless::False),
    NotOffered("stream_options", Harmless::Object(&[NotOffered("include_obfuscation", Harmless::False)])),
    NotOffered("top_logprobs", Harmless::Zero),
];

/// A body that has the right form.
#[derive(Debug)]
pub(super) struct ResponseFields {
    pub request: GenerateRequest,
    /// Whether the reply is wanted as it comes.
    pub stream: bool,
    pub repeated: Repeated,
}

/// What the reply repeats of the request.
#[derive(Clone, Debug)]
pub(super) struct Repeated {
    pub model: String,
    pub instructions: Option<String>,
    pub max_output_tokens: Option<u64>,
    pub temperature: f32,
    pub top_p: f32,
    pub tool_choice: &'static str,
    pub parallel_tool_calls: bool,
    pub echoed: Echoed,
}

/// What both bodies have.
struct Conversation {
    model: String,
    instructions: Option<String>,
    turns: Vec<Turn>,
    tool_choice: &'static str,
    parallel_tool_calls: bool,
}

pub(super) fn parse(body: &[u8]) -> Result<ResponseFields, ApiError> {
    let mut fields = Fields::parse(body)?;
    let conversation = conversation(&mut fields)?;
    let max_output_tokens = fields.optional_integer("max_output_tokens", 1)?;
    let stream = fields.optional_bool("stream")?.unwrap_or(false);
    let temperature = sampling::temperature(&mut fields)?.unwrap_or(DEFAULT_TEMPERATURE);
    let top_p = sampling::top_p(&mut fields)?;
    let echoed = Echoed::take(&mut fields)?;
    unsupported::refuse(&mut fields, NOT_OFFERED_FOR_RUNNING)?;
    fields.refuse_the_rest()?;
    let Conversation { model, instructions, turns, tool_choice, parallel_tool_calls } = conversation;
    Ok(ResponseFields {
        request: GenerateRequest {
            model: model.clone(),
            turns,
            max_output_tokens,
            temperature,
            top_k: None,
            top_p,
            min_p: 0.0,
            seed: None,
            stop: Vec::new(),
        },
        stream,
        repeated: Repeated {
            model,
            instructions,
            max_output_tokens,
            temperature,
            top_p,
            tool_choice,
            parallel_tool_calls,
            echoed,
        },
    })
}

/// The request whose input is counted.
pub(super) fn parse_for_counting(body: &[u8]) -> Result<GenerateRequest, ApiError> {
    let mut fields = Fields::parse(body)?;
    let Conversation { model, turns, .. } = conversation(&mut fields)?;
    unsupported::refuse(&mut fields, NOT_OFFERED_FOR_COUNTING)?;
    fields.refuse_the_rest()?;
    Ok(GenerateRequest {
        model,
        turns,
        max_output_tokens: None,
        temperature: DEFAULT_TEMPERATURE,
        top_k: None,
        top_p: 1.0,
        min_p: 0.0,
        seed: None,
        stop: Vec::new(),
    })
}

fn conversation(fields: &mut Fields) -> Result<Conversation, ApiError> {
    let model = fields.required_string("model")?;
    let instructions = fields.optional_string("instructions")?;
    let mut turns: Vec<Turn> = instructions.iter().map(Turn::system).collect();
    match fields.take(RESPONSES.list) {
        Some(Json::String(text)) => turns.push(Turn::user(text)),
        Some(Json::Array(items)) => turns.extend(RESPONSES.turns(items)?),
        Some(other) => return Err(wrong_type(RESPONSES.list, "a string or an array of messages", &other)),
        None => return Err(fields.missing(RESPONSES.list, "a string or an array of messages")),
    }
    messages::refuse_without_text(RESPONSES.list, &turns)?;
    // Without tools, every choice between them is kept.
    let parallel_tool_calls = fields.optional_bool("parallel_tool_calls")?.unwrap_or(true);
    let tool_choice = unsupported::tool_choice(fields)?;
    unsupported::refuse(fields, NOT_OFFERED)?;
    Ok(Conversation { model, instructions, turns, tool_choice, parallel_tool_calls })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with(field: &str, value: &str) -> String {
        let mut object: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(r#"{"model":"m","input":"x"}"#).unwrap();
        object.insert(field.to_owned(), serde_json::from_str(value).unwrap());
        serde_json::Value::Object(object).to_string()
    }

    #[test]
    fn a_string_is_a_user_turn_and_instructions_are_the_first() {
        let fields = parse(br#"{"model":"m","input":"x"}"#).unwrap();
        assert_eq!(fields.request.turns, [Turn::user("x")]);
        let body = br#"{"model":"m","instructions":"","input":[{"role":"developer","content":"d"},{"role":"user","content":"x"}]}"#;
        let fields = parse(body).unwrap();
        assert_eq!(fields.request.turns, [Turn::system(""), Turn::system("d"), Turn::user("x")]);
        assert_eq!(parse_for_counting(body).unwrap().turns, fields.request.turns);
    }

    #[test]
    fn left_out_the_temperature_is_one_and_there_is_no_cap() {
        let ResponseFields { request, stream, .. } = parse(br#"{"model":"m","input":"x"}"#).unwrap();
        assert_eq!((request.temperature, request.top_p, request.max_output_tokens), (1.0, 1.0, None));
        assert!(!stream);
        let request = parse(with("temperature", "0").as_bytes()).unwrap().request;
        assert!(request.temperature.abs() < f32::EPSILON);
    }

    #[test]
    fn what_is_not_offered_is_refused_by_name() {
        for (field, value, named) in [
            ("background", "true", "background"),
            ("conversation", r#""conv_1""#, "conversation"),
            ("include", r#"["message.output_text.logprobs"]"#, "include"),
            ("max_tool_calls", "-1", "max_tool_calls"),
            ("previous_response_id", r#""resp_1""#, "previous_response_id"),
            ("prompt", r#"{"id":"p"}"#, "prompt"),
            ("reasoning", r#"{"effort":"high"}"#, "reasoning.effort"),
            ("service_tier", r#""flex""#, "service_tier"),
            ("store", "true", "store"),
            ("stream_options", r#"{"include_obfuscation":true}"#, "stream_options.include_obfuscation"),
            ("text", r#"{"format":{"type":"json_schema","name":"x","schema":{}}}"#, "text.format.type"),
            ("text", r#"{"verbosity":"low"}"#, "text.verbosity"),
            ("tool_choice", r#""required""#, "tool_choice"),
            ("tool_choice", r#"{"type":"function","name":"f"}"#, "tool_choice"),
            ("tools", r#"[{"type":"web_search"}]"#, "tools"),
            ("top_logprobs", "1", "top_logprobs"),
            ("truncation", r#""auto""#, "truncation"),
        ] {
            let error = parse(with(field, value).as_bytes()).expect_err(field);
            assert_eq!(
                (error.code, error.field.as_deref()),
                ("invalid_value", Some(named)),
                "{field}: {value}"
            );
        }
    }

    #[test]
    fn what_asks_for_nothing_is_taken() {
        for (field, value) in [
            ("background", "false"),
            ("include", r#"["reasoning.encrypted_content"]"#),
            ("max_tool_calls", "3"),
            ("metadata", r#"{"a":"b"}"#),
            ("parallel_tool_calls", "false"),
            ("prompt_cache_key", r#""k""#),
            ("reasoning", r#"{"effort":null,"summary":null}"#),
            ("safety_identifier", r#""s""#),
            ("service_tier", r#""auto""#),
            ("store", "false"),
            ("text", r#"{"format":{"type":"text"}}"#),
            ("tool_choice", r#""auto""#),
            ("tools", "[]"),
            ("truncation", r#""disabled""#),
            ("user", r#""u""#),
            ("previous_response_id", "null"),
        ] {
            assert!(parse(with(field, value).as_bytes()).is_ok(), "{field}: {value}");
        }
    }

    #[test]
    fn a_field_that_is_wrong_is_refused_by_name() {
        for (field, value, code, named) in [
            ("input", "null", "missing_field", "input"),
            ("input", "5", "malformed_request", "input"),
            ("input", r#""""#, "invalid_value", "input"),
            ("input", "[]", "invalid_value", "input"),
            ("model", "null", "missing_field", "model"),
            ("instructions", "[]", "malformed_request", "instructions"),
            ("max_output_tokens", "0", "invalid_value", "max_output_tokens"),
            ("temperature", "2.5", "invalid_value", "temperature"),
            ("top_p", "0", "invalid_value", "top_p"),
            ("stream", "1", "malformed_request", "stream"),
            ("max_tokens", "5", "malformed_request", "max_tokens"),
            ("stop", r#"["x"]"#, "malformed_request", "stop"),
        ] {
            let error = parse(with(field, value).as_bytes()).expect_err(field);
            assert_eq!((error.code, error.field.as_deref()), (code, Some(named)), "{field}: {value}");
        }
        let error = parse(with("max_tokens", "5").as_bytes()).unwrap_err();
        assert!(error.reason.contains("did you mean `max_output_tokens`?"), "{}", error.reason);
    }

    #[test]
    fn what_only_running_needs_is_unknown_where_input_is_counted() {
        let error = parse_for_counting(with("stream", "true").as_bytes()).unwrap_err();
        assert_eq!((error.code, error.field.as_deref()), ("malformed_request", Some("stream")));
        assert!(parse_for_counting(with("tools", "[]").as_bytes()).is_ok());
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
