//! Strict JSON: object keys must be unique at any depth. `serde_json` silently keeps the last duplicate. Here it is an
//! error: if a caller sends two token caps, billing must not guess which one applies.

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::collections::HashSet;
use std::fmt;

/// Up to this many names of an object are compared one by one. That is cheaper than a set of them, and the objects of most
/// requests have fewer.
const MAX_COMPARED_NAMES: usize = 24;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Json {
    #[default]
    Null,
    Bool(bool),
    /// Holds every integer that a field accepts. Larger ones become `Number`.
    Integer(i128),
    Number(f64),
    String(String),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// `serde_json` limits nesting to 128 levels.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// The JSON type name, as used in errors.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Integer(_) | Self::Number(_) => "a number",
            Self::String(_) => "a string",
            Self::Array(_) => "an array",
            Self::Object(_) => "an object",
        }
    }

    /// Returns the same bytes for all equivalent texts: no whitespace, sorted keys, whole numbers as integers.
    pub(crate) fn canonical(&self) -> Vec<u8> {
        let mut text = Vec::new();
        self.write_canonical(&mut text);
        text
    }

    fn write_canonical(&self, text: &mut Vec<u8>) {
        // Writing to memory cannot fail.
        let write_string = |text: &mut Vec<u8>, string: &str| drop(serde_json::to_writer(text, string));
        match self {
            Self::Null => text.extend_from_slice(b"null"),
            Self::Bool(value) => text.extend_from_slice(value.to_string().as_bytes()),
            Self::Integer(value) => text.extend_from_slice(value.to_string().as_bytes()),
            Self::Number(value) if value.fract() == 0.0 && value.abs() <= LARGEST_EXACT => {
                text.extend_from_slice((*value as i128).to_string().as_bytes());
            }
            // Rust prints the shortest decimal that parses back to the same number.
            Self::Number(value) => text.extend_from_slice(value.to_string().as_bytes()),
            Self::String(value) => write_string(text, value),
            Self::Array(items) => {
                text.push(b'[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        text.push(b',');
                    }
                    item.write_canonical(text);
                }
                text.push(b']');
            }
            Self::Object(entries) => {
                let mut entries: Vec<&(String, Json)> = entries.iter().collect();
                entries.sort_unstable_by_key(|(name, _)| name);
                text.push(b'{');
                for (index, (name, value)) in entries.into_iter().enumerate() {
                    if index > 0 {
                        text.push(b',');
                    }
                    write_string(text, name);
                    text.push(b':');
                    value.write_canonical(text);
                }
                text.push(b'}');
            }
        }
    }
}

/// Above 2^53 a float no longer identifies a single integer.
pub(crate) const LARGEST_EXACT: f64 = 9_007_199_254_740_992.0;

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

/// Truncates caller input so that it can be quoted in a reply.
pub(crate) fn truncate(text: &str) -> String {
    const SHOWN_CHARS: usize = 60;
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Integer(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Integer(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Json::Number(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Json, E> {
        Ok(Json::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut array = Vec::new();
        while let Some(item) = items.next_element()? {
            array.push(item);
        }
        Ok(Json::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json, A::Error> {
        let mut object: Vec<(String, Json)> = Vec::new();
        let mut names = HashSet::new();
        while let Some((name, value)) = entries.next_entry::<String, Json>()? {
            if object.len() == MAX_COMPARED_NAMES {
                names.extend(object.iter().map(|(name, _)| name.clone()));
            }
            let is_new = match object.len() < MAX_COMPARED_NAMES {
                true => object.iter().all(|(other, _)| *other != name),
                false => names.insert(name.clone()),
            };
            if !is_new {
                let shown = truncate(&name);
                return Err(A::Error::custom(format_args!("duplicate key `{shown}`")));
            }
            object.push((name, value));
        }
        Ok(Json::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_json_name_is_rejected_at_any_depth() {
        for text in [r#"{"a":1,"a":1}"#, r#"{"a":[{"b":1,"b":2}]}"#, r#"{"\u0061":1,"a":2}"#] {
            let error = Json::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("duplicate key"), "{error}");
        }
    }

    #[test]
    fn duplicate_json_name_is_rejected_in_an_object_of_any_size() {
        for count in [2, MAX_COMPARED_NAMES - 1, MAX_COMPARED_NAMES, MAX_COMPARED_NAMES + 1, 200] {
            let unique: Vec<String> = (0..count).map(|number| format!(r#""n{number}":0"#)).collect();
            let object = |entries: &[String]| format!("{{{}}}", entries.join(","));
            assert!(Json::parse(object(&unique).as_bytes()).is_ok(), "{count}");
            for repeated in [0, count / 2, count - 1] {
                let entries = [unique.as_slice(), &unique[repeated..=repeated]].concat();
                let error = Json::parse(object(&entries).as_bytes()).unwrap_err().to_string();
                assert!(error.contains(&format!("duplicate key `n{repeated}`")), "{error}");
            }
        }
    }

    #[test]
    fn deep_nesting_is_an_error() {
        let deep = "[".repeat(200_000);
        assert!(Json::parse(deep.as_bytes()).is_err());
    }

    #[test]
    fn canonical_json_is_equivalent_and_idempotent() {
        for (text, expected) in [
            (
                r#" { "b" : [ 1 , null ] , "a" : { "d" : true , "c" : "x" } } "#,
                r#"{"a":{"c":"x","d":true},"b":[1,null]}"#,
            ),
            (r#"["\u0041\u000a\/", -0.0, 1e2, 0.1, 1e300, -7]"#, ""),
        ] {
            let json = Json::parse(text.as_bytes()).unwrap();
            let canonical = json.canonical();
            let again = Json::parse(&canonical).unwrap();
            assert_eq!(again.canonical(), canonical);
            if !expected.is_empty() {
                assert_eq!(String::from_utf8(canonical).unwrap(), expected);
            }
        }
        let numbers = Json::parse(br#"["A\n/", -0.0, 1e2, 0.1, -7]"#).unwrap().canonical();
        assert_eq!(String::from_utf8(numbers).unwrap(), r#"["A\n/",0,100,0.1,-7]"#);
    }

    #[test]
    fn large_integers_keep_their_value_and_do_not_wrap() {
        assert_eq!(Json::parse(b"9007199254740993").unwrap(), Json::Integer(9_007_199_254_740_993));
        assert_eq!(Json::parse(b"18446744073709551615").unwrap(), Json::Integer(u64::MAX.into()));
        assert!(
            matches!(Json::parse(b"18446744073709551616").unwrap(), Json::Number(value) if value > 1.8e19)
        );
    }
}
