//! Describes a schema as text: its fields, their types and their bounds.

use super::prose::{self, Paragraph};
use serde_json::Value;

pub(super) struct Field {
    pub name: String,
    pub kind: String,
    pub is_required: bool,
    pub bounds: String,
    pub meaning: Paragraph,
}

/// The whole document, needed to resolve `$ref`.
#[derive(Clone, Copy)]
pub(super) struct Document<'a>(pub &'a Value);

impl<'a> Document<'a> {
    pub(super) fn resolve(self, value: &'a Value) -> &'a Value {
        let pointer = value["$ref"].as_str().and_then(|pointer| pointer.strip_prefix('#'));
        pointer.and_then(|pointer| self.0.pointer(pointer)).unwrap_or(value)
    }

    /// Lists the fields of an object, including nested ones, under their full paths.
    pub(super) fn fields(self, schema: &'a Value) -> Vec<Field> {
        let mut found = Vec::new();
        self.collect_fields(schema, "", &mut found);
        found
    }

    fn collect_fields(self, schema: &'a Value, prefix: &str, found: &mut Vec<Field>) {
        let schema = self.resolve(schema);
        for part in schema["allOf"].as_array().into_iter().flatten() {
            self.collect_fields(part, prefix, found);
        }
        for (name, property) in in_order(schema) {
            let name = format!("{prefix}{name}");
            let described = self.resolve(property);
            let is_required = required(schema).any(|required| name.ends_with(required));
            found.push(self.field(name.clone(), property, is_required));
            self.collect_fields(described, &format!("{name}."), found);
            self.collect_fields(&described["items"], &format!("{name}[]."), found);
        }
    }

    pub(super) fn field(self, name: String, schema: &'a Value, is_required: bool) -> Field {
        let described = self.resolve(schema);
        let description = schema["description"].as_str().or_else(|| described["description"].as_str());
        Field {
            name,
            kind: self.kind(schema),
            is_required,
            bounds: self.bounds(described).join("; "),
            meaning: prose::line(description.unwrap_or_default()),
        }
    }

    /// Returns `integer`, `array of strings` or `string or array of strings`. Null is left out: the page says
    /// "optional" instead.
    pub(super) fn kind(self, schema: &'a Value) -> String {
        let schema = self.resolve(schema);
        if let Some(choices) = schema["oneOf"].as_array() {
            let kinds = choices.iter().map(|choice| self.kind(choice)).filter(|kind| kind != "null");
            return kinds.collect::<Vec<_>>().join(" or ");
        }
        if schema["allOf"].is_array() {
            return "object".to_owned();
        }
        let kinds = match &schema["type"] {
            Value::String(kind) => vec![kind.as_str()],
            Value::Array(kinds) => {
                kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != "null").collect()
            }
            _ => Vec::new(),
        };
        let named = kinds.into_iter().map(|kind| match kind {
            "array" => match self.kind(&schema["items"]).as_str() {
                "" => "array".to_owned(),
                kind => format!("array of {kind}s"),
            },
            other => other.to_owned(),
        });
        named.collect::<Vec<_>>().join(" or ")
    }

    fn bounds(self, schema: &'a Value) -> Vec<String> {
        let mut constraints = Vec::new();
        if let Some(choices) = schema["oneOf"].as_array() {
            let each = choices.iter().map(|choice| self.bounds(self.resolve(choice)).join(", "));
            let bounded: Vec<String> = each.filter(|bounds| !bounds.is_empty()).collect();
            return if bounded.is_empty() { bounded } else { vec![bounded.join("; or ")] };
        }
        if let Some(values) = schema["enum"].as_array() {
            let values = values.iter().filter(|value| !value.is_null());
            let written = values.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
            constraints.push(match written.collect::<Vec<_>>().as_slice() {
                [only] => format!("only {only}"),
                several => format!("one of {}", several.join(", ")),
            });
        }
        constraints.extend(range(&schema["minimum"], &schema["exclusiveMinimum"], &schema["maximum"]));
        constraints.extend(
            range(&schema["minLength"], &Value::Null, &schema["maxLength"])
                .map(|range| format!("{range} characters")),
        );
        constraints.extend(
            schema["maxItems"]
                .as_u64()
                .map(|count| if count == 0 { "empty".to_owned() } else { format!("up to {count}") }),
        );
        constraints.extend(self.bounds_of_items(schema));
        constraints.extend((schema["format"] == "date").then(|| "YYYY-MM-DD".to_owned()));
        constraints.extend(
            schema
                .get("default")
                .filter(|default| !default.is_null())
                .map(|default| format!("{default} if left out")),
        );
        constraints
    }

    fn bounds_of_items(self, schema: &'a Value) -> Option<String> {
        let of_each = self.bounds(self.resolve(schema.get("items")?));
        (!of_each.is_empty()).then(|| format!("each {}", of_each.join(", ")))
    }
}

/// Required fields come first, in the order of `required`.
pub(super) fn in_order(schema: &Value) -> Vec<(&str, &Value)> {
    let Some(properties) = schema["properties"].as_object() else { return Vec::new() };
    let mut named: Vec<(&str, &Value)> =
        properties.iter().map(|(name, value)| (name.as_str(), value)).collect();
    named.sort_by_key(|(name, _)| {
        required(schema).position(|required| required == *name).unwrap_or(usize::MAX)
    });
    named
}

fn required(schema: &Value) -> impl Iterator<Item = &str> {
    schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str)
}

fn range(min: &Value, exclusive_min: &Value, max: &Value) -> Option<String> {
    let number = |value: &Value| match value.as_u64() {
        Some(whole) => with_commas(whole),
        None => value.to_string(),
    };
    let lower = match (min.is_number(), exclusive_min.is_number()) {
        (true, _) => Some(number(min)),
        (false, true) => Some(format!("above {}", number(exclusive_min))),
        (false, false) => None,
    };
    match (lower, max.is_number()) {
        (Some(lower), true) if exclusive_min.is_number() => Some(format!("{lower}, at most {}", number(max))),
        (Some(lower), true) => Some(format!("{lower} to {}", number(max))),
        (Some(lower), false) if exclusive_min.is_number() => Some(lower),
        // A minimum of 0 is obvious for a count.
        (Some(_), false) if *min == 0 => None,
        (Some(lower), false) => Some(format!("at least {lower}")),
        (None, true) => Some(format!("at most {}", number(max))),
        (None, false) => None,
    }
}

fn with_commas(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn documented_field_bounds_match_the_parser() {
        let document = crate::openapi_document();
        let fields = Document(&document).fields(&document["components"]["schemas"]["GenerationRequest"]);
        let described: Vec<String> = fields
            .iter()
            .map(|field| format!("{} {} {} ({})", field.name, field.kind, field.is_required, field.bounds))
            .collect();
        assert_eq!(
            described,
            [
                "model string true ()",
                "instructions string true ()",
                "input string true ()",
                "max_output_tokens integer true (at least 1)",
                "dry_allowed_length integer false (1 to 64; 2 if left out)",
                "dry_base number false (1 to 4; 1.75 if left out)",
                "dry_multiplier number false (0 to 5; 0 if left out)",
                "frequency_penalty number false (-2 to 2; 0 if left out)",
                "logprobs boolean false (false if left out)",
                "min_p number false (0 to 1; 0 if left out)",
                "presence_penalty number false (-2 to 2; 0 if left out)",
                "receipt boolean false (false if left out)",
                "repetition_penalty number false (above 0, at most 2; 1 if left out)",
                "seed integer false (0 to 18,446,744,073,709,551,615)",
                "stop string or array of strings false (1 to 256 characters; or up to 4, each 1 to 256 characters)",
                "stop_on_repetition boolean false (false if left out)",
                "stream boolean false (false if left out)",
                "temperature number false (0 to 2; 0 if left out)",
                "top_k integer false (1 to 1,048,576)",
                "top_logprobs integer false (0 to 20; 0 if left out)",
                "top_p number false (above 0, at most 1; 1 if left out)",
            ]
        );
    }

    #[test]
    fn nested_fields_are_named_by_their_path() {
        let document = json!({ "components": { "schemas": { "Inner": {
            "type": "object", "properties": { "b": { "type": "string" } }, "required": ["b"]
        }}}});
        let schema = json!({ "properties": {
            "a": { "$ref": "#/components/schemas/Inner" },
            "list": { "type": "array", "items": { "$ref": "#/components/schemas/Inner" } },
        }});
        let whole = json!({ "components": document["components"], "schema": schema });
        let names: Vec<String> =
            Document(&whole).fields(&whole["schema"]).into_iter().map(|field| field.name).collect();
        assert_eq!(names, ["a", "a.b", "list", "list[].b"]);
    }
}
