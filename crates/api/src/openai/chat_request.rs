//! The body of `POST /v1/chat/completions`, checked field by field.

use super::DEFAULT_TEMPERATURE;
use super::echoed::{Echoed, Metadata};
use super::messages::{self, CHAT};
use super::unsupported::{self, Harmless, NotOffered};
use crate::error::ApiError;
use crate::json::Json;
use crate::request::fields::{Fields, wrong_type};
use crate::request::sampling;
use chancery_engine::Turn;
use chancery_metering::GenerateRequest;

pub(super) const NOT_OFFERED: &[NotOffered] = &[
    NotOffered("audio", Harmless::Nothing),
    NotOffered("frequency_penalty", Harmless::Zero),
    NotOffered("function_call", Harmless::Words(&["auto", "none"])),
    NotOffered("functions", Harmless::Empty),
    NotOffered("logit_bias", Harmless::Empty),
    NotOffered("logprobs", Harmless::False),
    NotOffered("modalities", Harmless::ListOf(&["text"])),
    NotOffered("moderation", Harmless::Nothing),
    NotOffered("n", Harmless::One),
    NotOffered("prediction", Harmless::Nothing),
    NotOffered("presence_penalty", Harmless::Zero),
    NotOffered("prompt_cache_options", Harmless::Nothing),
    NotOffered("prompt_cache_retention", Harmless::Words(&["in_memory"])),
    NotOffered("reasoning_effort", Harmless::Words(&["none"])),
    NotOffered("response_format", Harmless::Object(&[NotOffered("type", Harmless::Words(&["text"]))])),
    NotOffered("service_tier", Harmless::Words(&["auto", "default"])),
    NotOffered("store", Harmless::False),
    NotOffered("tools", Harmless::Empty),
    NotOffered("top_logprobs", Harmless::Zero),
    NotOffered("verbosity", Harmless::Words(&["medium"])),
    NotOffered("web_search_options", Harmless::Nothing),
];

pub(super) const STREAM_OPTIONS_NOT_OFFERED: &[NotOffered] =
    &[NotOffered("include_obfuscation", Harmless::False)];

/// That family's seeds may be negative.
pub(super) const MIN_SEED: i64 = i64::MIN;
pub(super) const MAX_SEED: u64 = u64::MAX;

/// A body that has the right form.
#[derive(Debug)]
pub(super) struct ChatFields {
    pub request: GenerateRequest,
    /// The name under which the caller gave the cap, or would.
    pub cap_name: &'static str,
    pub stream: Option<StreamOptions>,
    pub metadata: Option<Metadata>,
}

/// How a reply is wanted that is wanted as it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamOptions {
    pub include_usage: bool,
    /// vLLM's option, which other servers of that family ask for: usage as far as it is known, before the end.
    pub continuous_usage_stats: bool,
}

pub(super) fn parse(body: &[u8]) -> Result<ChatFields, ApiError> {
    let mut fields = Fields::parse(body)?;
    let model = fields.required_string("model")?;
    let turns = turns(&mut fields)?;
    let (max_output_tokens, cap_name) = cap(&mut fields)?;
    let stream = stream(&mut fields)?;
    let temperature = sampling::temperature(&mut fields)?.unwrap_or(DEFAULT_TEMPERATURE);
    let top_p = sampling::top_p(&mut fields)?;
    let seed = seed(&mut fields)?;
    let stop = sampling::stop(&mut fields)?;
    let Echoed { metadata, .. } = Echoed::take(&mut fields)?;
    // Without tools, every choice between them is kept.
    fields.optional_bool("parallel_tool_calls")?;
    unsupported::tool_choice(&mut fields)?;
    unsupported::refuse(&mut fields, NOT_OFFERED)?;
    fields.refuse_the_rest()?;
    let request = GenerateRequest {
        model,
        turns,
        max_output_tokens,
        temperature,
        top_k: None,
        top_p,
        min_p: 0.0,
        seed,
        stop,
    };
    Ok(ChatFields { request, cap_name, stream, metadata })
}

fn turns(fields: &mut Fields) -> Result<Vec<Turn>, ApiError> {
    let turns = match fields.take(CHAT.list) {
        Some(Json::Array(messages)) => CHAT.turns(messages)?,
        Some(other) => return Err(wrong_type(CHAT.list, "an array of messages", &other)),
        None => return Err(fields.missing(CHAT.list, "an array of messages")),
    };
    messages::refuse_without_text(CHAT.list, &turns)?;
    Ok(turns)
}

/// The cap has a name of today and one of before; both may be sent if they agree.
fn cap(fields: &mut Fields) -> Result<(Option<u64>, &'static str), ApiError> {
    let today = fields.optional_integer("max_completion_tokens", 1)?;
    let before = fields.optional_integer("max_tokens", 1)?;
    match (today, before) {
        (None, Some(cap)) => Ok((Some(cap), "max_tokens")),
        (Some(cap), Some(other)) if cap != other => {
            let reason = "`max_tokens` and `max_completion_tokens` differ; send one of them";
            Err(ApiError::invalid_value("max_tokens", reason))
        }
        (cap, _) => Ok((cap, "max_completion_tokens")),
    }
}

fn stream(fields: &mut Fields) -> Result<Option<StreamOptions>, ApiError> {
    let is_wanted = fields.optional_bool("stream")?.unwrap_or(false);
    let options = fields.take("stream_options");
    if options.is_some() && !is_wanted {
        let reason = "`stream_options` goes with `stream: true`; leave it out";
        return Err(ApiError::invalid_value("stream_options", reason));
    }
    let (mut include_usage, mut continuous_usage_stats) = (false, false);
    if let Some(options) = options {
        let mut options = Fields::of_object("stream_options", options)?;
        include_usage = options.optional_bool("include_usage")?.unwrap_or(false);
        let is_continuous = options.optional_bool("continuous_usage_stats")?.unwrap_or(false);
        continuous_usage_stats = include_usage && is_continuous;
        unsupported::refuse(&mut options, STREAM_OPTIONS_NOT_OFFERED)?;
        options.refuse_the_rest()?;
    }
    Ok(is_wanted.then_some(StreamOptions { include_usage, continuous_usage_stats }))
}

/// Any 64 bits, with a sign or without.
fn seed(fields: &mut Fields) -> Result<Option<u64>, ApiError> {
    match fields.take("seed") {
        None => Ok(None),
        Some(Json::Integer(seed)) => {
            let bits = i64::try_from(seed).map(i64::cast_unsigned).or_else(|_| u64::try_from(seed));
            let reason = "`seed` is out of range; it must be a 64-bit integer";
            bits.map(Some).map_err(|_| ApiError::invalid_value("seed", reason))
        }
        Some(other) => Err(wrong_type("seed", "an integer", &other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOOD: &str = r#"{"model":"m","messages":[{"role":"user","content":"x"}]}"#;

    fn with(field: &str, value: &str) -> String {
        let mut object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(GOOD).unwrap();
        object.insert(field.to_owned(), serde_json::from_str(value).unwrap());
        serde_json::Value::Object(object).to_string()
    }

    #[test]
    fn left_out_the_temperature_is_one_and_there_is_no_cap() {
        let ChatFields { request, stream, .. } = parse(GOOD.as_bytes()).unwrap();
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
