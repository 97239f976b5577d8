//! The named fields of a JSON object, read or described. What is left over after reading is unknown, and is an error that
//! names the nearest known field.

use super::kinds::Kind;
use crate::error::{ApiError, ApiResult};
use crate::json::{Json, shorten};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt::Display;

type Name = &'static str;

pub(crate) struct Fields {
    /// Where the object stands in the body: nothing, or a path that ends with a dot.
    within: String,
    mode: Mode,
    /// The names that an unknown one is compared with.
    known: Vec<Name>,
}

enum Mode {
    /// The entries that were not read yet.
    Read(Vec<(String, Json)>),
    Describe {
        properties: Map<String, Value>,
        required: Vec<Name>,
    },
}

impl Fields {
    /// Reads the fields that `list` lists from the object that stands at `path`, and denies all others.
    pub fn read<T>(path: &str, value: Json, list: impl FnOnce(&mut Self) -> ApiResult<T>) -> ApiResult<T> {
        let Json::Object(entries) = value else { return Err(wrong_type(path, "an object", &value)) };
        let within = if path.is_empty() { String::new() } else { format!("{path}.") };
        let mut fields = Self { within, mode: Mode::Read(entries), known: Vec::new() };
        let read = list(&mut fields)?;
        fields.deny_the_rest()?;
        Ok(read)
    }

    /// The schema of an object that has the fields that `list` lists.
    pub fn schema<T>(list: impl FnOnce(&mut Self) -> ApiResult<T>) -> Map<String, Value> {
        let mode = Mode::Describe { properties: Map::new(), required: Vec::new() };
        let mut fields = Self { within: String::new(), mode, known: Vec::new() };
        // There is no value that could be wrong; tests hold every list to describing all of its fields.
        let _ = list(&mut fields);
        let Mode::Describe { properties, required } = fields.mode else { return Map::new() };
        // By name, as the rest of the document has them. A `Map` keeps that order or the order of insertion, by a feature that
        // cedar turns on.
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

    pub fn required<K: Kind>(&mut self, name: Name, kind: &K, about: impl Display) -> ApiResult<K::Value> {
        self.known.push(name);
        match &mut self.mode {
            Mode::Describe { properties, required } => {
                properties.insert(name.to_owned(), described(kind.schema(), about));
                required.push(name);
                Ok(K::Value::default())
            }
            Mode::Read(_) => self.take(name, kind)?.ok_or_else(|| self.missing(name, K::WANTED)),
        }
    }

    /// None where the field is absent or null.
    pub fn optional<K: Kind>(
        &mut self,
        name: Name,
        kind: &K,
        about: impl Display,
    ) -> ApiResult<Option<K::Value>> {
        self.known.push(name);
        self.unlisted(name, kind, about)
    }

    /// An optional field whose schema tells what it is where it is left out.
    pub fn with_default<K: Kind<Value: Copy + Into<Value>>>(
        &mut self,
        name: Name,
        kind: &K,
        default: K::Value,
        about: impl Display,
    ) -> ApiResult<K::Value> {
        let value = self.optional(name, kind, about)?;
        if let Mode::Describe { properties, .. } = &mut self.mode {
            properties[name]["default"] = whole(default.into());
        }
        Ok(value.unwrap_or(default))
    }

    /// An optional field that nobody who mistypes another is pointed to.
    pub fn unlisted<K: Kind>(
        &mut self,
        name: Name,
        kind: &K,
        about: impl Display,
    ) -> ApiResult<Option<K::Value>> {
        if let Mode::Describe { properties, .. } = &mut self.mode {
            properties.insert(name.to_owned(), described(or_null(kind.schema()), about));
        }
        self.take(name, kind)
    }

    /// A rule over several fields. Without a body there is nothing to check.
    pub fn check(&self, rule: impl FnOnce() -> ApiResult<()>) -> ApiResult<()> {
        match self.mode {
            Mode::Read(_) => rule(),
            Mode::Describe { .. } => Ok(()),
        }
    }

    fn take<K: Kind>(&mut self, name: &str, kind: &K) -> ApiResult<Option<K::Value>> {
        let Mode::Read(left) = &mut self.mode else { return Ok(None) };
        let Some(index) = left.iter().position(|(sent, _)| sent == name) else { return Ok(None) };
        match left.swap_remove(index).1 {
            Json::Null => Ok(None),
            value => kind.read(&format!("{}{name}", self.within), value).map(Some),
        }
    }

    /// A field that is missing under its own name may be there under a similar one.
    fn missing(&self, name: Name, wanted: &str) -> ApiError {
        let is_similar = |(sent, _): &&(String, Json)| chancery_domain::nearest(sent, [name]).is_some();
        let similar = self.left().iter().find(is_similar).map(|(sent, _)| shorten(sent));
        ApiError::missing_field(&format!("{}{name}", self.within), wanted, similar.as_deref())
    }

    fn deny_the_rest(&self) -> ApiResult<()> {
        let Some((unknown, _)) = self.left().first() else { return Ok(()) };
        let unknown = shorten(unknown);
        let hint = match chancery_domain::nearest(&unknown, self.known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None if self.known.is_empty() => "leave it out".to_owned(),
            None => format!("the known ones are {}", self.known.join(", ")),
        };
        let path = format!("{}{unknown}", self.within);
        Err(ApiError::malformed(format!("there is no field `{path}`; {hint}")).at_field(path))
    }

    fn left(&self) -> &[(String, Json)] {
        match &self.mode {
            Mode::Read(left) => left,
            Mode::Describe { .. } => &[],
        }
    }
}

pub(crate) fn wrong_type(path: &str, wanted: &str, found: &Json) -> ApiError {
    ApiError::malformed(format!("`{path}` must be {wanted}, and it is {}", found.kind())).at_field(path)
}

fn described(mut schema: Value, about: impl Display) -> Value {
    let about = about.to_string();
    if !about.is_empty() {
        schema["description"] = json!(about);
    }
    schema
}

/// Null is the same as leaving the field out.
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

/// A whole number is written without a point.
pub(super) fn whole(number: Value) -> Value {
    match number.as_f64() {
        Some(value) if value.fract() == 0.0 && value.abs() < f64::from(i32::MAX) => json!(value as i32),
        _ => number,
    }
}
