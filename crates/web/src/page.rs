//! A template as a reply.

use crate::error_page::ErrorPage;
use askama::Template;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};

/// Renders a page. The status says what became of the request: a form that is shown again has 422, not 200.
pub fn page(status: StatusCode, template: &impl Template) -> Result<Response, ErrorPage> {
    match template.render() {
        Ok(html) => Ok((status, Html(html)).into_response()),
        Err(error) => Err(ErrorPage::internal(format!("a page cannot be made: {error}"))),
    }
}
