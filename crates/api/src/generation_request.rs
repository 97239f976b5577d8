//! The body that `POST /v1/generate` and `POST /v1/tokens` share, checked field by field.

use crate::error::ApiError;
use crate::request::fields::Fields;
use crate::request::sampling;
use chancery_engine::Turn;
use chancery_metering::GenerateRequest;
use std::num::NonZeroU32;

/// Bounds on the fields; `openapi::generation_body` tells callers the same ones.
pub(crate) const MIN_OUTPUT_TOKENS: u64 = 1;
pub(crate) const MIN_TOP_K: u64 = 1;
/// As many as the largest vocabularies have, several times over.
pub(crate) const MAX_TOP_K: u32 = 1 << 20;

/// A body that has the right form.
#[derive(Debug)]
pub(crate) struct GenerationFields {
    pub request: GenerateRequest,
    /// Whether the reply is wanted as it comes.
    pub stream: bool,
}

pub(crate) fn parse(body: &[u8]) -> Result<GenerationFields, ApiError> {
    let mut fields = Fields::parse(body)?;
    let model = fields.required_string("model")?;
    let instructions = fields.required_string("instructions")?;
    let input = fields.required_string("input")?;
    let max_output_tokens = fields.required_integer("max_output_tokens", MIN_OUTPUT_TOKENS)?;
    let stream = fields.optional_bool("stream")?.unwrap_or(false);
    let temperature = sampling::temperature(&mut fields)?.unwrap_or(0.0);
    let top_k = fields.optional_integer("top_k", MIN_TOP_K)?;
    let top_p = sampling::top_p(&mut fields)?;
    let min_p = fields.optional_number("min_p")?.unwrap_or(0.0);
    let seed = fields.optional_integer("seed", 0)?;
    let stop = sampling::stop(&mut fields)?;
    fields.refuse_the_rest()?;

    if instructions.is_empty() && input.is_empty() {
        let reason = "`instructions` and `input` are both empty; at least one must have text";
        return Err(ApiError::invalid_value("input", reason));
    }
    let top_k = match top_k {
        None => None,
        Some(count) => match u32::try_from(count).ok().filter(|count| *count <= MAX_TOP_K) {
            Some(count) => NonZeroU32::new(count),
            None => {
                let reason = format!("`top_k` must be from 1 to {MAX_TOP_K}");
                return Err(ApiError::invalid_value("top_k", reason));
            }
        },
    };
    if !(0.0..=1.0).contains(&min_p) {
        return Err(ApiError::invalid_value("min_p", "`min_p` must be from 0 to 1"));
    }
    let request = GenerateRequest {
        model,
        turns: Turn::instructions_and_input(instructions, input),
        max_output_tokens: Some(max_output_tokens),
        temperature,
        top_k,
        top_p,
        min_p: min_p as f32,
        seed,
        stop,
    };
    Ok(GenerationFields { request, stream })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refusal(body: &str) -> (&'static str, Option<String>, String) {
        let error = parse(body.as_bytes()).expect_err(body);
        (error.code, error.field, error.reason)
    }

    const GOOD: &str = r#"{"model":"m","instructions":"i","input":"x","max_output_tokens":8}"#;

    fn with(field: &str, value: &str) -> String {
        let mut object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(GOOD).unwrap();
        object.insert(field.to_owned(), serde_json::from_str(value).unwrap());
        serde_json::Value::Object(object).to_string()
    }

    #[test]
    fn each_required_field_is_missed_by_name() {
        for field in ["model", "instructions", "input", "max_output_tokens"] {
            let mut object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(GOOD).unwrap();
            object.remove(field);
            let absent = serde_json::Value::Object(object).to_string();
            for body in [absent, with(field, "null")] {
                let (code, named, _) = refusal(&body);
                assert_eq!((code, named.as_deref()), ("missing_field", Some(field)));
            }
        }
    }

    #[test]
    fn a_wrong_type_is_malformed_and_names_the_field() {
        for (field, value) in [
            ("model", "5"),
            ("instructions", "[]"),
            ("input", "{}"),
            ("max_output_tokens", "\"8\""),
            ("max_output_tokens", "8.5"),
            ("max_output_tokens", "true"),
            ("stream", "\"yes\""),
            ("temperature", "\"hot\""),
            ("top_k", "\"40\""),
            ("top_k", "2.5"),
            ("min_p", "false"),
            ("stop", "[1]"),
            ("seed", "1.5"),
        ] {
            let (code, named, _) = refusal(&with(field, value));
            assert_eq!((code, named.as_deref()), ("malformed_request", Some(field)), "{field} = {value}");
        }
    }

    #[test]
    fn a_value_out_of_range_is_invalid_and_names_the_field() {
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
            ("stop", r#"["a","b","c","d","e"]"#),
            ("stop", r#"[""]"#),
        ] {
            let (code, named, _) = refusal(&with(field, value));
            assert_eq!((code, named.as_deref()), ("invalid_value", Some(field)), "{field} = {value}");
        }
    }

    #[test]
    fn what_narrows_the_draw_is_taken_over_and_left_out_it_narrows_nothing() {
        let plain = parse(GOOD.as_bytes()).unwrap().request;
        assert_eq!((plain.top_k, plain.top_p, plain.min_p), (None, 1.0, 0.0));
        let body = GOOD.replace(":8}", r#":8,"temperature":0.5,"top_k":1048576,"top_p":0.25,"min_p":1}"#);
        let narrow = parse(body.as_bytes()).unwrap().request;
        assert_eq!((narrow.top_k, narrow.top_p, narrow.min_p), (NonZeroU32::new(MAX_TOP_K), 0.25, 1.0));
    }

    #[test]
    fn both_texts_empty_is_refused_and_one_is_not() {
        let body = |instructions: &str, input: &str| {
            format!(
                r#"{{"model":"m","instructions":"{instructions}","input":"{input}","max_output_tokens":1}}"#
            )
        };
        assert_eq!(refusal(&body("", "")).0, "invalid_value");
        assert!(parse(body("x", "").as_bytes()).is_ok());
        assert!(parse(body("", "x").as_bytes()).is_ok());
    }

    #[test]
    fn an_unknown_field_is_refused_with_the_nearest_known_one() {
        let (code, named, reason) = refusal(&with("max_tokens", "8"));
        assert_eq!((code, named.as_deref()), ("malformed_request", Some("max_tokens")));
        assert!(reason.contains("did you mean `max_output_tokens`?"), "{reason}");
    }

    #[test]
    fn a_whole_number_is_an_integer_however_it_is_written() {
        for value in ["64", "64.0", "6.4e1"] {
            let body = GOOD.replace(":8}", &format!(":{value}}}"));
            assert_eq!(parse(body.as_bytes()).unwrap().request.max_output_tokens, Some(64));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }
    }
}
