//! The text that a user typed into a form that was then rejected. The error page shows it: an expired session, a database outage
//! or a reassigned client must not cost anyone an hour of writing.

use axum::http::{HeaderMap, header};

/// A text field, with its label.
#[derive(Clone, Copy, Debug)]
pub struct PreservedField {
    pub name: &'static str,
    pub label: &'static str,
}

/// A submitted text field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PreservedText {
    pub(crate) label: &'static str,
    pub(crate) text: String,
    /// Height of the text area, in lines.
    pub(crate) rows: usize,
}

/// Taller texts scroll.
const MAX_ROWS: usize = 20;

/// More than any of our forms has. It keeps the page from growing far beyond what was sent.
const MAX_FIELDS: usize = 100;

/// Returns the non-empty values of these fields, in form order. All other fields are omitted.
pub(crate) fn preserved_text(
    fields: &[PreservedField],
    headers: &HeaderMap,
    body: &[u8],
) -> Vec<PreservedText> {
    let content_type = headers
        .get(header::CONTENT_TYPE)
        .and_then(|content_type| content_type.to_str().ok())
        .unwrap_or_default();
    if fields.is_empty() || !content_type.starts_with("application/x-www-form-urlencoded") {
        return Vec::new();
    }
    let typed = form_urlencoded::parse(body).take(MAX_FIELDS).filter_map(|(name, text)| {
        let field = fields.iter().find(|field| field.name == name)?;
        let rows = (text.lines().count() + text.len() / 80).clamp(1, MAX_ROWS);
        (!text.trim().is_empty()).then(|| PreservedText { label: field.label, text: text.into_owned(), rows })
    });
    typed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn only_declared_fields_are_preserved() {
        let fields = [
            PreservedField { name: "title", label: "Title" },
            PreservedField { name: "text", label: "Text" },
        ];
        let form = HeaderValue::from_static("application/x-www-form-urlencoded");
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, form)]);
        let body = b"version=3&title=Call&text=one%0D%0Atwo&password=x&text=";
        let typed = preserved_text(&fields, &headers, body);
        let shown: Vec<(&str, &str)> = typed.iter().map(|typed| (typed.label, typed.text.as_str())).collect();
        assert_eq!(shown, [("Title", "Call"), ("Text", "one\r\ntwo")]);
        assert!(preserved_text(&fields, &HeaderMap::new(), body).is_empty(), "not a form");
        assert!(preserved_text(&[], &headers, body).is_empty());
        let flood = "text=1&".repeat(50_000);
        assert_eq!(preserved_text(&fields, &headers, flood.as_bytes()).len(), MAX_FIELDS);
    }
}
