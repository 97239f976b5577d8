//! The request body of `POST /v1/generate` and `POST /v1/tokens`.

use crate::error::{ApiError, ApiResult};
use crate::openapi::described_as;
use crate::request::logprobs::logprobs;
use crate::request::penalties::{penalties, stop_on_repetition};
use crate::request::sampling::{Stop, TEMPERATURE, TOP_P};
use crate::request::{self, Boolean, Fields, Integer, MODEL_DESCRIPTION, Number, RequestBody, Text};
use chancery_engine::Turn;
use chancery_metering::GenerateRequest;
use serde_json::{Map, Value, json};
use std::num::NonZeroU32;

const MAX_OUTPUT_TOKENS: Integer = Integer { min: 1, max: None };
/// Several times the size of the largest vocabularies.
const TOP_K: Integer = Integer { min: 1, max: Some(1 << 20) };
const MIN_P: Number = Number { min: 0.0, excludes_min: false, max: 1.0 };
const SEED: Integer = Integer { min: 0, max: Some(u64::MAX) };

#[derive(Debug)]
pub(crate) struct GenerationRequest {
    pub request: GenerateRequest,
    /// Whether to stream the reply.
    pub stream: bool,
    /// Whether the reply has a `receipt`.
    pub receipt: bool,
}

described_as!(GenerationRequest => request::schema::<GenerationRequest>());

impl RequestBody for GenerationRequest {
    const DESCRIPTION: &'static str = "`instructions` and `input` may not both be empty.";

    fn fields(fields: &mut Fields) -> ApiResult<Self> {
        let model = fields.required("model", &Text, MODEL_DESCRIPTION)?;
        let instructions = fields.required(
            "instructions",
            &Text,
            "The job, in your words; becomes the system turn. May be empty if `input` is not.",
        )?;
        let input = fields.required(
            "input",
            &Text,
            "The material; becomes the user turn. May be empty if `instructions` is not.",
        )?;
        fields.check(|| match instructions.is_empty() && input.is_empty() {
            true => {
                let reason = "`instructions` and `input` are both empty; one must have text";
                Err(ApiError::invalid_value("input", reason))
            }
            false => Ok(()),
        })?;
        let max_output_tokens = fields.required(
            "max_output_tokens",
            &MAX_OUTPUT_TOKENS,
            "Cap on the length of the reply, in tokens; also caps the output cost. At most the model's context length, \
             which `GET /v1/models` tells.",
        )?;
        let stream = fields.with_default(
            "stream",
            &Boolean,
            false,
            "Whether to send the text as it comes, as Server-Sent Events.",
        )?;
        let receipt = fields.with_default(
            "receipt",
            &Boolean,
            false,
            "Whether the reply, or the stream's last event, has a `receipt`: the row that was billed, and where its proof will be.",
        )?;
        let temperature = fields.with_default(
            "temperature",
            &TEMPERATURE,
            0.0,
            "At 0 the same request gives the same text; above, tokens are drawn.",
        )?;
        let top_k = fields.optional(
            "top_k",
            &TOP_K,
            "Only this many of the likeliest tokens stay; left out, all do.",
        )?;
        let top_p = fields.with_default(
            "top_p",
            &TOP_P,
            1.0,
            "Only the likeliest tokens that together hold this share of the probability stay, of those that `top_k` left.",
        )?;
        let min_p = fields.with_default(
            "min_p",
            &MIN_P,
            0.0,
            "Only tokens at least this many times as likely as the likeliest stay, of those that `top_p` left.",
        )?;
        let seed = fields.optional(
            "seed",
            &SEED,
            "The same request with the same seed draws the same text; without one, each request draws its own.",
        )?;
        let stop = fields.optional("stop", &Stop, Stop::DESCRIPTION)?.unwrap_or_default();
        let penalties = penalties(fields)?;
        let stop_on_repetition = stop_on_repetition(fields)?;
        let top_logprobs = logprobs(fields)?;
        let request = GenerateRequest {
            model,
            turns: Turn::from_instructions_and_input(instructions, input),
            max_output_tokens: Some(max_output_tokens),
            temperature,
            top_k: top_k.and_then(|count| u32::try_from(count).ok()).and_then(NonZeroU32::new),
            top_p,
            min_p,
            penalties,
            seed,
            stop,
            stop_on_repetition,
            top_logprobs,
        };
        Ok(Self { request, stream, receipt })
    }

    fn example() -> Value {
        json!({
            "model": "smollm2-135m",
            "instructions": "Answer in one short sentence.",
            "input": "What is a ledger?",
            "max_output_tokens": 64
        })
    }

    fn rules() -> Map<String, Value> {
        let has_text = |field: &str| json!({ "properties": { field: { "minLength": 1 } } });
        Map::from_iter([("anyOf".to_owned(), json!([has_text("instructions"), has_text("input")]))])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chancery_engine::{Dry, Penalties};
    use proptest::prelude::*;

    fn parse(body: &[u8]) -> Result<GenerationRequest, ApiError> {
        request::parse(body)
    }

    fn rejection(body: &str) -> (&'static str, Option<String>, String) {
        let error = parse(body.as_bytes()).expect_err(body);
        (error.code, error.field, error.reason)
    }

    const VALID: &str = r#"{"model":"m","instructions":"i","input":"x","max_output_tokens":8}"#;

    fn with(field: &str, value: &str) -> String {
        let mut object: Map<String, Value> = serde_json::from_str(VALID).unwrap();
        object.insert(field.to_owned(), serde_json::from_str(value).unwrap());
        Value::Object(object).to_string()
    }

    #[test]
    fn missing_required_field_error_names_the_field() {
        for field in ["model", "instructions", "input", "max_output_tokens"] {
            let mut object: Map<String, Value> = serde_json::from_str(VALID).unwrap();
            object.remove(field);
            let absent = Value::Object(object).to_string();
            for body in [absent, with(field, "null")] {
                let (code, named, _) = rejection(&body);
                assert_eq!((code, named.as_deref()), ("missing_field", Some(field)));
            }
        }
    }

    #[test]
    fn wrong_type_error_is_malformed_request_and_names_the_field() {
        for (field, value) in [
            ("model", "5"),
            ("instructions", "[]"),
            ("input", "{}"),
            ("max_output_tokens", "\"8\""),
            ("max_output_tokens", "8.5"),
            ("max_output_tokens", "true"),
            ("stream", "\"yes\""),
            ("receipt", "1"),
            ("temperature", "\"hot\""),
            ("top_k", "\"40\""),
            ("top_k", "2.5"),
            ("min_p", "false"),
            ("stop", "[1]"),
            ("seed", "1.5"),
            ("frequency_penalty", "\"high\""),
            ("presence_penalty", "[]"),
            ("repetition_penalty", "true"),
            ("dry_multiplier", "\"1\""),
            ("dry_base", "{}"),
            ("dry_allowed_length", "1.5"),
            ("stop_on_repetition", "1"),
            ("logprobs", "1"),
            ("top_logprobs", "true"),
            ("top_logprobs", "0.5"),
        ] {
            let (code, named, _) = rejection(&with(field, value));
            assert_eq!((code, named.as_deref()), ("malformed_request", Some(field)), "{field} = {value}");
        }
    }

    #[test]
    fn out_of_range_error_is_invalid_value_and_names_the_field() {
        for (field, value) in [
            ("max_output_tokens", "0"),
            ("max_output_tokens", "-1"),
            ("max_output_tokens", "1e300"),
            ("temperature", "2.1"),
            ("temperature", "-0.1"),
            ("top_p", "0"),
            ("top_p", "1.5"),
            ("top_k", "0"),
            ("top_k", "-1"),
            ("top_k", "1048577"),
            ("min_p", "-0.1"),
            ("min_p", "1.5"),
            ("seed", "-1"),
            ("frequency_penalty", "2.1"),
            ("presence_penalty", "-2.1"),
            ("repetition_penalty", "0"),
            ("dry_multiplier", "-1"),
            ("dry_base", "0.5"),
            ("dry_allowed_length", "65"),
            ("top_logprobs", "-1"),
            ("top_logprobs", "21"),
            ("top_logprobs", "5"),
            ("stop", r#"["a","b","c","d","e"]"#),
            ("stop", r#"[""]"#),
        ] {
            let (code, named, _) = rejection(&with(field, value));
            assert_eq!((code, named.as_deref()), ("invalid_value", Some(field)), "{field} = {value}");
        }
    }

    #[test]
    fn sampling_parameters_are_parsed_and_default_to_no_truncation() {
        let plain = parse(VALID.as_bytes()).unwrap().request;
        assert_eq!((plain.top_k, plain.top_p, plain.min_p), (None, 1.0, 0.0));
        let body = VALID.replace(":8}", r#":8,"temperature":0.5,"top_k":1048576,"top_p":0.25,"min_p":1}"#);
        let narrow = parse(body.as_bytes()).unwrap().request;
        assert_eq!((narrow.top_k, narrow.top_p, narrow.min_p), (NonZeroU32::new(1 << 20), 0.25, 1.0));
    }

    #[test]
    fn penalties_and_logprobs_are_parsed_and_off_by_default() {
        let plain = parse(VALID.as_bytes()).unwrap().request;
        assert_eq!(plain.penalties, Penalties::NONE);
        assert_eq!((plain.stop_on_repetition, plain.top_logprobs), (false, None));
        let more = r#":8,"frequency_penalty":0.5,"dry_multiplier":0.75,"stop_on_repetition":true,
            "logprobs":true,"top_logprobs":3}"#;
        let full = parse(VALID.replace(":8}", more).as_bytes()).unwrap().request;
        let dry = Dry { multiplier: 0.75, ..Dry::NONE };
        assert_eq!(full.penalties, Penalties { frequency: 0.5, dry, ..Penalties::NONE });
        assert_eq!((full.stop_on_repetition, full.top_logprobs), (true, Some(3)));
    }

    #[test]
    fn empty_instructions_and_input_are_rejected_only_together() {
        let body = |instructions: &str, input: &str| {
            format!(
                r#"{{"model":"m","instructions":"{instructions}","input":"{input}","max_output_tokens":1}}"#
            )
        };
        assert_eq!(rejection(&body("", "")).0, "invalid_value");
        assert!(parse(body("x", "").as_bytes()).is_ok());
        assert!(parse(body("", "x").as_bytes()).is_ok());
    }

    #[test]
    fn unknown_field_error_suggests_the_nearest_known_field() {
        let (code, named, reason) = rejection(&with("max_tokens", "8"));
        assert_eq!((code, named.as_deref()), ("malformed_request", Some("max_tokens")));
        assert!(reason.contains("did you mean `max_output_tokens`?"), "{reason}");
    }

    #[test]
    fn integral_number_is_accepted_in_any_notation() {
        for value in ["64", "64.0", "6.4e1"] {
            let body = VALID.replace(":8}", &format!(":{value}}}"));
            assert_eq!(parse(body.as_bytes()).unwrap().request.max_output_tokens, Some(64));
        }
    }

    proptest! {
        #[test]
        fn parser_never_panics_on_arbitrary_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
