//! The markup of descriptions in the document: blank lines separate paragraphs, and backticks enclose `code`. A test
//! checks that they use no other Markdown.

pub(super) struct Span {
    pub text: String,
    pub is_code: bool,
}

pub(super) type Paragraph = Vec<Span>;

pub(super) fn paragraphs(text: &str) -> Vec<Paragraph> {
    text.split("\n\n").map(line).filter(|paragraph| !paragraph.is_empty()).collect()
}

/// Parses a single paragraph.
pub(super) fn line(text: &str) -> Paragraph {
    let parts = text.split('`').enumerate();
    let spans = parts.map(|(index, part)| Span { text: part.replace('\n', " "), is_code: index % 2 == 1 });
    spans.filter(|span| !span.text.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    fn descriptions<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| descriptions(item, found)),
            Value::Object(fields) => {
                for (name, value) in fields {
                    match value {
                        Value::String(text) if name == "description" || name == "summary" => found.push(text),
                        other => descriptions(other, found),
                    }
                }
            }
            _ => {}
        }
    }

    #[test]
    fn descriptions_use_only_supported_markdown() {
        let document = crate::openapi_document();
        let mut found = Vec::new();
        descriptions(&document, &mut found);
        assert!(found.len() > 50, "{}", found.len());
        for text in found {
            assert_eq!(text.matches('`').count() % 2, 0, "{text}");
            for mark in ["**", "](", "\n- ", "\n#", "[`"] {
                assert!(!text.contains(mark), "{text}");
            }
        }
    }
}
