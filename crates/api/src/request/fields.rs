//! Reads the named fields of a JSON object, or describes them as a schema. A field left over after reading is unknown:
//! the error names the nearest known field.

use super::field_types::FieldType;
use crate::error::{ApiError, ApiResult};
use crate::json::{Json, truncate};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Display;

type Name = &'static str;

pub(crate) struct Fields {
    /// Path of the object in the body: empty, or ending with a dot.
    path_prefix: String,
    mode: Mode,
    /// Candidates for "did you mean" hints.
    known: Vec<Name>,
}

enum Mode {
    /// Entries not yet read.
    Read(Vec<(String, Json)>),
    Describe {
        properties: Map<String, Value>,
        required: Vec<Name>,
    },
}

impl Fields {
    /// Reads the fields that `list` names from the object at `path` and rejects all others.
    pub fn read<T>(path: &str, value: Json, list: impl FnOnce(&mut Self) -> ApiResult<T>) -> ApiResult<T> {
        let Json::Object(entries) = value else { return Err(wrong_type(path, "an object", &value)) };
        let path_prefix = if path.is_empty() { String::new() } else { format!("{path}.") };
        let mut fields = Self { path_prefix, mode: Mode::Read(entries), known: Vec::new() };
        let read = list(&mut fields)?;
        fields.deny_unknown_fields()?;
        Ok(read)
    }

    /// Returns the schema of an object with the fields that `list` names.
    pub fn schema<T>(list: impl FnOnce(&mut Self) -> ApiResult<T>) -> Map<String, Value> {
        let mode = Mode::Describe { properties: Map::new(), required: Vec::new() };
        let mut fields = Self { path_prefix: String::new(), mode, known: Vec::new() };
        // There is no value to reject here. Tests check that every list describes all of its fields.
        let _ = list(&mut fields);
        let Mode::Describe { properties, required } = fields.mode else { return Map::new() };
        // Sort by name, like the rest of the document. Whether `Map` sorts or keeps insertion order depends on a
        // serde_json feature that cedar enables.
        let properties = properties.into_iter().collect::<BTreeMap<_, _>>().into_iter().collect();
        let mut schema = Map::from_iter([
            ("type".to_owned(), json!("object")),
            ("properties".to_owned(), Value::Object(properties)),
            ("additionalProperties".to_owned(), json!(false)),
        ]);
        if !required.is_empty() {
            schema.insert("required".to_owned(), json!(required));
        }
        schema
    }

    pub fn required<K: FieldType>(
        &mut self,
        name: Name,
        kind: &K,
        description: impl Display,
    ) -> ApiResult<K::Value> {
        self.known.push(name);
        match &mut self.mode {
            Mode::Describe { properties, required } => {
                properties.insert(name.to_owned(), described(kind.schema(), description));
                required.push(name);
                Ok(K::Value::default())
            }
            Mode::Read(_) => self.take(name, kind)?.ok_or_else(|| self.missing(name, K::EXPECTED)),
        }
    }

    /// Returns `None` if the field is absent or null.
    pub fn optional<K: FieldType>(
        &mut self,
        name: Name,
        kind: &K,
        description: impl Display,
    ) -> ApiResult<Option<K::Value>> {
        self.known.push(name);
        self.undocumented(name, kind, description)
    }

    /// An optional field whose schema states the default.
    pub fn with_default<K: FieldType<Value: Copy + Into<Value>>>(
        &mut self,
        name: Name,
        kind: &K,
        default: K::Value,
        description: impl Display,
    ) -> ApiResult<K::Value> {
        let value = self.optional(name, kind, description)?;
        if let Mode::Describe { properties, .. } = &mut self.mode {
            properties[name]["default"] = integral_as_integer(default.into());
        }
        Ok(value.unwrap_or(default))
    }

    /// An optional field that is never suggested in "did you mean" hints.
    pub fn undocumented<K: FieldType>(
        &mut self,
        name: Name,
        kind: &K,
        description: impl Display,
    ) -> ApiResult<Option<K::Value>> {
        if let Mode::Describe { properties, .. } = &mut self.mode {
            properties.insert(name.to_owned(), described(or_null(kind.schema()), description));
        }
        self.take(name, kind)
    }

    /// Checks a rule across several fields. Does nothing when only describing the schema.
    pub fn check(&self, rule: impl FnOnce() -> ApiResult<()>) -> ApiResult<()> {
        match self.mode {
            Mode::Read(_) => rule(),
            Mode::Describe { .. } => Ok(()),
        }
    }

    fn take<K: FieldType>(&mut self, name: &str, kind: &K) -> ApiResult<Option<K::Value>> {
        let Mode::Read(remaining) = &mut self.mode else { return Ok(None) };
        let Some(index) = remaining.iter().position(|(received, _)| received == name) else {
            return Ok(None);
        };
        match remaining.swap_remove(index).1 {
            Json::Null => Ok(None),
            value => kind.read(&format!("{}{name}", self.path_prefix), value).map(Some),
        }
    }

    /// The missing field may have been sent under a similar name.
    fn missing(&self, name: Name, expected: &str) -> ApiError {
        let is_similar =
            |(received, _): &&(String, Json)| chancery_domain::closest_match(received, [name]).is_some();
        let similar = self.remaining().iter().find(is_similar).map(|(received, _)| truncate(received));
        ApiError::missing_field(&format!("{}{name}", self.path_prefix), expected, similar.as_deref())
    }

    fn deny_unknown_fields(&self) -> ApiResult<()> {
        let Some((unknown, _)) = self.remaining().first() else { return Ok(()) };
        let unknown = truncate(unknown);
        let hint = match chancery_domain::closest_match(&unknown, self.known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None if self.known.is_empty() => "remove it".to_owned(),
            None => format!("known fields: {}", self.known.join(", ")),
        };
        let path = format!("{}{unknown}", self.path_prefix);
        Err(ApiError::malformed(format!("unknown field `{path}`; {hint}")).with_field(path))
    }

    fn remaining(&self) -> &[(String, Json)] {
        match &self.mode {
            Mode::Read(remaining) => remaining,
            Mode::Describe { .. } => &[],
        }
    }
}

pub(crate) fn wrong_type(path: &str, expected: &str, found: &Json) -> ApiError {
    ApiError::malformed(format!("`{path}` must be {expected}, not {}", found.kind())).with_field(path)
}

fn described(mut schema: Value, description: impl Display) -> Value {
    let description = description.to_string();
    if !description.is_empty() {
        schema["description"] = json!(description);
    }
    schema
}

/// Allows null, which means the same as leaving the field out.
fn or_null(mut schema: Value) -> Value {
    if let Some(Value::Array(choices)) = schema.get_mut("oneOf") {
        choices.push(json!({ "type": "null" }));
    } else if let Some(Value::Array(values)) = schema.get_mut("enum") {
        values.push(Value::Null);
    } else if schema["type"] != "null" {
        let mut types = match schema["type"].take() {
            Value::Array(types) => types,
            one => vec![one],
        };
        types.push(json!("null"));
        schema["type"] = Value::Array(types);
    }
    schema
}

/// Writes a whole number without a decimal point.
pub(super) fn integral_as_integer(number: Value) -> Value {
    match number.as_f64() {
        Some(value) if value.fract() == 0.0 && value.abs() < f64::from(i32::MAX) => json!(value as i32),
        _ => number,
    }
}
