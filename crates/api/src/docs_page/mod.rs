//! `GET /docs`: the document of `/openapi.json` as a page for people, made on the server. No script, no outside asset, and
//! nothing on it that the document does not say.

mod prose;
mod sample;
mod schema_text;
mod view;

use crate::error::ApiError;
use crate::openapi::errors::OpenRefusals;
use crate::openapi::{self, document};
use askama::Template;
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::response::{IntoResponse, Response};
use std::sync::LazyLock;
use view::Page;

const PATH: &str = "/docs";
const STYLE_PATH: &str = "/docs/style.css";

/// The page's own stylesheet is all that it may load, and nobody may frame it.
const CONTENT_SECURITY_POLICY: &str =
    "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// What is open to everybody, and so may be opened in a browser too: no key goes with it.
pub(crate) fn is_for_browsers(method: &Method, path: &str) -> bool {
    matches!(*method, Method::GET | Method::HEAD) && [openapi::PATH, PATH, STYLE_PATH].contains(&path)
}

#[utoipa::path(
    get,
    path = PATH,
    operation_id = "docs",
    tag = "This description",
    summary = "The API, for people",
    description = "This page. No key is needed, and a browser may open it.",
    responses((status = 200, description = "The page.", body = String, content_type = "text/html"), OpenRefusals)
)]
pub(crate) async fn handle() -> Result<Response, ApiError> {
    static PAGE: LazyLock<Result<String, askama::Error>> = LazyLock::new(|| Page::of(&document()).render());
    match &*PAGE {
        Ok(page) => Ok(open_to_browsers("text/html; charset=utf-8", page)),
        Err(error) => Err(ApiError::internal(format!("the page at {PATH} cannot be made: {error}"))),
    }
}

#[utoipa::path(
    get,
    path = STYLE_PATH,
    operation_id = "docs_style",
    tag = "This description",
    summary = "The stylesheet of that page",
    description = "How `/docs` looks.",
    responses((status = 200, description = "The stylesheet.", body = String, content_type = "text/css"), OpenRefusals)
)]
pub(crate) async fn handle_style() -> Response {
    open_to_browsers("text/css; charset=utf-8", include_str!("../../assets/docs.css"))
}

fn open_to_browsers(media_type: &'static str, text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(media_type)),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_SECURITY_POLICY)),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
    ];
    (headers, text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> String {
        Page::of(&document()).render().unwrap()
    }

    #[test]
    fn the_page_has_every_path_field_and_code_of_the_document() {
        let (page, document) = (page(), document());
        for path in document["paths"].as_object().unwrap().keys() {
            assert!(page.contains(path), "{path}");
        }
        for field in
            document["components"]["schemas"]["GenerationRequest"]["properties"].as_object().unwrap().keys()
        {
            assert!(page.contains(&format!("<code>{field}</code>")), "{field}");
        }
        for error in openapi::errors::ERRORS {
            assert!(page.contains(error.code), "{}", error.code);
        }
    }

    #[test]
    fn the_page_loads_nothing_but_its_stylesheet_and_runs_nothing() {
        let page = page();
        for forbidden in
            ["<script", "<style", " style=", " onclick=", "http://", "https://", "//cdn", "@import"]
        {
            let outside = page.replace("http://localhost:8080", "");
            assert!(!outside.contains(forbidden), "{forbidden}");
        }
        assert_eq!(page.matches("<link ").count(), 1);
        assert!(
            !include_str!("../../assets/docs.css").contains("url("),
            "nor does the stylesheet load anything"
        );
    }

    #[test]
    fn every_place_that_the_page_links_to_is_there() {
        let page = page();
        let targets = page.split("href=\"#").skip(1).filter_map(|rest| rest.split('"').next());
        for target in targets {
            assert_eq!(page.matches(&format!("id=\"{target}\"")).count(), 1, "#{target}");
        }
    }
}
