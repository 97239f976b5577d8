//! What somebody typed into a form that was then rejected. It is given back on the error page: a session that ended, a database
//! that does not answer or a record that changed hands must not cost anybody an hour's writing.

use axum::http::{HeaderMap, header};

/// A field that people write into, and what its page calls it.
#[derive(Clone, Copy, Debug)]
pub struct TypedField {
    pub name: &'static str,
    pub label: &'static str,
}

/// One of them as it was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Typed {
    pub(crate) label: &'static str,
    pub(crate) text: String,
    /// Lines that it takes to show most of it.
    pub(crate) rows: usize,
}

/// The tallest that a text is shown; the rest is scrolled to.
const MAX_ROWS: usize = 20;

/// No form of ours has as many; the page must not grow far beyond what was sent.
const MAX_FIELDS: usize = 100;

/// What was typed into these fields, in the order of the form. Empty ones and all others are left out.
pub(crate) fn typed_into(fields: &[TypedField], headers: &HeaderMap, body: &[u8]) -> Vec<Typed> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if fields.is_empty() || !kind.starts_with("application/x-www-form-urlencoded") {
        return Vec::new();
    }
    let typed = form_urlencoded::parse(body).take(MAX_FIELDS).filter_map(|(name, text)| {
        let field = fields.iter().find(|field| field.name == name)?;
        let rows = (text.lines().count() + text.len() / 80).clamp(1, MAX_ROWS);
        (!text.trim().is_empty()).then(|| Typed { label: field.label, text: text.into_owned(), rows })
    });
    typed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn only_what_was_typed_into_fields_for_writing_is_given_back() {
        let fields =
            [TypedField { name: "title", label: "Title" }, TypedField { name: "text", label: "Text" }];
        let form = HeaderValue::from_static("application/x-www-form-urlencoded");
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, form)]);
        let body = b"version=3&title=Call&text=one%0D%0Atwo&password=x&text=";
        let typed = typed_into(&fields, &headers, body);
        let shown: Vec<(&str, &str)> = typed.iter().map(|typed| (typed.label, typed.text.as_str())).collect();
        assert_eq!(shown, [("Title", "Call"), ("Text", "one\r\ntwo")]);
        assert!(typed_into(&fields, &HeaderMap::new(), body).is_empty(), "not a form");
        assert!(typed_into(&[], &headers, body).is_empty());
        let flood = "text=1&".repeat(50_000);
        assert_eq!(typed_into(&fields, &headers, flood.as_bytes()).len(), MAX_FIELDS);
    }
}
