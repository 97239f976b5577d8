//! The body of `POST /v1/chat/completions`.

use super::echoed::{Echoed, Metadata};
use super::messages::{self, CHAT};
use super::unsupported::{self, IgnoredParam, UnsupportedParam};
use super::{
    ABOUT_BODY, ABOUT_CAP, ABOUT_STREAM, ABOUT_TEMPERATURE, ABOUT_TOP_P, DEFAULT_TEMPERATURE,
    MAX_OUTPUT_TOKENS, plain_request,
};
use crate::error::{ApiError, ApiResult};
use crate::json::Json;
use crate::openapi::described_as;
use crate::request::sampling::{Stop, TEMPERATURE, TOP_P};
use crate::request::{self, ABOUT_MODEL, Boolean, Fields, Kind, RequestBody, Text, wrong_type};
use chancery_engine::MAX_TURNS;
use chancery_metering::GenerateRequest;
use serde_json::{Value, json};

const UNSUPPORTED: &[UnsupportedParam] = &[
    UnsupportedParam("audio", IgnoredParam::Nothing),
    UnsupportedParam("frequency_penalty", IgnoredParam::Zero),
    UnsupportedParam("function_call", IgnoredParam::Words(&["auto", "none"])),
    UnsupportedParam("functions", IgnoredParam::Empty),
    UnsupportedParam("logit_bias", IgnoredParam::Empty),
    UnsupportedParam("logprobs", IgnoredParam::False),
    UnsupportedParam("modalities", IgnoredParam::ListOf(&["text"])),
    UnsupportedParam("moderation", IgnoredParam::Nothing),
    UnsupportedParam("n", IgnoredParam::One),
    UnsupportedParam("prediction", IgnoredParam::Nothing),
    UnsupportedParam("presence_penalty", IgnoredParam::Zero),
    UnsupportedParam("prompt_cache_options", IgnoredParam::Nothing),
    UnsupportedParam("prompt_cache_retention", IgnoredParam::Words(&["in_memory"])),
    UnsupportedParam("reasoning_effort", IgnoredParam::Words(&["none"])),
    UnsupportedParam(
        "response_format",
        IgnoredParam::Object(&[UnsupportedParam("type", IgnoredParam::Words(&["text"]))]),
    ),
    UnsupportedParam("service_tier", IgnoredParam::Words(&["auto", "default"])),
    UnsupportedParam("store", IgnoredParam::False),
    UnsupportedParam("tools", IgnoredParam::Empty),
    UnsupportedParam("top_logprobs", IgnoredParam::Zero),
    UnsupportedParam("verbosity", IgnoredParam::Words(&["medium"])),
    UnsupportedParam("web_search_options", IgnoredParam::Nothing),
];

const UNSUPPORTED_STREAM_OPTIONS: &[UnsupportedParam] =
    &[UnsupportedParam("include_obfuscation", IgnoredParam::False)];

#[derive(Debug)]
pub(crate) struct ChatRequest {
    pub request: GenerateRequest,
    /// The name under which the caller gave the cap, or would.
    pub cap_name: &'static str,
    pub stream: Option<StreamOptions>,
    pub metadata: Option<Metadata>,
}

/// How a reply is wanted that is wanted as it comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamOptions {
    pub include_usage: bool,
    /// vLLM's option, which other servers of that family ask for: usage as far as it is known, before the end.
    pub continuous_usage_stats: bool,
}

described_as!(ChatRequest => request::schema::<ChatRequest>());

impl RequestBody for ChatRequest {
    const ABOUT: &'static str = ABOUT_BODY;

    fn fields(fields: &mut Fields) -> ApiResult<Self> {
        let model = fields.required("model", &Text, ABOUT_MODEL)?;
        let turns = fields.required(
            "messages",
            &CHAT,
            format_args!("The conversation: up to {MAX_TURNS} messages, of which one at least has text."),
        )?;
        fields.check(|| messages::ensure_text("messages", &turns))?;
        let (max_output_tokens, cap_name) = cap(fields)?;
        let stream = stream(fields)?;
        let temperature =
            fields.with_default("temperature", &TEMPERATURE, DEFAULT_TEMPERATURE, ABOUT_TEMPERATURE)?;
        let top_p = fields.with_default("top_p", &TOP_P, 1.0, ABOUT_TOP_P)?;
        let seed =
            fields.optional("seed", &Seed, "The same request with the same seed draws the same text.")?;
        let stop = fields.optional("stop", &Stop, Stop::ABOUT)?.unwrap_or_default();
        let Echoed { metadata, .. } = Echoed::fields(fields)?;
        unsupported::tools(fields)?;
        unsupported::ignore(fields, UNSUPPORTED)?;
        let plain = plain_request(model, turns);
        let request = GenerateRequest { max_output_tokens, temperature, top_p, seed, stop, ..plain };
        Ok(Self { request, cap_name, stream, metadata })
    }

    fn example() -> Value {
        json!({ "model": "smollm2-135m", "messages": [{ "role": "user", "content": "What is a ledger?" }] })
    }
}

/// The cap has a name of today and one of before; both may be sent if they agree.
fn cap(fields: &mut Fields) -> ApiResult<(Option<u64>, &'static str)> {
    let today = fields.optional("max_completion_tokens", &MAX_OUTPUT_TOKENS, ABOUT_CAP)?;
    let before = fields.optional(
        "max_tokens",
        &MAX_OUTPUT_TOKENS,
        "The name of before for `max_completion_tokens`; where both are sent, they are the same.",
    )?;
    match (today, before) {
        (None, Some(cap)) => Ok((Some(cap), "max_tokens")),
        (Some(cap), Some(other)) if cap != other => {
            let reason = "`max_tokens` and `max_completion_tokens` differ; send one of them";
            Err(ApiError::invalid_value("max_tokens", reason))
        }
        (cap, _) => Ok((cap, "max_completion_tokens")),
    }
}

fn stream(fields: &mut Fields) -> ApiResult<Option<StreamOptions>> {
    let is_streamed = fields.optional("stream", &Boolean, ABOUT_STREAM)?.unwrap_or(false);
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

impl Kind for StreamOptionsKind {
    type Value = StreamOptions;
    const WANTED: &'static str = "an object";

    fn read(&self, path: &str, value: Json) -> ApiResult<StreamOptions> {
        if !self.is_streamed {
            let reason = format!("`{path}` goes with `stream: true`; leave it out");
            return Err(ApiError::invalid_value(path, reason));
        }
        Fields::read(path, value, Self::fields)
    }

    fn schema(&self) -> Value {
        Value::Object(Fields::schema(Self::fields))
    }
}

/// Any 64 bits, with a sign or without: that family's seeds may be negative.
struct Seed;

impl Kind for Seed {
    type Value = u64;
    const WANTED: &'static str = "an integer";

    fn read(&self, path: &str, value: Json) -> ApiResult<u64> {
        let Json::Integer(seed) = value else { return Err(wrong_type(path, Self::WANTED, &value)) };
        let bits = i64::try_from(seed).map(i64::cast_unsigned).or_else(|_| u64::try_from(seed));
        let reason = || format!("`{path}` is out of range; it must be a 64-bit integer");
        bits.map_err(|_| ApiError::invalid_value(path, reason()))
    }

    fn schema(&self) -> Value {
        json!({ "type": "integer", "minimum": i64::MIN, "maximum": u64::MAX })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(body: &[u8]) -> Result<ChatRequest, ApiError> {
        request::parse(body)
    }

    const GOOD: &str = r#"{"model":"m","messages":[{"role":"user","content":"x"}]}"#;

    fn with(field: &str, value: &str) -> String {
        let mut object: serde_json::Map<String, Value> = serde_json::from_str(GOOD).unwrap();
        object.insert(field.to_owned(), serde_json::from_str(value).unwrap());
        Value::Object(object).to_string()
    }

    #[test]
    fn left_out_the_temperature_is_one_and_there_is_no_cap() {
        let ChatRequest { request, stream, .. } = parse(GOOD.as_bytes()).unwrap();
        assert_eq!((request.temperature, request.top_p, request.max_output_tokens), (1.0, 1.0, None));
        assert_eq!((request.seed, request.stop.len(), stream), (None, 0, None));
    }

    #[test]
    fn the_cap_has_two_names_that_must_agree() {
        let capped = |body: &str| {
            parse(body.as_bytes()).map(|fields| (fields.request.max_output_tokens, fields.cap_name))
        };
        assert_eq!(capped(&with("max_tokens", "5")).unwrap(), (Some(5), "max_tokens"));
        assert_eq!(capped(&with("max_completion_tokens", "6")).unwrap(), (Some(6), "max_completion_tokens"));
        let both = |one: u32, other: u32| {
            GOOD.replace("\"m\"", &format!("\"m\",\"max_tokens\":{one},\"max_completion_tokens\":{other}"))
        };
        assert_eq!(capped(&both(7, 7)).unwrap().0, Some(7));
        assert_eq!(capped(&both(7, 8)).unwrap_err().field.as_deref(), Some("max_tokens"));
    }

    #[test]
    fn usage_in_a_stream_is_there_for_the_asking() {
        let streamed = |options: &str| {
            parse(GOOD.replace("\"m\"", &format!("\"m\",\"stream\":true{options}")).as_bytes())
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
    fn a_seed_may_be_any_64_bit_integer() {
        let seed = |value: &str| parse(with("seed", value).as_bytes()).map(|fields| fields.request.seed);
        assert_eq!(seed("7").unwrap(), Some(7));
        assert_eq!(seed("-1").unwrap(), Some(u64::MAX));
        assert!(seed("18446744073709551616").is_err());
        assert!(seed("1.5").is_err());
    }

    #[test]
    fn what_is_not_offered_is_refused_by_name() {
        for (field, value, named) in [
            ("audio", r#"{"voice":"x"}"#, "audio"),
            ("frequency_penalty", "0.5", "frequency_penalty"),
            ("function_call", r#"{"name":"f"}"#, "function_call"),
            ("functions", r#"[{"name":"f"}]"#, "functions"),
            ("logit_bias", r#"{"50256":-100}"#, "logit_bias"),
            ("logprobs", "true", "logprobs"),
            ("modalities", r#"["text","audio"]"#, "modalities"),
            ("n", "2", "n"),
            ("prediction", r#"{"type":"content","content":"x"}"#, "prediction"),
            ("presence_penalty", "-1", "presence_penalty"),
            ("reasoning_effort", r#""low""#, "reasoning_effort"),
            ("response_format", r#"{"type":"json_object"}"#, "response_format.type"),
            ("response_format", r#"{"type":"json_schema","json_schema":{}}"#, "response_format.type"),
            ("service_tier", r#""priority""#, "service_tier"),
            ("store", "true", "store"),
            ("tool_choice", r#""required""#, "tool_choice"),
            ("tools", r#"[{"type":"function"}]"#, "tools"),
            ("top_logprobs", "5", "top_logprobs"),
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
    fn what_asks_for_nothing_is_taken() {
        for (field, value) in [
            ("frequency_penalty", "0"),
            ("presence_penalty", "0.0"),
            ("logit_bias", "{}"),
            ("logprobs", "false"),
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
    fn a_field_that_is_wrong_is_refused_by_name() {
        for (field, value, code, named) in [
            ("messages", "null", "missing_field", "messages"),
            ("messages", r#""hello""#, "malformed_request", "messages"),
            ("messages", "[]", "invalid_value", "messages"),
            ("messages", r#"[{"role":"user","content":""}]"#, "invalid_value", "messages"),
            ("model", "5", "malformed_request", "model"),
            ("max_tokens", "0", "invalid_value", "max_tokens"),
            ("max_completion_tokens", "0", "invalid_value", "max_completion_tokens"),
            ("stop", r#"["a","b","c","d","e"]"#, "invalid_value", "stop"),
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
        fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
