//! The body of `POST /v1/chat/completions`.

use super::echoed::{EchoedFields, Metadata};
use super::messages::{self, CHAT};
use super::unsupported::{self, IgnoredParam, UnsupportedParam};
use super::{
    BODY_DESCRIPTION, DEFAULT_TEMPERATURE, MAX_OUTPUT_TOKENS, MAX_TOKENS_DESCRIPTION, STREAM_DESCRIPTION,
    TEMPERATURE_DESCRIPTION, TOP_P_DESCRIPTION, default_request,
};
use crate::error::{ApiError, ApiResult};
use crate::json::{Json, LARGEST_EXACT};
use crate::openapi::described_as;
use crate::request::logprobs::logprobs;
use crate::request::penalties::{penalties, stop_on_repetition};
use crate::request::sampling::{Stop, TEMPERATURE, TOP_P};
use crate::request::{self, Boolean, FieldType, Fields, MODEL_DESCRIPTION, RequestBody, Text, wrong_type};
use chancery_engine::MAX_TURNS;
use chancery_metering::GenerateRequest;
use serde_json::{Value, json};

const UNSUPPORTED: &[UnsupportedParam] = &[
    UnsupportedParam("audio", IgnoredParam::NullOnly),
    UnsupportedParam("function_call", IgnoredParam::OneOf(&["auto", "none"])),
    UnsupportedParam("functions", IgnoredParam::Empty),
    UnsupportedParam("logit_bias", IgnoredParam::Empty),
    UnsupportedParam("modalities", IgnoredParam::ListOf(&["text"])),
    UnsupportedParam("moderation", IgnoredParam::NullOnly),
    UnsupportedParam("n", IgnoredParam::One),
    UnsupportedParam("prediction", IgnoredParam::NullOnly),
    UnsupportedParam("prompt_cache_options", IgnoredParam::NullOnly),
    UnsupportedParam("prompt_cache_retention", IgnoredParam::OneOf(&["in_memory"])),
    UnsupportedParam("reasoning_effort", IgnoredParam::OneOf(&["none"])),
    UnsupportedParam(
        "response_format",
        IgnoredParam::Object(&[UnsupportedParam("type", IgnoredParam::OneOf(&["text"]))]),
    ),
    UnsupportedParam("service_tier", IgnoredParam::OneOf(&["auto", "default"])),
    UnsupportedParam("store", IgnoredParam::False),
    UnsupportedParam("tools", IgnoredParam::Empty),
    UnsupportedParam("verbosity", IgnoredParam::OneOf(&["medium"])),
    UnsupportedParam("web_search_options", IgnoredParam::NullOnly),
];

const UNSUPPORTED_STREAM_OPTIONS: &[UnsupportedParam] =
    &[UnsupportedParam("include_obfuscation", IgnoredParam::False)];

#[derive(Debug)]
pub(crate) struct ChatRequest {
    pub request: GenerateRequest,
    /// The name the caller used for the token cap, or the default name if none was sent.
    pub max_tokens_field: &'static str,
    pub stream: Option<StreamOptions>,
    pub metadata: Option<Metadata>,
}

/// Options of a streamed reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamOptions {
    pub include_usage: bool,
    /// vLLM's option, also sent by similar servers: report the usage known so far before the end.
    pub continuous_usage_stats: bool,
}

described_as!(ChatRequest => request::schema::<ChatRequest>());

impl RequestBody for ChatRequest {
    const DESCRIPTION: &'static str = BODY_DESCRIPTION;

    fn fields(fields: &mut Fields) -> ApiResult<Self> {
        let model = fields.required("model", &Text, MODEL_DESCRIPTION)?;
        let turns = fields.required(
            "messages",
            &CHAT,
            format_args!("The conversation: up to {MAX_TURNS} messages, of which one at least has text."),
        )?;
        fields.check(|| messages::ensure_text("messages", &turns))?;
        let (max_output_tokens, max_tokens_field) = max_tokens(fields)?;
        let stream = stream(fields)?;
        let temperature =
            fields.with_default("temperature", &TEMPERATURE, DEFAULT_TEMPERATURE, TEMPERATURE_DESCRIPTION)?;
        let top_p = fields.with_default("top_p", &TOP_P, 1.0, TOP_P_DESCRIPTION)?;
        let seed =
            fields.optional("seed", &Seed, "The same request with the same seed draws the same text.")?;
        let stop = fields.optional("stop", &Stop, Stop::DESCRIPTION)?.unwrap_or_default();
        let penalties = penalties(fields)?;
        let stop_on_repetition = stop_on_repetition(fields)?;
        let top_logprobs = logprobs(fields)?;
        let EchoedFields { metadata, .. } = EchoedFields::fields(fields)?;
        unsupported::tools(fields)?;
        unsupported::ignore(fields, UNSUPPORTED)?;
        let request = GenerateRequest {
            max_output_tokens,
            temperature,
            top_p,
            penalties,
            seed,
            stop,
            stop_on_repetition,
            top_logprobs,
            ..default_request(model, turns)
        };
        Ok(Self { request, max_tokens_field, stream, metadata })
    }

    fn example() -> Value {
        json!({ "model": "smollm2-135m", "messages": [{ "role": "user", "content": "What is a ledger?" }] })
    }
}

/// The token cap has a current and a deprecated name. Both may be sent if they agree.
fn max_tokens(fields: &mut Fields) -> ApiResult<(Option<u64>, &'static str)> {
    let current = fields.optional("max_completion_tokens", &MAX_OUTPUT_TOKENS, MAX_TOKENS_DESCRIPTION)?;
    let legacy = fields.optional(
        "max_tokens",
        &MAX_OUTPUT_TOKENS,
        "The name of before for `max_completion_tokens`; where both are sent, they are the same.",
    )?;
    match (current, legacy) {
        (None, Some(max_tokens)) => Ok((Some(max_tokens), "max_tokens")),
        (Some(max_tokens), Some(other)) if max_tokens != other => {
            let reason = "`max_tokens` and `max_completion_tokens` differ; send only one";
            Err(ApiError::invalid_value("max_tokens", reason))
        }
        (max_tokens, _) => Ok((max_tokens, "max_completion_tokens")),
    }
}

fn stream(fields: &mut Fields) -> ApiResult<Option<StreamOptions>> {
    let is_streamed = fields.optional("stream", &Boolean, STREAM_DESCRIPTION)?.unwrap_or(false);
    let kind = StreamOptionsKind { is_streamed };
    let options = fields.optional("stream_options", &kind, "Only with `stream: true`.")?;
    Ok(is_streamed.then(|| options.unwrap_or_default()))
}

struct StreamOptionsKind {
    is_streamed: bool,
}

impl StreamOptionsKind {
    fn fields(fields: &mut Fields) -> ApiResult<StreamOptions> {
        let include_usage =
            fields.optional("include_usage", &Boolean, "Whether a last chunk tells the usage.")?;
        let continuous_usage_stats = fields.optional(
            "continuous_usage_stats",
            &Boolean,
            "With `include_usage`: whether the first chunk tells the prompt's tokens.",
        )?;
        unsupported::ignore(fields, UNSUPPORTED_STREAM_OPTIONS)?;
        let include_usage = include_usage.unwrap_or(false);
        let continuous_usage_stats = include_usage && continuous_usage_stats.unwrap_or(false);
        Ok(StreamOptions { include_usage, continuous_usage_stats })
    }
}

impl FieldType for StreamOptionsKind {
    type Value = StreamOptions;
    const EXPECTED: &'static str = "an object";

    fn read(&self, path: &str, value: Json) -> ApiResult<StreamOptions> {
        if !self.is_streamed {
            let reason = format!("`{path}` requires `stream: true`; set it, or remove `{path}`");
            return Err(ApiError::invalid_value(path, reason));
        }
        Fields::read(path, value, Self::fields)
    }

    fn schema(&self) -> Value {
        Value::Object(Fields::schema(Self::fields))
    }
}

/// Any 64-bit integer, signed or unsigned: OpenAI's seeds may be negative.
struct Seed;

impl FieldType for Seed {
    type Value = u64;
    const EXPECTED: &'static str = "an integer";

    fn read(&self, path: &str, value: Json) -> ApiResult<u64> {
        let seed = match value {
            Json::Integer(seed) => seed,
            Json::Number(number) if number.fract() != 0.0 => {
                let reason = format!("`{path}` must be an integer, not a fraction");
                return Err(ApiError::malformed(reason).with_field(path));
            }
            // JSON does not distinguish `64` from `64.0`. Of larger numbers the last digits are lost.
            Json::Number(number) if number.abs() <= LARGEST_EXACT => number as i128,
            Json::Number(_) => i128::MAX,
            other => return Err(wrong_type(path, Self::EXPECTED, &other)),
        };
        let bits = i64::try_from(seed).map(i64::cast_unsigned).or_else(|_| u64::try_from(seed));
        let reason = || format!("`{path}` must be a 64-bit integer");
        bits.map_err(|_| ApiError::invalid_value(path, reason()))
    }

    fn schema(&self) -> Value {
        json!({ "type": "integer", "minimum": i64::MIN, "maximum": u64::MAX })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_engine::{Dry, Penalties};
    use proptest::prelude::*;

    fn parse(body: &[u8]) -> Result<ChatRequest, ApiError> {
        request::parse(body)
    }

    const VALID: &str = r#"{"model":"m","messages":[{"role":"user","content":"x"}]}"#;

    fn with(field: &str, value: &str) -> String {
        let mut object: serde_json::Map<String, Value> = serde_json::from_str(VALID).unwrap();
        object.insert(field.to_owned(), serde_json::from_str(value).unwrap());
        Value::Object(object).to_string()
    }

    #[test]
    fn temperature_defaults_to_1_and_output_is_uncapped() {
        let ChatRequest { request, stream, .. } = parse(VALID.as_bytes()).unwrap();
        assert_eq!((request.temperature, request.top_p, request.max_output_tokens), (1.0, 1.0, None));
        assert_eq!((request.seed, request.stop.len(), stream), (None, 0, None));
    }

    #[test]
    fn max_tokens_and_max_completion_tokens_must_agree() {
        let capped = |body: &str| {
            parse(body.as_bytes()).map(|fields| (fields.request.max_output_tokens, fields.max_tokens_field))
        };
        assert_eq!(capped(&with("max_tokens", "5")).unwrap(), (Some(5), "max_tokens"));
        assert_eq!(capped(&with("max_completion_tokens", "6")).unwrap(), (Some(6), "max_completion_tokens"));
        let both = |one: u32, other: u32| {
            VALID.replace("\"m\"", &format!("\"m\",\"max_tokens\":{one},\"max_completion_tokens\":{other}"))
        };
        assert_eq!(capped(&both(7, 7)).unwrap().0, Some(7));
        assert_eq!(capped(&both(7, 8)).unwrap_err().field.as_deref(), Some("max_tokens"));
    }

    #[test]
    fn stream_options_control_usage_reporting() {
        let streamed = |options: &str| {
            parse(VALID.replace("\"m\"", &format!("\"m\",\"stream\":true{options}")).as_bytes())
                .map(|fields| fields.stream)
        };
        let options = |include_usage, continuous_usage_stats| {
            Some(StreamOptions { include_usage, continuous_usage_stats })
        };
        assert_eq!(streamed("").unwrap(), options(false, false));
        assert_eq!(streamed(r#","stream_options":{"include_usage":true}"#).unwrap(), options(true, false));
        let continuous = r#","stream_options":{"include_usage":true,"continuous_usage_stats":true}"#;
        assert_eq!(streamed(continuous).unwrap(), options(true, true));
        let alone = r#","stream_options":{"continuous_usage_stats":true}"#;
        assert_eq!(streamed(alone).unwrap(), options(false, false), "it goes with usage at the end");
        let error = streamed(r#","stream_options":{"include_usages":true}"#).unwrap_err();
        assert_eq!(error.field.as_deref(), Some("stream_options.include_usages"));
        let error = parse(with("stream_options", "{}").as_bytes()).unwrap_err();
        assert_eq!(error.field.as_deref(), Some("stream_options"));
    }

    #[test]
    fn seed_accepts_any_64_bit_integer() {
        let seed = |value: &str| parse(with("seed", value).as_bytes()).map(|fields| fields.request.seed);
        assert_eq!(seed("7").unwrap(), Some(7));
        assert_eq!(seed("-1").unwrap(), Some(u64::MAX));
        assert!(seed("18446744073709551616").is_err());
        assert!(seed("1.5").is_err());
    }

    #[test]
    fn unsupported_param_is_rejected_by_name() {
        for (field, value, named) in [
            ("audio", r#"{"voice":"x"}"#, "audio"),
            ("function_call", r#"{"name":"f"}"#, "function_call"),
            ("functions", r#"[{"name":"f"}]"#, "functions"),
            ("logit_bias", r#"{"50256":-100}"#, "logit_bias"),
            ("modalities", r#"["text","audio"]"#, "modalities"),
            ("n", "2", "n"),
            ("prediction", r#"{"type":"content","content":"x"}"#, "prediction"),
            ("reasoning_effort", r#""low""#, "reasoning_effort"),
            ("response_format", r#"{"type":"json_object"}"#, "response_format.type"),
            ("response_format", r#"{"type":"json_schema","json_schema":{}}"#, "response_format.type"),
            ("service_tier", r#""priority""#, "service_tier"),
            ("store", "true", "store"),
            ("tool_choice", r#""required""#, "tool_choice"),
            ("tools", r#"[{"type":"function"}]"#, "tools"),
            ("verbosity", r#""low""#, "verbosity"),
            ("web_search_options", "{}", "web_search_options"),
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
            ("logit_bias", "{}"),
            ("modalities", r#"["text"]"#),
            ("n", "1"),
            ("parallel_tool_calls", "true"),
            ("response_format", r#"{"type":"text"}"#),
            ("service_tier", r#""auto""#),
            ("store", "false"),
            ("tools", "[]"),
            ("tool_choice", r#""none""#),
            ("user", r#""u""#),
            ("metadata", r#"{"a":"b"}"#),
            ("stop", "null"),
        ] {
            assert!(parse(with(field, value).as_bytes()).is_ok(), "{field}: {value}");
        }
    }

    #[test]
    fn penalties_and_logprobs_are_supported() {
        let body = VALID.replace(
            "\"m\"",
            r#""m","frequency_penalty":0.5,"presence_penalty":-1,"repetition_penalty":1.5,"dry_multiplier":1,
               "stop_on_repetition":true,"logprobs":true,"top_logprobs":2"#,
        );
        let request = parse(body.as_bytes()).unwrap().request;
        let dry = Dry { multiplier: 1.0, ..Dry::NONE };
        assert_eq!(request.penalties, Penalties { repetition: 1.5, frequency: 0.5, presence: -1.0, dry });
        assert_eq!((request.stop_on_repetition, request.top_logprobs), (true, Some(2)));
        let plain = parse(VALID.as_bytes()).unwrap().request;
        assert_eq!((plain.penalties, plain.top_logprobs), (Penalties::NONE, None));
    }

    #[test]
    fn invalid_field_is_rejected_by_name() {
        for (field, value, code, named) in [
            ("messages", "null", "missing_field", "messages"),
            ("messages", r#""hello""#, "malformed_request", "messages"),
            ("messages", "[]", "invalid_value", "messages"),
            ("messages", r#"[{"role":"user","content":""}]"#, "invalid_value", "messages"),
            ("model", "5", "malformed_request", "model"),
            ("max_tokens", "0", "invalid_value", "max_tokens"),
            ("max_completion_tokens", "0", "invalid_value", "max_completion_tokens"),
            ("stop", r#"["a","b","c","d","e"]"#, "invalid_value", "stop"),
            ("frequency_penalty", "2.5", "invalid_value", "frequency_penalty"),
            ("presence_penalty", "\"0\"", "malformed_request", "presence_penalty"),
            ("dry_base", "0", "invalid_value", "dry_base"),
            ("logprobs", "5", "malformed_request", "logprobs"),
            ("top_logprobs", "5", "invalid_value", "top_logprobs"),
            ("temprature", "1", "malformed_request", "temprature"),
        ] {
            let error = parse(with(field, value).as_bytes()).expect_err(field);
            assert_eq!((error.code, error.field.as_deref()), (code, Some(named)), "{field}: {value}");
        }
        let error = parse(with("temprature", "1").as_bytes()).unwrap_err();
        assert!(error.reason.contains("did you mean `temperature`?"), "{}", error.reason);
    }

    proptest! {
        #[test]
        fn parser_never_panics_on_arbitrary_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
