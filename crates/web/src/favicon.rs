//! The picture that browsers put beside a page's title.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

/// Where both surfaces serve it. The address changes with the picture, so that a browser may keep it for ever.
pub const FAVICON_PATH: &str = concat!("/assets/favicon-", env!("CHANCERY_FAVICON_VERSION"), ".svg");

const PICTURE: &str = include_str!("../assets/favicon.svg");

pub(crate) async fn handle() -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("image/svg+xml")),
        (header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable")),
    ];
    (headers, PICTURE).into_response()
}
