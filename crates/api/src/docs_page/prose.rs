//! Descriptions as the document has them: paragraphs apart by an empty line, and `code` between backticks. Nothing else of
//! Markdown is used in them, and a test says so.

pub(super) struct Span {
    pub text: String,
    pub is_code: bool,
}

pub(super) type Paragraph = Vec<Span>;

pub(super) fn paragraphs(text: &str) -> Vec<Paragraph> {
    text.split("\n\n").map(line).filter(|paragraph| !paragraph.is_empty()).collect()
}

/// One paragraph.
pub(super) fn line(text: &str) -> Paragraph {
    let parts = text.split('`').enumerate();
    let spans = parts.map(|(place, part)| Span { text: part.replace('\n', " "), is_code: place % 2 == 1 });
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
    fn descriptions_use_no_markdown_that_the_page_cannot_show() {
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
