//! Security headers for every page.

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};

/// Built once: they are the same for every page of a surface.
#[derive(Clone, Debug)]
pub(crate) struct SecurityHeaders(Vec<(HeaderName, HeaderValue)>);

/// Whether browsers reach the surface over TLS, and which hosts they must then always reach so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tls {
    None,
    ThisHost,
    WithSubdomains,
}

impl SecurityHeaders {
    /// `form_action_origins` are other origins that the reply to a form may redirect to. Browsers apply `form-action` to redirects too.
    pub(crate) fn new(tls: Tls, form_action_origins: &[String]) -> Self {
        let forms: String = form_action_origins.iter().map(|origin| format!(" {origin}")).collect();
        let policy = format!(
            "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; \
             base-uri 'none'; form-action 'self'{forms}; frame-ancestors 'none'"
        );
        let fixed = |name: &'static str, value: &'static str| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        let mut headers = vec![
            fixed("x-content-type-options", "nosniff"),
            // Not `no-referrer`: it makes browsers send `Origin: null` even to our own origin.
            fixed("referrer-policy", "same-origin"),
            fixed("x-frame-options", "DENY"),
            fixed("cross-origin-opener-policy", "same-origin"),
            fixed("cross-origin-resource-policy", "same-origin"),
            fixed("permissions-policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
        ];
        // Origins contain only valid header characters. If one does not, fall back to the strictest policy.
        let policy = HeaderValue::from_str(&policy).unwrap_or(HeaderValue::from_static("default-src 'none'"));
        headers.push((header::CONTENT_SECURITY_POLICY, policy));
        match tls {
            Tls::None => {}
            Tls::ThisHost => headers.push(fixed("strict-transport-security", "max-age=31536000")),
            Tls::WithSubdomains => {
                headers.push(fixed("strict-transport-security", "max-age=31536000; includeSubDomains"));
            }
        }
        Self(headers)
    }

    /// Keeps headers that the page set itself. By default, nothing is cached.
    pub(crate) fn add_to(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.0 {
            headers.entry(name.clone()).or_insert_with(|| value.clone());
        }
        headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    }
}
