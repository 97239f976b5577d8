//! Samples to read and paste: a JSON value with its fields in schema order, and the curl command that sends it.

use super::schema_text::{Document, in_order};
use serde_json::{Map, Value, json};

/// Builds a sample value from the examples in the schema.
pub(super) fn of_schema(document: Document<'_>, schema: &Value) -> Value {
    let own = schema.clone();
    let schema = match own["$ref"].as_str().and_then(|pointer| pointer.strip_prefix('#')) {
        Some(pointer) => document.0.pointer(pointer).cloned().unwrap_or(Value::Null),
        None => own,
    };
    if let Some(example) = schema["examples"].get(0) {
        return example.clone();
    }
    if let Some(first) = schema["enum"].as_array().and_then(|values| values.first()) {
        return first.clone();
    }
    let mut fields = Map::new();
    for part in schema["allOf"].as_array().into_iter().flatten() {
        if let Value::Object(more) = of_schema(document, part) {
            fields.extend(more);
        }
    }
    if let Some(properties) = schema["properties"].as_object() {
        let required: Vec<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        // Show an optional field only if it has an example.
        let shown = properties
            .iter()
            .filter(|(name, property)| required.contains(&name.as_str()) || property["examples"].is_array());
        fields.extend(shown.map(|(name, property)| (name.clone(), of_schema(document, property))));
    }
    match schema["type"].as_str() {
        Some("array") => Value::Array(vec![of_schema(document, &schema["items"])]),
        Some("integer" | "number") => json!(0),
        Some("string") => json!("…"),
        _ => Value::Object(fields),
    }
}

/// Formats JSON, keeping short values on one line.
pub(super) fn write(document: Document<'_>, schema: &Value, value: &Value) -> String {
    let mut text = String::new();
    write_into(&mut text, document, schema, value, 0);
    text
}

const LINE_CHARS: usize = 60;

fn write_into(text: &mut String, document: Document<'_>, schema: &Value, value: &Value, depth: usize) {
    let schema = document.resolve(schema);
    let entries: Vec<(Option<String>, &Value, &Value)> = match value {
        Value::Object(fields) => ordered(document, schema, fields),
        Value::Array(items) => items.iter().map(|item| (None, item, &schema["items"])).collect(),
        plain => return text.push_str(&plain.to_string()),
    };
    let (open, close) = if value.is_array() { ("[", "]") } else { ("{", "}") };
    let break_lines = depth == 0 || value.to_string().chars().count() > LINE_CHARS;
    let (separator, indent, end) = match break_lines {
        true => (",", format!("\n{}", "  ".repeat(depth + 1)), format!("\n{}", "  ".repeat(depth))),
        false => (",", " ".to_owned(), " ".to_owned()),
    };
    text.push_str(open);
    for (index, (name, item, item_schema)) in entries.into_iter().enumerate() {
        if index > 0 {
            text.push_str(separator);
        }
        text.push_str(&indent);
        if let Some(name) = name {
            text.push_str(&format!("{}: ", json!(name)));
        }
        write_into(text, document, item_schema, item, depth + 1);
    }
    text.push_str(&end);
    text.push_str(close);
}

fn ordered<'a>(
    document: Document<'a>,
    schema: &'a Value,
    fields: &'a Map<String, Value>,
) -> Vec<(Option<String>, &'a Value, &'a Value)> {
    let parts = schema["allOf"].as_array().into_iter().flatten().map(|part| document.resolve(part));
    let known = parts.chain([schema]).flat_map(in_order);
    let mut entries: Vec<(Option<String>, &Value, &Value)> = known
        .filter_map(|(name, schema)| fields.get(name).map(|value| (Some(name.to_owned()), value, schema)))
        .collect();
    let rest =
        fields.iter().filter(|(name, _)| !entries.iter().any(|(known, ..)| known.as_ref() == Some(name)));
    let rest: Vec<_> = rest.map(|(name, value)| (Some(name.clone()), value, &Value::Null)).collect();
    entries.extend(rest);
    entries
}

/// The command uses the two shell variables set at the top of the page.
pub(super) fn curl(path: &str, needs_key: bool, body: Option<&str>) -> String {
    let mut parts = vec![format!("curl \"$CHANCERY_URL{path}\"")];
    if needs_key {
        parts.push("-H \"Authorization: Bearer $CHANCERY_API_KEY\"".to_owned());
    }
    if let Some(body) = body {
        parts.push("-H 'Content-Type: application/json'".to_owned());
        parts.push(format!("-d '{}'", body.replace('\'', r"'\''")));
    }
    parts.join(" \\\n  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quote_in_a_curl_body_is_shell_escaped() {
        let line = curl("/v1/generate", true, Some(r#"{"input":"it's"}"#));
        assert!(line.ends_with(r#"-d '{"input":"it'\''s"}'"#), "{line}");
    }

    #[test]
    fn sample_has_its_schema_fields_in_order() {
        let document = crate::openapi_document();
        let schema = &document["components"]["schemas"]["GenerateReply"];
        let value = of_schema(Document(&document), schema);
        let text = write(Document(&document), schema, &value);
        assert!(text.starts_with("{\n  \"id\": \"req_"), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        assert!(value["usage"]["input_tokens_details"]["cached_tokens"].is_u64(), "{text}");
    }
}
