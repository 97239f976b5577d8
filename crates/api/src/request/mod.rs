//! Strict parsing of JSON request bodies. A body type lists its fields once, in `RequestBody::fields`. That list parses
//! and validates a body, and also generates the schema in `/openapi.json`, so adding a field takes one line. A `FieldType`
//! defines the values of a field; `crate::body` receives the bytes.

mod field_types;
mod fields;
pub(crate) mod logprobs;
pub(crate) mod penalties;
pub(crate) mod sampling;
#[cfg(test)]
mod schema_tests;

pub(crate) use field_types::{Boolean, FieldType, Integer, Number, StringEnum, Text};
pub(crate) use fields::{Fields, wrong_type};

use crate::error::{ApiError, ApiResult};
use crate::json::Json;
use serde_json::{Map, Value, json};

/// Schema description of `model`, shared by all bodies.
pub(crate) const MODEL_DESCRIPTION: &str = "Which model runs the job: a name from `GET /v1/models`.";

/// The request body of an endpoint. The type's name becomes the schema name in `/openapi.json`.
pub(crate) trait RequestBody: Sized {
    /// Schema description of the whole body.
    const DESCRIPTION: &'static str;

    /// Lists the fields and returns the parsed body. When only describing the schema, every field reads as absent or
    /// empty, so rules across several fields must go through `Fields::check`.
    fn fields(fields: &mut Fields) -> ApiResult<Self>;

    /// Example request shown at `/docs`.
    fn example() -> Value;

    /// Rules across several fields, as extra schema keywords.
    fn rules() -> Map<String, Value> {
        Map::new()
    }
}

pub(crate) fn parse<Body: RequestBody>(bytes: &[u8]) -> ApiResult<Body> {
    if std::str::from_utf8(bytes).is_err() {
        return Err(ApiError::malformed("request body is not valid UTF-8"));
    }
    match Json::parse(bytes) {
        Ok(object @ Json::Object(_)) => Fields::read("", object, Body::fields),
        Ok(other) => {
            Err(ApiError::malformed(format!("request body must be a JSON object, not {}", other.kind())))
        }
        Err(error) => Err(ApiError::malformed(format!("invalid JSON: {error}"))),
    }
}

pub(crate) fn schema<Body: RequestBody>() -> Value {
    let mut schema = Fields::schema(Body::fields);
    schema.insert("description".to_owned(), json!(Body::DESCRIPTION));
    schema.insert("examples".to_owned(), json!([Body::example()]));
    schema.extend(Body::rules());
    Value::Object(schema)
}
