//! `GET /docs`: `/openapi.json` rendered on the server as a page for people. It uses no external assets, says nothing
//! that the document does not, and is complete without its script, which only adds copy buttons. Its stylesheet and its
//! script are parts of the page, not endpoints: the document does not list them.

mod client_code;
mod prose;
mod sample;
mod schema_text;
mod view;

use crate::error::ApiError;
use crate::openapi::errors::OpenErrors;
use crate::openapi::{self, document};
use askama::Template;
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::response::{IntoResponse, Response};
use std::sync::LazyLock;
use view::Page;

const PATH: &str = "/docs";
pub(crate) const STYLE_PATH: &str = "/docs/style.css";
pub(crate) const SCRIPT_PATH: &str = "/docs/script.js";

/// The page may load only its own stylesheet and script, and may not be framed.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Paths that need no key and so may be opened in a browser.
pub(crate) fn is_for_browsers(method: &Method, path: &str) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
        && [openapi::PATH, PATH, STYLE_PATH, SCRIPT_PATH].contains(&path)
}

#[utoipa::path(
    get,
    path = PATH,
    operation_id = "docs",
    tag = "This description",
    summary = "The API, for people",
    description = "This page. No key is needed, and a browser may open it.",
    responses((status = 200, description = "The page.", body = String, content_type = "text/html"), OpenErrors)
)]
pub(crate) async fn handle() -> Result<Response, ApiError> {
    static PAGE: LazyLock<Result<String, askama::Error>> = LazyLock::new(|| Page::of(&document()).render());
    match &*PAGE {
        Ok(page) => Ok(open_to_browsers("text/html; charset=utf-8", page)),
        Err(error) => Err(ApiError::internal(format!("the page at {PATH} cannot be rendered: {error}"))),
    }
}

pub(crate) async fn style() -> Response {
    open_to_browsers("text/css; charset=utf-8", include_str!("../../assets/docs.css"))
}

pub(crate) async fn script() -> Response {
    open_to_browsers("text/javascript; charset=utf-8", include_str!("../../assets/docs.js"))
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
    fn docs_page_has_every_path_field_and_error_code() {
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
    fn docs_page_loads_only_its_own_stylesheet_and_script() {
        let page = page();
        for forbidden in ["<style", " style=", " onclick=", "http://", "https://", "//cdn", "@import"] {
            let outside = page.replace("http://localhost:8080", "");
            assert!(!outside.contains(forbidden), "{forbidden}");
        }
        assert_eq!(page.matches("<link ").count(), 1);
        assert_eq!(page.matches("<script").count(), 1);
        assert!(page.contains("<script src=\"/docs/script.js\" defer></script>"));
        assert!(
            !include_str!("../../assets/docs.css").contains("url("),
            "nor does the stylesheet load anything"
        );
    }

    #[test]
    fn docs_page_lists_no_stylesheet_or_script_as_an_endpoint() {
        let (page, document) = (page(), document());
        for path in [STYLE_PATH, SCRIPT_PATH] {
            assert!(document["paths"].get(path).is_none(), "{path}");
            assert!(!page.contains(&format!("<code>{path}</code>")), "{path}");
        }
    }

    #[test]
    fn every_endpoint_has_a_curl_a_python_and_a_javascript_example() {
        let (page, document) = (page(), document());
        let operations =
            document["paths"].as_object().unwrap().values().map(|item| item.as_object().unwrap().len());
        let operations: usize = operations.sum();
        for opening in ["<code>curl ", "<summary>Python</summary>", "<summary>JavaScript</summary>"] {
            assert_eq!(page.matches(opening).count(), operations, "{opening}");
        }
    }

    #[test]
    fn every_docs_page_anchor_link_has_a_target() {
        let page = page();
        let targets = page.split("href=\"#").skip(1).filter_map(|rest| rest.split('"').next());
        for target in targets {
            assert_eq!(page.matches(&format!("id=\"{target}\"")).count(), 1, "#{target}");
        }
    }
}
