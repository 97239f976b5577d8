//! The scripts of the pages that people are signed in to. Everything works without them; they make it quicker. Their addresses
//! change with their text, so that a browser may keep them for ever.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

macro_rules! script_path {
    ($name:literal) => {
        concat!("/assets/", env!("CHANCERY_SCRIPTS_VERSION"), "/", $name)
    };
}

/// htmx 2.0.11, as published (assets/htmx-LICENSE.txt): parts of a page in place of the whole.
pub(crate) const HTMX_PATH: &str = script_path!("htmx.js");
/// Drafts of letters as they come.
pub(crate) const DRAFT_PATH: &str = script_path!("draft.js");
/// Keys, and the guard of what is not saved.
pub(crate) const PORTAL_PATH: &str = script_path!("portal.js");

/// How htmx is to behave, in the page's head. No evaluated text and no style of its own, which the pages' policy forbids; no page
/// kept in the browser's storage; and a page that refuses is shown in the place of the one that asked.
pub(crate) const HTMX_CONFIG: &str = r##"{"allowEval":false,"allowScriptTags":false,"includeIndicatorStyles":false,"selfRequestsOnly":true,"historyCacheSize":0,"refreshOnHistoryMiss":true,"responseHandling":[{"code":"204","swap":false},{"code":"[23]..","swap":true},{"code":"[45]..","swap":true,"error":true,"target":"#main","select":"#main","swapOverride":"outerHTML"}]}"##;

pub(crate) async fn htmx() -> Response {
    script(include_str!("../assets/htmx-2.0.11.min.js"))
}

pub(crate) async fn draft() -> Response {
    script(include_str!("../assets/draft.js"))
}

pub(crate) async fn portal() -> Response {
    script(include_str!("../assets/portal.js"))
}

fn script(text: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/javascript; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable")),
    ];
    (headers, text).into_response()
}
