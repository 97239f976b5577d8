//! JSON request bodies, strictly. A body is a type that lists its fields once, in `RequestBody::fields`. Run on a body, the
//! list reads and checks it; run on none, it gives the schema that `/openapi.json` shows. So a new field is one line there.
//! What a single value may be is a `Kind`'s business; receiving the bytes is that of `crate::body`.

mod fields;
mod kinds;
pub(crate) mod sampling;
#[cfg(test)]
mod schema_tests;

pub(crate) use fields::{Fields, wrong_type};
pub(crate) use kinds::{Boolean, Integer, Kind, Number, Text, Word};

use crate::error::{ApiError, ApiResult};
use crate::json::Json;
use serde_json::{Map, Value, json};

/// What the schemas of all bodies say of `model`.
pub(crate) const ABOUT_MODEL: &str = "Which model runs the job: a name from `GET /v1/models`.";

/// The body of an endpoint. Its type's name is that of its schema in `/openapi.json`.
pub(crate) trait RequestBody: Sized {
    /// What the schema says of the body as a whole.
    const ABOUT: &'static str;

    /// Lists the fields, and gives what was read. Without a body every field reads as absent or empty; rules over several
    /// fields go through `Fields::check`, which knows that.
    fn fields(fields: &mut Fields) -> ApiResult<Self>;

    /// What the page at `/docs` shows as a first request.
    fn example() -> Value;

    /// Rules over several fields, as further keywords of the schema.
    fn rules() -> Map<String, Value> {
        Map::new()
    }
}

pub(crate) fn parse<Body: RequestBody>(bytes: &[u8]) -> ApiResult<Body> {
    if std::str::from_utf8(bytes).is_err() {
        return Err(ApiError::malformed("the body is not valid UTF-8"));
    }
    match Json::parse(bytes) {
        Ok(object @ Json::Object(_)) => Fields::read("", object, Body::fields),
        Ok(other) => {
            Err(ApiError::malformed(format!("the body must be a JSON object, and it is {}", other.kind())))
        }
        Err(error) => Err(ApiError::malformed(format!("the body is not valid JSON: {error}"))),
    }
}

pub(crate) fn schema<Body: RequestBody>() -> Value {
    let mut schema = Fields::schema(Body::fields);
    schema.insert("description".to_owned(), json!(Body::ABOUT));
    schema.insert("examples".to_owned(), json!([Body::example()]));
    schema.extend(Body::rules());
    Value::Object(schema)
}
