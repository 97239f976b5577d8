//! The cross-origin rule: what changes something must come from our own pages. Every browser of the last years says with
//! each request where it comes from (`Sec-Fetch-Site`); older ones name the page's origin. A request with neither comes
//! from no browser, and so from nobody whose cookies could be used behind their back.

use axum::http::{HeaderMap, Method, header};

pub(crate) fn is_allowed(method: &Method, headers: &HeaderMap) -> bool {
    if method.is_safe() {
        return true;
    }
    match (headers.get("sec-fetch-site"), headers.get(header::ORIGIN)) {
        (Some(site), _) => site == "same-origin" || site == "none",
        (None, Some(origin)) => is_of_host(origin.as_bytes(), headers),
        (None, None) => true,
    }
}

fn is_of_host(origin: &[u8], headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).map(|host| host.as_bytes()).filter(|host| !host.is_empty());
    let authority = origin.strip_prefix(b"https://").or_else(|| origin.strip_prefix(b"http://"));
    authority.is_some() && authority == host
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::{HeaderName, HeaderValue};

    fn may(method: &Method, sent: &[(&'static str, &'static str)]) -> bool {
        let headers =
            sent.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        is_allowed(method, &headers.collect())
    }

    #[test]
    fn only_our_own_pages_change_anything() {
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
            assert_eq!(may(&Method::POST, &with_host), expected, "{sent:?}");
            assert!(may(&Method::GET, &with_host), "reading changes nothing");
        }
        assert!(!may(&Method::POST, &[("origin", "http://localhost:8081")]), "no host to compare with");
    }
}
