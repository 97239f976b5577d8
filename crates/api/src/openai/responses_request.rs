//! The bodies of `POST /v1/responses` and `POST /v1/responses/input_tokens`.

use super::echoed::Echoed;
use super::messages::{self, RESPONSES};
use super::unsupported::{self, IgnoredParam, ToolChoice, UnsupportedParam};
use super::{
    ABOUT_BODY, ABOUT_CAP, ABOUT_STREAM, ABOUT_TEMPERATURE, ABOUT_TOP_P, DEFAULT_TEMPERATURE,
    MAX_OUTPUT_TOKENS, plain_request,
};
use crate::error::ApiResult;
use crate::openapi::described_as;
use crate::request::sampling::{TEMPERATURE, TOP_P};
use crate::request::{self, ABOUT_MODEL, Boolean, Fields, RequestBody, Text};
use chancery_engine::{MAX_TURNS, Turn};
use chancery_metering::GenerateRequest;
use serde_json::{Value, json};

/// What both bodies may have, asking for nothing.
const UNSUPPORTED: &[UnsupportedParam] = &[
    UnsupportedParam("conversation", IgnoredParam::Nothing),
    UnsupportedParam("previous_response_id", IgnoredParam::Nothing),
    UnsupportedParam(
        "reasoning",
        IgnoredParam::Object(&[
            UnsupportedParam("effort", IgnoredParam::Words(&["none"])),
            UnsupportedParam("context", IgnoredParam::Words(&["auto"])),
            UnsupportedParam("mode", IgnoredParam::Words(&["standard"])),
            UnsupportedParam("summary", IgnoredParam::Nothing),
            UnsupportedParam("generate_summary", IgnoredParam::Nothing),
        ]),
    ),
    UnsupportedParam(
        "text",
        IgnoredParam::Object(&[
            UnsupportedParam(
                "format",
                IgnoredParam::Object(&[UnsupportedParam("type", IgnoredParam::Words(&["text"]))]),
            ),
            UnsupportedParam("verbosity", IgnoredParam::Words(&["medium"])),
        ]),
    ),
    UnsupportedParam("tools", IgnoredParam::Empty),
    UnsupportedParam("truncation", IgnoredParam::Words(&["disabled"])),
];

const UNSUPPORTED_IN_COUNTING: &[UnsupportedParam] =
    &[UnsupportedParam("personality", IgnoredParam::Nothing)];

const UNSUPPORTED_IN_RUNNING: &[UnsupportedParam] = &[
    UnsupportedParam("access_programs", IgnoredParam::Nothing),
    UnsupportedParam("background", IgnoredParam::False),
    UnsupportedParam("context_management", IgnoredParam::Empty),
    UnsupportedParam("image", IgnoredParam::Nothing),
    // Nothing of either is there to be included or counted.
    UnsupportedParam("include", IgnoredParam::ListOf(&["reasoning.encrypted_content"])),
    UnsupportedParam("max_tool_calls", IgnoredParam::AnyCount),
    UnsupportedParam("moderation", IgnoredParam::Nothing),
    UnsupportedParam("prompt", IgnoredParam::Nothing),
    UnsupportedParam("prompt_cache_options", IgnoredParam::Nothing),
    UnsupportedParam("prompt_cache_retention", IgnoredParam::Words(&["in_memory", "in-memory"])),
    UnsupportedParam("service_tier", IgnoredParam::Words(&["auto", "default"])),
    UnsupportedParam("store", IgnoredParam::False),
    UnsupportedParam(
        "stream_options",
        IgnoredParam::Object(&[UnsupportedParam("include_obfuscation", IgnoredParam::False)]),
    ),
    UnsupportedParam("top_logprobs", IgnoredParam::Zero),
];

#[derive(Debug)]
pub(crate) struct ResponsesRequest {
    pub request: GenerateRequest,
    /// Whether the reply is wanted as it comes.
    pub stream: bool,
    pub repeated: Repeated,
}

/// What the reply repeats of the request.
#[derive(Clone, Debug)]
pub(crate) struct Repeated {
    pub model: String,
    pub instructions: Option<String>,
    pub max_output_tokens: Option<u64>,
    pub temperature: f32,
    pub top_p: f32,
    pub tool_choice: &'static str,
    pub parallel_tool_calls: bool,
    pub echoed: Echoed,
}

/// The request whose input is counted.
#[derive(Debug)]
pub(crate) struct InputTokensRequest(pub GenerateRequest);

/// What both bodies have.
struct Conversation {
    model: String,
    instructions: Option<String>,
    turns: Vec<Turn>,
    tools: ToolChoice,
}

described_as!(
    ResponsesRequest => request::schema::<ResponsesRequest>(),
    InputTokensRequest => request::schema::<InputTokensRequest>(),
);

impl RequestBody for ResponsesRequest {
    const ABOUT: &'static str = ABOUT_BODY;

    fn fields(fields: &mut Fields) -> ApiResult<Self> {
        let Conversation { model, instructions, turns, tools } = conversation(fields)?;
        let max_output_tokens = fields.optional("max_output_tokens", &MAX_OUTPUT_TOKENS, ABOUT_CAP)?;
        let stream = fields.optional("stream", &Boolean, ABOUT_STREAM)?.unwrap_or(false);
        let temperature =
            fields.with_default("temperature", &TEMPERATURE, DEFAULT_TEMPERATURE, ABOUT_TEMPERATURE)?;
        let top_p = fields.with_default("top_p", &TOP_P, 1.0, ABOUT_TOP_P)?;
        let echoed = Echoed::fields(fields)?;
        unsupported::ignore(fields, UNSUPPORTED_IN_RUNNING)?;
        let request =
            GenerateRequest { max_output_tokens, temperature, top_p, ..plain_request(model.clone(), turns) };
        let ToolChoice { parallel_tool_calls, tool_choice } = tools;
        let repeated = Repeated {
            model,
            instructions,
            max_output_tokens,
            temperature,
            top_p,
            tool_choice,
            parallel_tool_calls,
            echoed,
        };
        Ok(Self { request, stream, repeated })
    }

    fn example() -> Value {
        json!({ "model": "smollm2-135m", "instructions": "Answer in one short sentence.", "input": "What is a ledger?" })
    }
}

impl RequestBody for InputTokensRequest {
    const ABOUT: &'static str = ABOUT_BODY;

    fn fields(fields: &mut Fields) -> ApiResult<Self> {
        let Conversation { model, turns, .. } = conversation(fields)?;
        unsupported::ignore(fields, UNSUPPORTED_IN_COUNTING)?;
        Ok(Self(plain_request(model, turns)))
    }

    fn example() -> Value {
        ResponsesRequest::example()
    }
}

fn conversation(fields: &mut Fields) -> ApiResult<Conversation> {
    let model = fields.required("model", &Text, ABOUT_MODEL)?;
    let instructions = fields.optional("instructions", &Text, "Goes before the input, as a system turn.")?;
    let mut turns: Vec<Turn> = instructions.iter().map(Turn::system).collect();
    let about = format_args!(
        "What to answer: a text, or up to {MAX_TURNS} messages. It may be empty if `instructions` is not."
    );
    turns.extend(fields.required("input", &RESPONSES, about)?);
    fields.check(|| messages::ensure_text("input", &turns))?;
    let tools = unsupported::tools(fields)?;
    unsupported::ignore(fields, UNSUPPORTED)?;
    Ok(Conversation { model, instructions, turns, tools })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ApiError;
    use proptest::prelude::*;

    fn parse(body: &[u8]) -> Result<ResponsesRequest, ApiError> {
        request::parse(body)
    }

    fn parse_for_counting(body: &[u8]) -> Result<GenerateRequest, ApiError> {
        request::parse(body).map(|InputTokensRequest(request)| request)
    }

    fn with(field: &str, value: &str) -> String {
        let mut object: serde_json::Map<String, Value> =
            serde_json::from_str(r#"{"model":"m","input":"x"}"#).unwrap();
        object.insert(field.to_owned(), serde_json::from_str(value).unwrap());
        Value::Object(object).to_string()
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
        let ResponsesRequest { request, stream, .. } = parse(br#"{"model":"m","input":"x"}"#).unwrap();
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
