//! Prints the document served at `GET /openapi.json`, with sorted keys. `make openapi` stores it as `docs/openapi.json`.

use serde_json::{Map, Value};
use std::collections::BTreeMap;

fn main() {
    println!("{:#}", sorted(chancery_api::openapi_document()));
}

/// Whether `serde_json` keeps the order of keys depends on the features of the build, so the order is fixed here.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields: BTreeMap<_, _> =
                fields.into_iter().map(|(name, value)| (name, sorted(value))).collect();
            Value::Object(Map::from_iter(fields))
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted).collect()),
        value => value,
    }
}
