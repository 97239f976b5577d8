//! The body of `POST /v1/generate` and `POST /v1/tokens` for programs. The parser in `generation_request` is what decides;
//! the bounds here are its own constants, and the tests below hold the two against each other.

use crate::generation_request::{MAX_TOP_K, MIN_OUTPUT_TOKENS, MIN_TOP_K};
use crate::request::sampling::{MAX_STOP_CHARS, MAX_STOP_STRINGS, MAX_TEMPERATURE};
use serde_json::json;
use utoipa::openapi::extensions::Extensions;
use utoipa::openapi::schema::{
    AdditionalProperties, ArrayBuilder, ObjectBuilder, OneOfBuilder, SchemaType, Type,
};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{Number, PartialSchema, ToSchema};

pub(crate) struct GenerationRequest;

impl ToSchema for GenerationRequest {}

impl PartialSchema for GenerationRequest {
    fn schema() -> RefOr<Schema> {
        let max_output_tokens = ObjectBuilder::new()
            .schema_type(Type::Integer)
            .minimum(Some(MIN_OUTPUT_TOKENS as usize))
            .description(Some(
                "Cap on the length of the reply, in tokens; also caps the output cost. At most the model's context length, \
                 which `GET /v1/models` tells.",
            ));
        let stream = optional(Type::Boolean, "Whether to send the text as it comes, as Server-Sent Events.")
            .default(Some(json!(false)));
        let temperature =
            optional(Type::Number, "At 0 the same request gives the same text; above, tokens are drawn.")
                .minimum(Some(0))
                .maximum(Some(exact(MAX_TEMPERATURE)))
                .default(Some(json!(0)));
        let top_k = optional(Type::Integer, "Only this many of the likeliest tokens stay; left out, all do.")
            .minimum(Some(MIN_TOP_K as usize))
            .maximum(Some(MAX_TOP_K as usize));
        let top_p = optional(
            Type::Number,
            "Only the likeliest tokens that together hold this share of the probability stay, of those that `top_k` left.",
        )
        .exclusive_minimum(Some(0))
        .maximum(Some(1))
        .default(Some(json!(1)));
        let min_p = optional(
            Type::Number,
            "Only tokens at least this many times as likely as the likeliest stay, of those that `top_p` left.",
        )
        .minimum(Some(0))
        .maximum(Some(1))
        .default(Some(json!(0)));
        let seed = optional(
            Type::Integer,
            "The same request with the same seed draws the same text; without one, each request draws its own.",
        )
        .minimum(Some(0))
        .maximum(Some(u64::MAX as usize));

        ObjectBuilder::new()
            .schema_type(Type::Object)
            .description(Some("`instructions` and `input` may not both be empty."))
            .property("model", text("Which model runs the job: a name from `GET /v1/models`."))
            .property(
                "instructions",
                text("The job, in your words; becomes the system turn. May be empty if `input` is not."),
            )
            .property(
                "input",
                text("The material; becomes the user turn. May be empty if `instructions` is not."),
            )
            .property("max_output_tokens", max_output_tokens)
            .property("stream", stream)
            .property("temperature", temperature)
            .property("top_k", top_k)
            .property("top_p", top_p)
            .property("min_p", min_p)
            .property("seed", seed)
            .property("stop", stop())
            .required("model")
            .required("instructions")
            .required("input")
            .required("max_output_tokens")
            .additional_properties(Some(AdditionalProperties::FreeForm(false)))
            .examples([example()])
            .extensions(Some(not_both_empty()))
            .into()
    }
}

/// What the page at `/docs` shows as a first request.
fn example() -> serde_json::Value {
    json!({
        "model": "smollm2-135m",
        "instructions": "Answer in one short sentence.",
        "input": "What is a ledger?",
        "max_output_tokens": 64
    })
}

fn text(meaning: &str) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String).description(Some(meaning))
}

/// Null is the same as leaving the field out.
fn optional(kind: Type, meaning: &str) -> ObjectBuilder {
    let or_null = SchemaType::Array(vec![kind, Type::Null]);
    ObjectBuilder::new().schema_type(or_null).description(Some(meaning))
}

fn stop() -> OneOfBuilder {
    let one = || {
        ObjectBuilder::new().schema_type(Type::String).min_length(Some(1)).max_length(Some(MAX_STOP_CHARS))
    };
    OneOfBuilder::new()
        .description(Some(
            "Strings that end the reply; they are left out of it. One string counts as an array of one.",
        ))
        .item(one())
        .item(ArrayBuilder::new().items(one()).max_items(Some(MAX_STOP_STRINGS)))
        .item(ObjectBuilder::new().schema_type(Type::Null))
}

/// For bodies that are described as values.
pub(crate) fn stop_value() -> serde_json::Value {
    serde_json::to_value(stop().build()).unwrap_or_default()
}

/// A whole number is written without a point.
fn exact(bound: f64) -> Number {
    if bound.fract() == 0.0 { Number::Int(bound as isize) } else { Number::Float(bound) }
}

/// `utoipa` has no word for it beside `properties`.
fn not_both_empty() -> Extensions {
    let has_text = |field: &str| json!({ "properties": { field: { "minLength": 1 } } });
    Extensions::from_iter([("anyOf", json!([has_text("instructions"), has_text("input")]))])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation_request::parse;
    use proptest::prelude::*;
    use serde_json::{Map, Value};
    use std::collections::BTreeSet;

    fn schema() -> Value {
        serde_json::to_value(GenerationRequest::schema()).unwrap()
    }

    fn properties(schema: &Value) -> &Map<String, Value> {
        schema["properties"].as_object().unwrap()
    }

    fn is_required(schema: &Value, field: &str) -> bool {
        schema["required"].as_array().unwrap().iter().any(|required| required == field)
    }

    /// What the schema allows, its bounds often.
    fn valid(schema: &Value) -> BoxedStrategy<Value> {
        if let Some(choices) = schema["oneOf"].as_array() {
            return proptest::strategy::Union::new(choices.iter().map(valid)).boxed();
        }
        if let Some(kinds) = schema["type"].as_array() {
            let of_kind = |kind: &Value| {
                let mut one = schema.clone();
                one["type"] = kind.clone();
                valid(&one)
            };
            return proptest::strategy::Union::new(kinds.iter().map(of_kind)).boxed();
        }
        match schema["type"].as_str().unwrap() {
            "null" => Just(Value::Null).boxed(),
            "boolean" => any::<bool>().prop_map(Value::from).boxed(),
            "string" => {
                let least = schema["minLength"].as_u64().unwrap_or(0) as usize;
                let most = schema["maxLength"].as_u64().map_or(20, |most| most as usize);
                let chars = prop_oneof![Just(least), Just(most), least..=most.min(20)]
                    .prop_flat_map(|length| proptest::collection::vec(any::<char>(), length));
                chars.prop_map(|chars| Value::from(chars.into_iter().collect::<String>())).boxed()
            }
            "integer" => {
                let least = schema["minimum"].as_u64().unwrap();
                let most = schema["maximum"].as_u64().unwrap_or(u64::MAX);
                prop_oneof![Just(least), Just(most), least..=most].prop_map(Value::from).boxed()
            }
            "number" => {
                let least = schema["minimum"].as_f64().unwrap_or(f64::MIN_POSITIVE);
                let most = schema["maximum"].as_f64().unwrap();
                prop_oneof![Just(least), Just(most), least..=most].prop_map(Value::from).boxed()
            }
            "array" => {
                let most = schema["maxItems"].as_u64().unwrap() as usize;
                proptest::collection::vec(valid(&schema["items"]), 0..=most).prop_map(Value::from).boxed()
            }
            other => panic!("teach this test {other}"),
        }
    }

    fn valid_body() -> impl Strategy<Value = Value> {
        let schema = schema();
        let fields: Vec<_> = properties(&schema)
            .iter()
            .map(|(name, property)| {
                let may_be_absent = !is_required(&schema, name);
                (
                    Just(name.clone()),
                    valid(property),
                    any::<bool>().prop_map(move |leave_out| may_be_absent && leave_out),
                )
            })
            .collect();
        let bodies = fields.prop_map(|fields| {
            Value::from(
                fields
                    .into_iter()
                    .filter(|(_, _, is_absent)| !is_absent)
                    .map(|(name, value, _)| (name, value))
                    .collect::<Map<_, _>>(),
            )
        });
        let choices = schema["anyOf"].as_array().unwrap().clone();
        bodies.prop_filter("one text is needed", move |body| {
            choices.iter().any(|choice| {
                properties(choice).iter().all(|(name, bounds)| {
                    let chars = body[name].as_str().unwrap().chars().count();
                    chars as u64 >= bounds["minLength"].as_u64().unwrap()
                })
            })
        })
    }

    proptest! {
        #[test]
        fn what_the_schema_allows_the_parser_takes(body in valid_body()) {
            let parsed = parse(body.to_string().as_bytes());
            prop_assert!(parsed.is_ok(), "{body}: {parsed:?}");
        }
    }

    /// Values just outside what the schema of a field allows.
    fn outside(schema: &Value) -> Vec<Value> {
        let choices: Vec<&Value> = match schema["oneOf"].as_array() {
            Some(choices) => choices.iter().collect(),
            None => vec![schema],
        };
        let mut wrong = Vec::new();
        let mut kinds: BTreeSet<&str> = BTreeSet::new();
        for choice in choices {
            match &choice["type"] {
                Value::String(kind) => kinds.extend([kind.as_str()]),
                several => kinds.extend(several.as_array().unwrap().iter().filter_map(Value::as_str)),
            }
            if let Some(least) = choice["minimum"].as_i64() {
                wrong.push(json!(least - 1));
            }
            if let Some(most) = choice["maximum"].as_u64() {
                wrong.push(most.checked_add(1).map_or(json!(1.9e19), |above| json!(above)));
            }
            wrong.extend(choice.get("exclusiveMinimum").cloned());
            if let Some(most) = choice["maxLength"].as_u64() {
                wrong.push(json!("é".repeat(most as usize + 1)));
                wrong.push(json!(["é".repeat(most as usize + 1)]));
            }
            if choice["minLength"] == 1 {
                wrong.extend([json!(""), json!([""])]);
            }
            if let Some(most) = choice["maxItems"].as_u64() {
                wrong.push(json!(vec!["x"; most as usize + 1]));
            }
        }
        let of_each_kind = [
            ("string", json!("x")),
            ("boolean", json!(true)),
            ("number", json!(0.5)),
            ("array", json!([1])),
            ("object", json!({})),
        ];
        let allowed = |kind: &str| kinds.contains(kind) && kind != "array";
        wrong.extend(of_each_kind.into_iter().filter(|(kind, _)| !allowed(kind)).map(|(_, value)| value));
        wrong
    }

    fn smallest() -> Map<String, Value> {
        let mut body = example().as_object().unwrap().clone();
        body.insert("max_output_tokens".to_owned(), json!(MIN_OUTPUT_TOKENS));
        body
    }

    #[test]
    fn what_the_schema_forbids_the_parser_refuses_by_the_fields_name() {
        let schema = schema();
        for (field, property) in properties(&schema) {
            let wrong = outside(property);
            assert!(wrong.len() >= 3, "{field}");
            for value in wrong {
                let mut body = smallest();
                body.insert(field.clone(), value);
                let body = Value::from(body).to_string();
                let refusal = parse(body.as_bytes()).expect_err(&body);
                assert_eq!(refusal.field.as_ref(), Some(field), "{body}");
            }
        }
    }

    #[test]
    fn a_field_is_required_by_the_schema_where_the_parser_misses_it() {
        let schema = schema();
        for field in properties(&schema).keys() {
            let mut body = smallest();
            body.remove(field);
            let refusal = parse(Value::from(body).to_string().as_bytes()).err().map(|error| error.code);
            assert_eq!(refusal, is_required(&schema, field).then_some("missing_field"), "{field}");
        }
    }

    #[test]
    fn the_schema_has_the_fields_that_the_parser_knows_and_no_others() {
        let schema = schema();
        assert_eq!(schema["additionalProperties"], false);
        let mut body = smallest();
        body.insert("qqqqqqqqqqqqqqqqqqqq".to_owned(), json!(1));
        let reason = parse(Value::from(body).to_string().as_bytes()).unwrap_err().reason;
        let known = reason.split_once("the known ones are ").unwrap().1;
        assert_eq!(
            known.split(", ").collect::<BTreeSet<_>>(),
            properties(&schema).keys().map(String::as_str).collect()
        );
    }

    #[test]
    fn both_texts_empty_is_forbidden_by_both() {
        let mut body = smallest();
        body.insert("instructions".to_owned(), json!(""));
        body.insert("input".to_owned(), json!(""));
        assert!(parse(Value::from(body).to_string().as_bytes()).is_err());
        let fields: Vec<String> = schema()["anyOf"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|choice| properties(choice).keys().cloned())
            .collect();
        assert_eq!(fields, ["instructions", "input"]);
    }
}
