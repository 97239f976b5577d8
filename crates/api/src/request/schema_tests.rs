//! Checks the schema of every body against its parser: the parser accepts what the schema allows and rejects what it
//! forbids.

use crate::error::ApiResult;
use crate::generation_request::GenerationRequest;
use crate::openai::UNSUPPORTED_DESCRIPTION;
use crate::openai::chat_request::ChatRequest;
use crate::openai::responses_request::{InputTokensRequest, ResponsesRequest};
use crate::request::{self, RequestBody};
use proptest::prelude::*;
use proptest::strategy::Union;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

type Object = Map<String, Value>;

fn parse<B: RequestBody>(body: impl Into<Value>) -> ApiResult<B> {
    request::parse(body.into().to_string().as_bytes())
}

fn example<B: RequestBody>() -> Object {
    B::example().as_object().unwrap().clone()
}

fn properties(schema: &Value) -> &Object {
    schema["properties"].as_object().unwrap()
}

fn is_required(schema: &Value, field: &str) -> bool {
    schema["required"].as_array().is_some_and(|required| required.iter().any(|name| name == field))
}

/// Generates values that the schema allows, often at its bounds.
fn valid(schema: &Value) -> BoxedStrategy<Value> {
    if let Some(choices) = schema["oneOf"].as_array() {
        return Union::new(choices.iter().map(valid)).boxed();
    }
    if let Some(values) = schema["enum"].as_array() {
        return proptest::sample::select(values.clone()).boxed();
    }
    if let Some(types) = schema["type"].as_array() {
        let of_type = |kind: &Value| {
            let mut one = schema.clone();
            one["type"] = kind.clone();
            valid(&one)
        };
        return Union::new(types.iter().map(of_type)).boxed();
    }
    let bound =
        |name: &str, otherwise: usize| schema[name].as_u64().map_or(otherwise, |bound| bound as usize);
    match schema["type"].as_str().unwrap() {
        "null" => Just(Value::Null).boxed(),
        "boolean" => any::<bool>().prop_map(Value::from).boxed(),
        "string" => text(bound("minLength", 0), bound("maxLength", 20)).prop_map(Value::from).boxed(),
        "integer" => {
            let max = schema["maximum"].as_u64().unwrap_or(u64::MAX);
            match schema["minimum"].as_u64() {
                Some(min) => prop_oneof![Just(min), Just(max), min..=max].prop_map(Value::from).boxed(),
                None => {
                    prop_oneof![Just(json!(i64::MIN)), Just(json!(max)), any::<i64>().prop_map(Value::from)]
                        .boxed()
                }
            }
        }
        "number" => {
            let min = schema["minimum"].as_f64().unwrap_or(f64::MIN_POSITIVE);
            let max = schema["maximum"].as_f64().unwrap();
            prop_oneof![Just(min), Just(max), min..=max].prop_map(Value::from).boxed()
        }
        "array" => {
            let (min, max) = (bound("minItems", 0), bound("maxItems", 3));
            if max == 0 {
                return Just(json!([])).boxed();
            }
            proptest::collection::vec(valid(&schema["items"]), min..=max).prop_map(Value::from).boxed()
        }
        "object" if schema["additionalProperties"].is_object() => {
            let names = text(0, schema["propertyNames"]["maxLength"].as_u64().unwrap() as usize);
            let values = valid(&schema["additionalProperties"]);
            let entries = proptest::collection::btree_map(names, values, 0..=bound("maxProperties", 0));
            entries.prop_map(|entries| Value::from(Object::from_iter(entries))).boxed()
        }
        "object" if schema["properties"].is_object() => valid_object(schema).prop_map(Value::from).boxed(),
        "object" => Just(json!({})).boxed(),
        other => panic!("teach this test {other}"),
    }
}

fn text(min: usize, max: usize) -> impl Strategy<Value = String> {
    let lengths = prop_oneof![Just(min), Just(max), min..=max.min(20)];
    lengths
        .prop_flat_map(|length| proptest::collection::vec(any::<char>(), length))
        .prop_map(|chars| chars.into_iter().collect())
}

fn valid_object(schema: &Value) -> impl Strategy<Value = Object> + use<> {
    let fields: Vec<_> = properties(schema)
        .iter()
        .map(|(name, property)| {
            let is_required = is_required(schema, name);
            let is_there = any::<bool>().prop_map(move |chosen| is_required || chosen);
            (Just(name.clone()), valid(property), is_there)
        })
        .collect();
    fields.prop_map(|fields| {
        let there = fields.into_iter().filter(|(_, _, is_there)| *is_there);
        there.map(|(name, value, _)| (name, value)).collect()
    })
}

fn valid_body<B: RequestBody>() -> impl Strategy<Value = Object> {
    valid_object(&request::schema::<B>())
}

/// Adds text, because the schema of a conversation cannot require it.
fn with_text(mut body: Object) -> Object {
    body.insert("instructions".to_owned(), json!("x"));
    body
}

/// Adds the field that `top_logprobs` goes with, because the schema cannot require it.
fn with_logprobs(mut body: Object, field: &str, value: &Value) -> Object {
    if body.get("top_logprobs").and_then(Value::as_u64).is_some_and(|count| count > 0) {
        body.insert(field.to_owned(), value.clone());
    }
    body
}

proptest! {
    #[test]
    fn parser_accepts_every_valid_generation_request(body in valid_body::<GenerationRequest>()) {
        let schema = request::schema::<GenerationRequest>();
        let has_text = |choice: &Value| {
            let enough = |(name, bounds): (&String, &Value)| {
                body[name].as_str().unwrap().chars().count() as u64 >= bounds["minLength"].as_u64().unwrap()
            };
            properties(choice).iter().all(enough)
        };
        prop_assume!(schema["anyOf"].as_array().unwrap().iter().any(has_text));
        let body = with_logprobs(body, "logprobs", &json!(true));
        prop_assert!(parse::<GenerationRequest>(body.clone()).is_ok(), "{body:?}");
    }

    #[test]
    fn parser_accepts_every_valid_responses_request(body in valid_body::<ResponsesRequest>()) {
        let body = with_logprobs(body, "include", &json!(["message.output_text.logprobs"]));
        let parsed = parse::<ResponsesRequest>(with_text(body.clone()));
        prop_assert!(parsed.is_ok(), "{body:?}: {parsed:?}");
    }

    #[test]
    fn parser_accepts_every_valid_input_tokens_request(body in valid_body::<InputTokensRequest>()) {
        let parsed = parse::<InputTokensRequest>(with_text(body.clone()));
        prop_assert!(parsed.is_ok(), "{body:?}: {parsed:?}");
    }

    #[test]
    fn parser_accepts_every_valid_chat_request(mut body in valid_body::<ChatRequest>()) {
        // Rules that the schema cannot express: one message has text, stream options need a stream, the two token caps
        // agree, and likely tokens go with log probabilities.
        body = with_logprobs(body, "logprobs", &json!(true));
        body["messages"][0]["content"] = json!("x");
        if !body.get("stream_options").is_none_or(Value::is_null) {
            body.insert("stream".to_owned(), json!(true));
        }
        if !body.get("max_completion_tokens").is_none_or(Value::is_null) {
            body.remove("max_tokens");
        }
        let parsed = parse::<ChatRequest>(body.clone());
        prop_assert!(parsed.is_ok(), "{body:?}: {parsed:?}");
    }
}

/// Generates values just outside what the schema of a field allows.
fn outside(schema: &Value) -> Vec<Value> {
    let choices: Vec<&Value> = match schema["oneOf"].as_array() {
        Some(choices) => choices.iter().collect(),
        None => vec![schema],
    };
    let mut wrong = Vec::new();
    let mut field_types: BTreeSet<&str> = BTreeSet::new();
    for choice in choices {
        match &choice["type"] {
            Value::String(kind) => field_types.extend([kind.as_str()]),
            several => field_types.extend(several.as_array().into_iter().flatten().filter_map(Value::as_str)),
        }
        if let Some(min) = choice["minimum"].as_i64() {
            wrong.push(min.checked_sub(1).map_or(json!(-1e19), |below| json!(below)));
        }
        if let Some(max) = choice["maximum"].as_u64() {
            wrong.push(max.checked_add(1).map_or(json!(1.9e19), |above| json!(above)));
        }
        wrong.extend(choice.get("exclusiveMinimum").cloned());
        if let Some(max) = choice["maxLength"].as_u64() {
            wrong.push(json!("é".repeat(max as usize + 1)));
            wrong.push(json!(["é".repeat(max as usize + 1)]));
        }
        if choice["minLength"] == 1 {
            wrong.extend([json!(""), json!([""])]);
        }
        if let Some(max) = choice["maxItems"].as_u64() {
            wrong.push(json!(vec!["x"; max as usize + 1]));
        }
    }
    let of_each_kind = [
        ("string", json!("x")),
        ("boolean", json!(true)),
        ("number", json!(0.5)),
        ("array", json!([1])),
        ("object", json!({})),
    ];
    let allowed = |kind: &str| field_types.contains(kind) && kind != "array";
    wrong.extend(of_each_kind.into_iter().filter(|(kind, _)| !allowed(kind)).map(|(_, value)| value));
    wrong
}

/// Checks every rule that a body's schema and its parser must agree on.
fn assert_agree<B: RequestBody + std::fmt::Debug>() {
    let schema = request::schema::<B>();
    assert!(parse::<B>(B::example()).is_ok(), "the example is accepted as it is");
    for (field, property) in properties(&schema) {
        let wrong = outside(property);
        assert!(wrong.len() >= 3, "{field}");
        for value in wrong {
            let mut body = example::<B>();
            body.insert(field.clone(), value);
            let error = parse::<B>(body.clone()).expect_err(field);
            let named = error.field.unwrap();
            assert!(named == *field || named.starts_with(&format!("{field}[")), "{body:?}: {named}");
        }
        let mut body = example::<B>();
        body.remove(field);
        let code = parse::<B>(body).err().map(|error| error.code);
        assert_eq!(code, is_required(&schema, field).then_some("missing_field"), "{field}");
    }
    assert_eq!(schema["additionalProperties"], false);
    let mut body = example::<B>();
    body.insert("qqqqqqqqqqqqqqqqqqqqqqqq".to_owned(), json!(1));
    let reason = parse::<B>(body).unwrap_err().reason;
    let known: BTreeSet<&str> = reason.split_once("known fields: ").unwrap().1.split(", ").collect();
    // "Did you mean" hints never suggest unsupported fields.
    let supported =
        properties(&schema).iter().filter(|(_, schema)| schema["description"] != UNSUPPORTED_DESCRIPTION);
    assert_eq!(supported.map(|(name, _)| name.as_str()).collect::<BTreeSet<_>>(), known);
}

#[test]
fn schema_and_parser_agree_on_fields_and_forbidden_values() {
    assert_agree::<GenerationRequest>();
    assert_agree::<ResponsesRequest>();
    assert_agree::<InputTokensRequest>();
    assert_agree::<ChatRequest>();
}

#[test]
fn schema_and_parser_reject_empty_instructions_with_empty_input() {
    let mut body = example::<GenerationRequest>();
    body.insert("instructions".to_owned(), json!(""));
    body.insert("input".to_owned(), json!(""));
    assert!(parse::<GenerationRequest>(body).is_err());
    let schema = request::schema::<GenerationRequest>();
    let choices = schema["anyOf"].as_array().unwrap().iter();
    let fields: Vec<String> = choices.flat_map(|choice| properties(choice).keys().cloned()).collect();
    assert_eq!(fields, ["instructions", "input"]);
}
