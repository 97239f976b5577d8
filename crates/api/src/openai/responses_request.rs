//! The bodies of `POST /v1/responses` and `POST /v1/responses/input_tokens`.

use super::echoed::EchoedFields;
use super::include::{INCLUDED_LOGPROBS, IncludeList};
use super::messages::{self, RESPONSES};
use super::unsupported::{self, IgnoredParam, ToolChoice, UnsupportedParam};
use super::{
    BODY_DESCRIPTION, DEFAULT_TEMPERATURE, MAX_OUTPUT_TOKENS, MAX_TOKENS_DESCRIPTION, STREAM_DESCRIPTION,
    TEMPERATURE_DESCRIPTION, TOP_P_DESCRIPTION, default_request,
};
use crate::error::ApiResult;
use crate::openapi::described_as;
use crate::request::logprobs::top_logprobs;
use crate::request::penalties::{penalties, stop_on_repetition};
use crate::request::sampling::{TEMPERATURE, TOP_P};
use crate::request::{self, Boolean, Fields, MODEL_DESCRIPTION, RequestBody, Text};
use chancery_engine::{MAX_TURNS, Turn};
use chancery_metering::GenerateRequest;
use serde_json::{Value, json};

/// Allowed in both bodies with a value that requests nothing.
const UNSUPPORTED: &[UnsupportedParam] = &[
    UnsupportedParam("conversation", IgnoredParam::NullOnly),
    UnsupportedParam("previous_response_id", IgnoredParam::NullOnly),
    UnsupportedParam(
        "reasoning",
        IgnoredParam::Object(&[
            UnsupportedParam("effort", IgnoredParam::OneOf(&["none"])),
            UnsupportedParam("context", IgnoredParam::OneOf(&["auto"])),
            UnsupportedParam("mode", IgnoredParam::OneOf(&["standard"])),
            UnsupportedParam("summary", IgnoredParam::NullOnly),
            UnsupportedParam("generate_summary", IgnoredParam::NullOnly),
        ]),
    ),
    UnsupportedParam(
        "text",
        IgnoredParam::Object(&[
            UnsupportedParam(
                "format",
                IgnoredParam::Object(&[UnsupportedParam("type", IgnoredParam::OneOf(&["text"]))]),
            ),
            UnsupportedParam("verbosity", IgnoredParam::OneOf(&["medium"])),
        ]),
    ),
    UnsupportedParam("tools", IgnoredParam::Empty),
    UnsupportedParam("truncation", IgnoredParam::OneOf(&["disabled"])),
];

const UNSUPPORTED_IN_COUNTING: &[UnsupportedParam] =
    &[UnsupportedParam("personality", IgnoredParam::NullOnly)];

const UNSUPPORTED_IN_RUNNING: &[UnsupportedParam] = &[
    UnsupportedParam("access_programs", IgnoredParam::NullOnly),
    UnsupportedParam("background", IgnoredParam::False),
    UnsupportedParam("context_management", IgnoredParam::Empty),
    UnsupportedParam("image", IgnoredParam::NullOnly),
    // There are no tool calls to limit.
    UnsupportedParam("max_tool_calls", IgnoredParam::AnyCount),
    UnsupportedParam("moderation", IgnoredParam::NullOnly),
    UnsupportedParam("prompt", IgnoredParam::NullOnly),
    UnsupportedParam("prompt_cache_options", IgnoredParam::NullOnly),
    UnsupportedParam("prompt_cache_retention", IgnoredParam::OneOf(&["in_memory", "in-memory"])),
    UnsupportedParam("service_tier", IgnoredParam::OneOf(&["auto", "default"])),
    UnsupportedParam("store", IgnoredParam::False),
    UnsupportedParam(
        "stream_options",
        IgnoredParam::Object(&[UnsupportedParam("include_obfuscation", IgnoredParam::False)]),
    ),
];

#[derive(Debug)]
pub(crate) struct ResponsesRequest {
    pub request: GenerateRequest,
    /// Whether to stream the reply.
    pub stream: bool,
    pub echoed_request: EchoedRequest,
}

/// Request fields that the reply repeats.
#[derive(Clone, Debug)]
pub(crate) struct EchoedRequest {
    pub model: String,
    pub instructions: Option<String>,
    pub max_output_tokens: Option<u64>,
    pub temperature: f32,
    pub top_p: f32,
    pub frequency_penalty: f32,
    pub presence_penalty: f32,
    pub top_logprobs: u8,
    pub tool_choice: &'static str,
    pub parallel_tool_calls: bool,
    pub echoed: EchoedFields,
}

/// A request whose input tokens are counted.
#[derive(Debug)]
pub(crate) struct InputTokensRequest(pub GenerateRequest);

/// Fields common to both bodies.
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
    const DESCRIPTION: &'static str = BODY_DESCRIPTION;

    fn fields(fields: &mut Fields) -> ApiResult<Self> {
        let Conversation { model, instructions, turns, tools } = conversation(fields)?;
        let max_output_tokens =
            fields.optional("max_output_tokens", &MAX_OUTPUT_TOKENS, MAX_TOKENS_DESCRIPTION)?;
        let stream = fields.optional("stream", &Boolean, STREAM_DESCRIPTION)?.unwrap_or(false);
        let temperature =
            fields.with_default("temperature", &TEMPERATURE, DEFAULT_TEMPERATURE, TEMPERATURE_DESCRIPTION)?;
        let top_p = fields.with_default("top_p", &TOP_P, 1.0, TOP_P_DESCRIPTION)?;
        let penalties = penalties(fields)?;
        let stop_on_repetition = stop_on_repetition(fields)?;
        let included =
            fields.optional("include", &IncludeList, IncludeList::DESCRIPTION)?.unwrap_or_default();
        let top_logprobs =
            top_logprobs(fields, included.has_logprobs, &format!("include: [\"{INCLUDED_LOGPROBS}\"]"))?;
        let echoed = EchoedFields::fields(fields)?;
        unsupported::ignore(fields, UNSUPPORTED_IN_RUNNING)?;
        let request = GenerateRequest {
            max_output_tokens,
            temperature,
            top_p,
            penalties,
            stop_on_repetition,
            top_logprobs,
            ..default_request(model.clone(), turns)
        };
        let ToolChoice { parallel_tool_calls, tool_choice } = tools;
        let echoed_request = EchoedRequest {
            model,
            instructions,
            max_output_tokens,
            temperature,
            top_p,
            frequency_penalty: penalties.frequency,
            presence_penalty: penalties.presence,
            top_logprobs: top_logprobs.unwrap_or(0),
            tool_choice,
            parallel_tool_calls,
            echoed,
        };
        Ok(Self { request, stream, echoed_request })
    }

    fn example() -> Value {
        json!({ "model": "smollm2-135m", "instructions": "Answer in one short sentence.", "input": "What is a ledger?" })
    }
}

impl RequestBody for InputTokensRequest {
    const DESCRIPTION: &'static str = BODY_DESCRIPTION;

    fn fields(fields: &mut Fields) -> ApiResult<Self> {
        let Conversation { model, turns, .. } = conversation(fields)?;
        unsupported::ignore(fields, UNSUPPORTED_IN_COUNTING)?;
        Ok(Self(default_request(model, turns)))
    }

    fn example() -> Value {
        ResponsesRequest::example()
    }
}

fn conversation(fields: &mut Fields) -> ApiResult<Conversation> {
    let model = fields.required("model", &Text, MODEL_DESCRIPTION)?;
    let instructions = fields.optional("instructions", &Text, "Goes before the input, as a system turn.")?;
    let mut turns: Vec<Turn> = instructions.iter().map(Turn::system).collect();
    let description = format_args!(
        "What to answer: a text, or up to {MAX_TURNS} messages. It may be empty if `instructions` is not."
    );
    turns.extend(fields.required("input", &RESPONSES, description)?);
    fields.check(|| messages::ensure_text("input", &turns))?;
    let tools = unsupported::tools(fields)?;
    unsupported::ignore(fields, UNSUPPORTED)?;
    Ok(Conversation { model, instructions, turns, tools })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ApiError;
    use chancery_engine::Penalties;
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
    fn string_input_is_a_user_turn_and_instructions_come_first() {
        let fields = parse(br#"{"model":"m","input":"x"}"#).unwrap();
        assert_eq!(fields.request.turns, [Turn::user("x")]);
        let body = br#"{"model":"m","instructions":"","input":[{"role":"developer","content":"d"},{"role":"user","content":"x"}]}"#;
        let fields = parse(body).unwrap();
        assert_eq!(fields.request.turns, [Turn::system(""), Turn::system("d"), Turn::user("x")]);
        assert_eq!(parse_for_counting(body).unwrap().turns, fields.request.turns);
    }

    #[test]
    fn temperature_defaults_to_1_and_output_is_uncapped() {
        let ResponsesRequest { request, stream, .. } = parse(br#"{"model":"m","input":"x"}"#).unwrap();
        assert_eq!((request.temperature, request.top_p, request.max_output_tokens), (1.0, 1.0, None));
        assert!(!stream);
        let request = parse(with("temperature", "0").as_bytes()).unwrap().request;
        assert!(request.temperature.abs() < f32::EPSILON);
    }

    #[test]
    fn unsupported_param_is_rejected_by_name() {
        for (field, value, named) in [
            ("background", "true", "background"),
            ("conversation", r#""conv_1""#, "conversation"),
            ("include", r#"["file_search_call.results"]"#, "include"),
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
    fn no_op_param_values_are_accepted() {
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
    fn penalties_and_included_logprobs_are_supported_and_echoed() {
        let body = br#"{"model":"m","input":"x","frequency_penalty":0.5,"presence_penalty":-1,"repetition_penalty":1.5,
            "stop_on_repetition":true,"include":["reasoning.encrypted_content","message.output_text.logprobs"],
            "top_logprobs":2}"#;
        let ResponsesRequest { request, echoed_request, .. } = parse(body).unwrap();
        let expected = Penalties { repetition: 1.5, frequency: 0.5, presence: -1.0, ..Penalties::NONE };
        assert_eq!(request.penalties, expected);
        assert_eq!((request.stop_on_repetition, request.top_logprobs), (true, Some(2)));
        let EchoedRequest { frequency_penalty, presence_penalty, top_logprobs, .. } = echoed_request;
        assert_eq!((frequency_penalty, presence_penalty, top_logprobs), (0.5, -1.0, 2));
        let included = parse(with("include", r#"["message.output_text.logprobs"]"#).as_bytes()).unwrap();
        assert_eq!(included.request.top_logprobs, Some(0));
        let not_included = parse(with("include", "[]").as_bytes()).unwrap();
        assert_eq!(not_included.request.top_logprobs, None);
    }

    #[test]
    fn top_logprobs_without_included_logprobs_is_rejected_with_the_fix() {
        assert!(parse(with("top_logprobs", "0").as_bytes()).is_ok());
        let error = parse(with("top_logprobs", "1").as_bytes()).unwrap_err();
        assert_eq!((error.code, error.field.as_deref()), ("invalid_value", Some("top_logprobs")));
        assert!(error.reason.contains(r#"`include: ["message.output_text.logprobs"]`"#), "{}", error.reason);
    }

    #[test]
    fn invalid_field_is_rejected_by_name() {
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
            ("frequency_penalty", "-2.5", "invalid_value", "frequency_penalty"),
            ("repetition_penalty", "0", "invalid_value", "repetition_penalty"),
            ("include", "5", "malformed_request", "include"),
            ("logprobs", "true", "malformed_request", "logprobs"),
        ] {
            let error = parse(with(field, value).as_bytes()).expect_err(field);
            assert_eq!((error.code, error.field.as_deref()), (code, Some(named)), "{field}: {value}");
        }
        let error = parse(with("max_tokens", "5").as_bytes()).unwrap_err();
        assert!(error.reason.contains("did you mean `max_output_tokens`?"), "{}", error.reason);
    }

    #[test]
    fn generation_only_params_are_unknown_when_counting_input() {
        let error = parse_for_counting(with("stream", "true").as_bytes()).unwrap_err();
        assert_eq!((error.code, error.field.as_deref()), ("malformed_request", Some("stream")));
        assert!(parse_for_counting(with("tools", "[]").as_bytes()).is_ok());
    }

    proptest! {
        #[test]
        fn parser_never_panics_on_arbitrary_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
