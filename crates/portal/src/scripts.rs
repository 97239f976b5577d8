//! Scripts of the signed-in pages. They are optional: everything works without them. Their URLs contain a hash of the content, so
//! browsers may cache them indefinitely. Ours are served without their comments (`build.rs`).

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

macro_rules! script_path {
    ($name:literal) => {
        concat!("/assets/", env!("CHANCERY_SCRIPTS_VERSION"), "/", $name)
    };
}

/// htmx 2.0.11, as published (assets/htmx-LICENSE.txt): replaces parts of a page.
pub(crate) const HTMX_PATH: &str = script_path!("htmx.js");
/// Streams drafts of letters, and stores unsaved text.
pub(crate) const DRAFT_PATH: &str = script_path!("draft.js");
/// Keyboard shortcuts, and the guard against unsaved changes.
pub(crate) const PORTAL_PATH: &str = script_path!("portal.js");

/// Configuration of htmx, in the page's head: no `eval` and no inline styles, which the content security policy forbids; no pages in
/// browser storage; error pages are swapped in like others.
pub(crate) const HTMX_CONFIG: &str = r##"{"allowEval":false,"allowScriptTags":false,"includeIndicatorStyles":false,"selfRequestsOnly":true,"historyCacheSize":0,"refreshOnHistoryMiss":true,"responseHandling":[{"code":"204","swap":false},{"code":"[23]..","swap":true},{"code":"[45]..","swap":true,"error":true,"target":"#main","select":"#main","swapOverride":"outerHTML"}]}"##;

pub(crate) async fn htmx() -> Response {
    script(include_str!("../assets/htmx-2.0.11.min.js"))
}

pub(crate) async fn draft() -> Response {
    // With autosave.js: one request for what the forms of a record need.
    script(include_str!(concat!(env!("OUT_DIR"), "/draft.js")))
}

pub(crate) async fn portal() -> Response {
    script(include_str!(concat!(env!("OUT_DIR"), "/portal.js")))
}

fn script(text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/javascript; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable")),
    ];
    (headers, text).into_response()
}
