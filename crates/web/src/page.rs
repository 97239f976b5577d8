//! Renders templates as responses.

use crate::error_page::ErrorPage;
use askama::Template;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};

/// Renders a page. A form that is shown again has status 422, not 200.
pub fn page(status: StatusCode, template: &impl Template) -> Result<Response, ErrorPage> {
    match template.render() {
        Ok(html) => Ok((status, Html(html)).into_response()),
        Err(error) => Err(ErrorPage::internal(format!("template rendering failed: {error}"))),
    }
}
