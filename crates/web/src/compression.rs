//! Compresses pages, styles, scripts and JSON with gzip. Streams are sent as they are written, and never compressed.
//!
//! A page that repeats what a request said and that also has a secret can be probed through its compressed length
//! (BREACH), if another site's page can make the request with the user's cookies. So a reply to a request with cookies
//! is compressed only if the browser says that our own page, or nobody's, caused it.

use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::{self, Write};

/// Shorter replies fit into one packet.
const MIN_BYTES: u64 = 1024;
/// Longer ones would occupy a thread for too long.
const MAX_BYTES: u64 = 1024 * 1024;

const COMPRESSIBLE: [&str; 5] =
    ["text/html", "text/css", "text/javascript", "application/json", "image/svg+xml"];

/// Whether the reply to this request may be compressed.
pub(crate) fn is_allowed(request: &HeaderMap) -> bool {
    accepts_gzip(request) && cannot_be_probed(request)
}

fn accepts_gzip(request: &HeaderMap) -> bool {
    let values = request.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| {
        let (name, parameters) = coding.split_once(';').unwrap_or((coding, ""));
        let quality = parameters.trim().strip_prefix("q=").and_then(|text| text.trim().parse::<f32>().ok());
        name.trim().eq_ignore_ascii_case("gzip") && quality.is_none_or(|quality| quality > 0.0)
    })
}

fn cannot_be_probed(request: &HeaderMap) -> bool {
    match request.get("sec-fetch-site") {
        Some(site) => site == "same-origin" || site == "none",
        // No browser, or an old one.
        None => !request.contains_key(header::COOKIE),
    }
}

/// Compresses the reply if it is worth it.
pub(crate) async fn compress(response: Response, is_allowed: bool) -> Response {
    let (mut parts, body) = response.into_parts();
    if !is_compressible(&parts.headers) {
        return Response::from_parts(parts, body);
    }
    parts.headers.append(header::VARY, HeaderValue::from_static("accept-encoding"));
    // A stream has no exact size.
    let size = body.size_hint().exact().filter(|size| (MIN_BYTES..=MAX_BYTES).contains(size));
    let Some(size) = size.filter(|_| is_allowed) else { return Response::from_parts(parts, body) };
    // Browsers cache immutable files, so each of them is compressed rarely.
    let is_cached = parts.headers.get(header::CACHE_CONTROL).is_some_and(is_immutable);
    let level = if is_cached { Compression::best() } else { Compression::default() };
    let read = axum::body::to_bytes(body, usize::try_from(size).unwrap_or(usize::MAX)).await;
    match read.map_err(io::Error::other).and_then(|bytes| gzip(&bytes, level)) {
        Ok(compressed) => {
            parts.headers.remove(header::CONTENT_LENGTH);
            parts.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            Response::from_parts(parts, Body::from(compressed))
        }
        Err(error) => {
            tracing::error!(%error, "compression failed");
            parts.headers.remove(header::CONTENT_LENGTH);
            parts.status = StatusCode::INTERNAL_SERVER_ERROR;
            Response::from_parts(parts, Body::empty())
        }
    }
}

fn is_compressible(headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let essence = content_type.split(';').next().unwrap_or("").trim();
    COMPRESSIBLE.contains(&essence) && !headers.contains_key(header::CONTENT_ENCODING)
}

fn is_immutable(cache_control: &HeaderValue) -> bool {
    cache_control.to_str().is_ok_and(|value| value.contains("immutable"))
}

fn gzip(bytes: &[u8], level: Compression) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 2), level);
    encoder.write_all(bytes)?;
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderName;

    fn allowed(sent: &[(&'static str, &'static str)]) -> bool {
        let headers =
            sent.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        is_allowed(&headers.collect())
    }

    #[test]
    fn only_requests_that_no_other_site_can_cause_are_compressed() {
        let gzip = ("accept-encoding", "br, gzip;q=0.8");
        let cookie = ("cookie", "session=x");
        for (sent, expected) in [
            (vec![gzip], true),
            (vec![gzip, cookie], false),
            (vec![gzip, cookie, ("sec-fetch-site", "same-origin")], true),
            (vec![gzip, cookie, ("sec-fetch-site", "none")], true),
            (vec![gzip, cookie, ("sec-fetch-site", "same-site")], false),
            (vec![gzip, cookie, ("sec-fetch-site", "cross-site")], false),
            (vec![gzip, ("sec-fetch-site", "cross-site")], false),
            (vec![gzip, ("sec-fetch-site", "")], false),
        ] {
            assert_eq!(allowed(&sent), expected, "{sent:?}");
        }
    }

    #[test]
    fn gzip_is_used_only_if_the_client_accepts_it() {
        for (accepted, expected) in [
            ("gzip", true),
            ("GZIP", true),
            ("deflate, gzip;q=1.0, *;q=0.5", true),
            ("gzip;q=0", false),
            ("gzip; q=0.000", false),
            ("br", false),
            ("xgzip", false),
            ("", false),
        ] {
            assert_eq!(allowed(&[("accept-encoding", accepted)]), expected, "{accepted}");
        }
    }
}
