//! The cross-origin rule: requests that change something must come from our own pages. Current browsers send `Sec-Fetch-Site`
//! with every request; older ones send `Origin`. A request with neither does not come from a browser, so it cannot abuse
//! anyone's cookies.

use crate::error_page::ErrorPage;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};

pub(crate) fn is_allowed(method: &Method, headers: &HeaderMap) -> bool {
    if method.is_safe() {
        return true;
    }
    match (headers.get("sec-fetch-site"), headers.get(header::ORIGIN)) {
        (Some(site), _) => site == "same-origin" || site == "none",
        (None, Some(origin)) => matches_host(origin.as_bytes(), headers),
        (None, None) => true,
    }
}

/// A browser that goes to a page, for pages whose use is limited per network: other sites' pages cannot use that up with images,
/// frames or scripts, which browsers name in `Sec-Fetch-Dest`. Whoever does not send it, as older browsers, is let in.
#[derive(Clone, Copy, Debug)]
pub struct Navigation;

impl<S: Send + Sync> FromRequestParts<S> for Navigation {
    type Rejection = ErrorPage;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ErrorPage> {
        match parts.headers.get("sec-fetch-dest") {
            Some(destination) if destination != "document" => Err(ErrorPage::cross_origin()),
            _ => Ok(Self),
        }
    }
}

fn matches_host(origin: &[u8], headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).map(|host| host.as_bytes()).filter(|host| !host.is_empty());
    let authority = origin.strip_prefix(b"https://").or_else(|| origin.strip_prefix(b"http://"));
    authority.is_some() && authority == host
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::{HeaderName, HeaderValue};

    fn allowed(method: &Method, sent: &[(&'static str, &'static str)]) -> bool {
        let headers =
            sent.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        is_allowed(method, &headers.collect())
    }

    #[test]
    fn unsafe_methods_require_same_origin() {
        let host = ("host", "localhost:8081");
        for (sent, expected) in [
            (vec![("sec-fetch-site", "same-origin")], true),
            (vec![("sec-fetch-site", "none")], true),
            (vec![("sec-fetch-site", "same-site")], false),
            (vec![("sec-fetch-site", "cross-site")], false),
            (vec![("sec-fetch-site", "cross-site"), ("origin", "http://localhost:8081")], false),
            (vec![("sec-fetch-site", "")], false),
            (vec![("origin", "http://localhost:8081")], true),
            (vec![("origin", "https://localhost:8081")], true),
            (vec![("origin", "http://localhost:8082")], false),
            (vec![("origin", "http://localhost:8081.evil.example")], false),
            (vec![("origin", "http://evil.example")], false),
            (vec![("origin", "null")], false),
            (vec![("origin", "")], false),
            (vec![], true),
        ] {
            let with_host: Vec<_> = sent.iter().copied().chain([host]).collect();
            assert_eq!(allowed(&Method::POST, &with_host), expected, "{sent:?}");
            assert!(allowed(&Method::GET, &with_host), "reading changes nothing");
        }
        assert!(!allowed(&Method::POST, &[("origin", "http://localhost:8081")]), "no host to compare with");
    }
}
