//! The script that streams a draft into the editor. Without it the same button sends the same form and gets a page.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};
use std::sync::LazyLock;

const TEXT: &str = include_str!("../../assets/draft.js");

/// Where it is served. The address changes with the text, so that a browser may keep it for ever.
pub(crate) static PATH: LazyLock<String> = LazyLock::new(|| {
    let hash: String = Sha256::digest(TEXT).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("/assets/draft-{hash}.js")
});

pub(crate) async fn handle() -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/javascript; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable")),
    ];
    (headers, TEXT).into_response()
}
